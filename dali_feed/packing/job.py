"""What is packed, how, and into which shards: made of a source and options, or found again where a run was killed.

The law: a job is everything that decides the bytes of a set, and can be sent to another process, which makes its own
readers and finds the same records, or says that it does not.
"""

from __future__ import annotations

import glob
import hashlib
import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from dali_feed.errors import ConfigError, SourceChangedError, SourceEmptyError, StateError
from dali_feed.external_sources import Table
from dali_feed.packing.changes import Decoded, OnImages, Reencode, Tokenized
from dali_feed.packing.keys import by_place
from dali_feed.packing.plan import Plan, blocks, borders_of, probed
from dali_feed.packing.rows import Change, Sample, Samples, check_suffixes, contents_of
from dali_feed.packing.work import WorkFolder
from dali_feed.records.extents import Present
from dali_feed.records.source import Snapshot, Source
from dali_feed.storage.striping import Layout

VERSION = 1  # of what a manifest says
UNDER_WAY = 2  # in its place in the plan of a set under way: another where the same options give other bytes
QUALITY = 90
STAMPS = "stamps"  # of the source's files, in the plan of a set under way alone: a manifest says nothing of times
CURE = "give the same, give another place, or remove the files there"
_BLOCK = 512


@dataclass(frozen=True)
class PackTask:
    """What is packed, and how.

    source   as the user has it
    options  those of `pack`, by name
    present  the positions of its records that are packed; None: all
    """

    source: Any
    options: Mapping[str, Any]
    present: Present | None = None

    def contents(self) -> Samples:
        """What becomes of the records. Raises ConfigError for options that cannot be."""
        source = as_source(self.source)
        samples = _contents(source, **self.options)
        return samples if self.present is None else replace(samples, keys=by_place(samples.keys, source.snapshot()))

    def snapshot(self, pin: Mapping[str, Any] | None) -> Snapshot:
        """The source's, of the positions that are packed alone."""
        source = as_source(self.source)
        if self.present is None:
            return whole_snapshot(source, pin)
        whole = whole_snapshot(source)
        both = hashlib.sha256(f"{whole.fingerprint}\0{self.present.digest()}".encode()).hexdigest()
        return replace(whole, present=self.present, fingerprint=both, pin=None)


def _contents(  # noqa: PLR0913  an option each
    source: Any,
    *,
    members: Any = None,
    keys: str = "auto",
    resize: int | None = None,
    quality: int | None = None,
    map: Any = None,  # noqa: A002  what it is
    tokens: Any = None,
    text: str = "txt",
    decoded: bool = False,
) -> Samples:
    """What becomes of the records of a source; see `pack`."""
    if map is not None and (resize is not None or quality is not None):
        raise ConfigError(f"map: takes the place of resize and quality; found {map!r} and one of them; leave one out")
    if map is not None and not callable(map):
        raise ConfigError(f"map: must be a function of an encoded image that gives another; found {map!r:.100}")
    changes: list[Change] = []
    if map is not None:
        changes.append(OnImages(map))
    elif resize is not None or quality is not None:
        changes.append(OnImages(Reencode(resize, QUALITY if quality is None else quality)))
    if decoded:
        changes.append(OnImages(Decoded()))
    if tokens is not None:
        changes.append(Tokenized(tokens, text))
    return replace(contents_of(source, members, keys), changes=tuple(changes))


@dataclass(frozen=True)
class PackJob:
    """Everything that decides the bytes of a set, and where it goes.

    fallback  suffix of payloads whose first bytes say nothing
    facts     what decides the bytes, as plain JSON: kept in the manifest
    """

    packed: PackTask
    snapshot: Snapshot
    plan: Plan
    fallback: str
    work: WorkFolder
    layout: Layout | None
    facts: Mapping[str, Any]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "contents"}

    @cached_property
    def contents(self) -> Samples:
        """What becomes of the records; of this process."""
        return replace(self.packed.contents(), fallback=self.fallback)


def job_of(
    packed: PackTask,
    work: WorkFolder,
    shard_bytes: int,
    layout: Layout | None = None,
    known: Mapping[str, Any] | None = None,
) -> PackJob:
    """The job of these options: new, or the one that is under way in `work`, or `known`, of a set that is there.

    StateError tells every difference to the one that is there, SourceChangedError that its source has other records.
    """
    contents = packed.contents()
    check_suffixes(contents)
    there = dict(known) if known else work.plan()
    before = None if there is None else there.pop(STAMPS, None)
    snapshot = packed.snapshot(None if there is None else there.get("pin"))
    if not len(snapshot):
        raise SourceEmptyError(f"{snapshot.source}: a set must hold records; found none")
    facts: dict[str, Any] = {
        "version": VERSION,
        "source": snapshot.source,
        "fingerprint": snapshot.fingerprint,
        "pin": snapshot.pin,
        "interleaved": snapshot.interleaved,
        "shard_bytes": shard_bytes,
        "options": contents.to_json() | ({} if layout is None else {"layout": asdict(layout)}),
    }
    facts = json.loads(json.dumps(facts))
    stamps = _stamps(contents.source)
    if there is not None:
        plan, fallback = _resumed(there, facts if known else facts | {"version": UNDER_WAY}, work)
        if before not in (None, stamps):
            rule = f"a set must be packed from one source; files of {snapshot.source} were written since it was begun"
            raise SourceChangedError(f"{work.manifest}: {rule}; {CURE}")
        there["version"] = VERSION
        return _with_contents(PackJob(packed, snapshot, plan, fallback, work, layout, there), contents)
    targets = () if layout is None else layout.targets
    for folder in (work.out, *(work.out / target for target in targets)):
        if some := sorted(path.name for path in folder.glob(f"{glob.escape(work.name)}-*.tar*")):
            what = f"found {some[0]}; give another name or folder"
            raise ConfigError(f"{folder}: a new set must not replace files that are there; {what}")
    mean, fallback = sample_bytes(contents, snapshot)
    plan = Plan(work.name, borders_of(snapshot, mean, shard_bytes))
    facts |= {"fallback": fallback} | plan.to_json()
    work.begin(facts | {STAMPS: stamps, "version": UNDER_WAY})
    return _with_contents(PackJob(packed, snapshot, plan, fallback, work, layout, facts), contents)


def _stamps(source: Source) -> str | None:
    """What says that a source's files are those of before, though they may hold as much; None where it has none."""
    stamps = source.file_stamps()
    return None if stamps is None else hashlib.sha256(stamps).hexdigest()


def _with_contents(job: PackJob, contents: Samples) -> PackJob:
    """A job that need not make its contents again, in this process."""
    vars(job)["contents"] = replace(contents, fallback=job.fallback)
    return job


def _resumed(there: Mapping[str, Any], facts: Mapping[str, Any], work: WorkFolder) -> tuple[Plan, str]:
    """Plan and fallback of the job that is there, where `facts` would be the same."""
    where, cure = work.manifest, CURE
    try:
        plan, fallback = Plan.of(there), str(there["fallback"])
    except (KeyError, TypeError, ValueError) as error:
        msg = f"{where}: an unfinished set must have its plan; {type(error).__name__}: {error}; {cure}"
        raise StateError(msg) from error
    if there.get("fingerprint") != facts["fingerprint"]:
        raise SourceChangedError(
            f"{where}: a set must be packed from one source; it was begun with {there.get('source')}, "
            f"fingerprint {there.get('fingerprint')}; found {facts['source']}, {facts['fingerprint']}; {cure}"
        )
    before, now = (
        {name: job.get(name) for name in ("version", "shard_bytes")} | dict(job.get("options", {}))
        for job in (there, facts)
    )
    odd = [
        f"{name}: {before.get(name)!r}, found {now.get(name)!r}"
        for name in before | now
        if before.get(name) != now.get(name)
    ]
    if odd:
        msg = f"{where}: the files there must have been packed with the same options; {'; '.join(odd)}; {cure}"
        raise StateError(msg)
    return plan, fallback


def sample_bytes(contents: Samples, snapshot: Snapshot) -> tuple[float, str]:
    """Bytes of a sample in a tar file, the mean of a few; and the suffix that most payloads would have.

    The mean size of the source's records is taken where none of the few can be written.
    """
    sizes, kinds, number = list[int](), list[str](), 0
    with closing(blocks(contents.source, contents.members, probed(snapshot))) as some:
        for block in some:
            kinds += [kind] if (kind := contents.kind_of(block)) else []
            samples = [sample for sample in contents.samples(block, number) if isinstance(sample, Sample)]
            sizes += [sum(_BLOCK - len(data) // -_BLOCK * _BLOCK for _, data in sample.files) for sample in samples]
            number += len(block.ids)
    mean = float(np.mean(sizes)) if sizes else snapshot.record_bytes + 2.0 * _BLOCK
    return mean, max(sorted(set(kinds)), key=kinds.count, default=contents.fallback)


def whole_snapshot(source: Source, pin: Mapping[str, Any] | None = None) -> Snapshot:
    """A source's, of which a set holds each record once. ConfigError where weights say how often each comes."""
    snapshot = source.snapshot(pin)
    if snapshot.mix is not None:
        rule = "a set holds each record of its source once; found sources that are mixed by weights"
        raise ConfigError(f"{snapshot.source}: {rule}; pack each of them, or a Concat, and mix the sets in the loader")
    return snapshot


def as_source(source: Any) -> Any:
    """The source itself; the rows of a dataset of Hugging Face. ConfigError for what is neither."""
    if hasattr(source, "snapshot"):
        return source
    table = getattr(getattr(source, "data", None), "table", None)
    if table is None:
        rule = "must be a source that ends, such as ShardSet, FileList or Table, or a dataset of Hugging Face"
        raise ConfigError(f"source: {rule}; found {source!r:.200}; make one of it")
    indices = getattr(source, "_indices", None)
    rows = None if indices is None else indices.column(0).to_numpy()
    return Table(table, _image_of(table), rows=rows, name=str(getattr(source, "split", None) or "dataset"))


def _image_of(table: Any) -> str | None:
    """The first column that is a struct of bytes and path, as these datasets keep images."""
    from pyarrow import types

    for column in table.schema:
        if types.is_struct(column.type) and {part.name for part in column.type} == {"bytes", "path"}:
            return str(column.name)
    return None
