"""What a run that packs keeps while it is under way, so that a killed one goes on: a folder beside the shards.

The law: a shard has its name only once it is whole and on the disk, and a receipt says what it is before it gets it.
What a kill leaves is either used as it is or written again; nothing of it is in the set. The folder goes when the
manifest is there.

    OUT/.NAME.packing/plan.json       which source, which options, which records go where
                      lock            one process at a time
                      000003.tar      being written
                      000003.json     the receipt of shard 3: size, samples, checksums, what could not be written
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dali_feed.errors import (
    ClosedError,
    ConfigError,
    DataLostError,
    SourceChangedError,
    SourceEmptyError,
    SourceNotFoundError,
    StateError,
)
from dali_feed.external_sources import ArrowRows
from dali_feed.external_sources.index import index_bytes
from dali_feed.external_sources.replay import Replay
from dali_feed.external_sources.tar import SUFFIX
from dali_feed.packing.changes import Decoded, OnImages, Pictures, Tokenized
from dali_feed.packing.plan import Plan, borders_of, extents_of, probed
from dali_feed.packing.rows import Change, Contents, Sample, contents_of
from dali_feed.packing.sinks import TarWriter
from dali_feed.records.source import Reader, Snapshot, unpack_id
from dali_feed.records.tally import Tally
from dali_feed.storage.durable import checked, checked_json, only_one, sync_folder, write_whole
from dali_feed.storage.manifest import SUFFIX as SET
from dali_feed.storage.manifest import Manifest, Shard, load_manifest, manifest_bytes
from dali_feed.storage.striping import Layout, StripeWriter, check_parts, settle, sweep

__all__ = [
    "Output",
    "PackJob",
    "Receipt",
    "ShardMaker",
    "WorkFolder",
    "as_source",
    "contents_for",
    "denied",
    "job_of",
    "sample_bytes",
    "save",
]


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a shard is; see `shard.Made`."""

    size: int
    samples: int
    sha256: str
    index_sha256: str
    index_size: int
    tally: Tally
    missing: list[list[int]]

    def shard(self, name: str) -> Shard:
        """As the manifest has it."""
        return Shard(name, self.size, self.samples, self.sha256, self.index_size, self.index_sha256)

    def told(self) -> dict[str, Any]:
        """As plain JSON."""
        return {name: getattr(self, name) for name in self.__slots__} | {"tally": self.tally.told()}

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Receipt:
        """What `told` gave. Raises KeyError, TypeError or ValueError where it is not that."""
        digests = str(told["sha256"]), str(told["index_sha256"])
        missing = [[int(number) for number in run] for run in told["missing"]]
        tally = Tally.of(told["tally"])
        return cls(int(told["size"]), int(told["samples"]), *digests, int(told["index_size"]), tally, missing)


class WorkFolder:
    """The folder. `held` around everything that writes there."""

    attempt = ""  # told apart in temporary names, where two processes may write one shard

    def __init__(self, folder: Path, name: str) -> None:
        self.out, self.name = folder, name
        self.path = folder / f".{name}.packing"

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Have it to ourselves; the lock goes with the process, however that ends. ConfigError where another has it."""
        with contextlib.ExitStack() as stack:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                stack.enter_context(only_one(self.path / "lock"))
            except BlockingIOError as error:
                msg = (
                    f"{self.out}: one process at a time may pack the set {self.name}; another process packs it now; "
                    "wait for it, or stop it"
                )
                raise ConfigError(msg) from error
            except OSError as error:
                raise denied(self.out, error) from error
            try:
                yield
            finally:
                if not (self.path / "plan.json").exists():  # nothing was begun, or all of it is done
                    self.done()

    def plan(self) -> dict[str, Any] | None:
        """The plan that is under way; None where there is none. Raises StateError where the file is none."""
        path = self.path / "plan.json"
        try:
            found = checked(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            msg = (
                f"{path}: must be the plan of a run that packs; found: {error}; remove {self.path} to start from the "
                "beginning"
            )
            raise StateError(msg) from error
        return dict(found)

    def begin(self, plan: Mapping[str, Any]) -> None:
        """Keep the plan. It outlasts a power cut when this returns."""
        write_whole(self.path / "plan.json", checked_json(plan))
        sync_folder(self.path)
        sync_folder(self.out)

    def temporary(self, k: int) -> Path:
        """Where shard k is written."""
        return self.path / f"{k:06d}.tar"

    def receipt(self, k: int) -> Receipt | None:
        """What shard k is; None where it was not finished."""
        try:
            return Receipt.of(checked((self.path / f"{k:06d}.json").read_bytes()))
        except (OSError, ValueError, KeyError, TypeError):  # a power cut, or nothing: it is written again
            return None

    def keep(self, k: int, receipt: Receipt) -> None:
        """Keep what shard k is."""
        write_whole(self.path / f"{k:06d}.json", checked_json(receipt.told()))
        sync_folder(self.path)

    def forget(self, k: int) -> None:
        """Shard k is about to be written anew."""
        (self.path / f"{k:06d}.json").unlink(missing_ok=True)

    def done(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path, ignore_errors=True)


def denied(path: Path, error: OSError) -> ConfigError:
    """Of a place that cannot be written."""
    msg = f"{path}: a set must be in a place that can be written; found: {error.strerror or error}; give another place"
    return ConfigError(msg)


def digest_of(whole: bytes) -> str:
    """SHA-256, as hex."""
    return hashlib.sha256(whole).hexdigest()


# One shard: the records of the plan's k-th stretch, as a tar file and its index.
#
# The law: its bytes are a function of (plan, k) alone. Who writes it, when, beside what others, shows nowhere.


Advance = Callable[[int, int], None]  # records and bytes that have come since
_BLOCK = 512


@dataclass(frozen=True, slots=True)
class Made:
    """A shard that was written.

    size, samples, sha256  of the tar file
    index    the bytes of its index
    tally    what became of its records
    missing  positions of a topic that have no sample, as runs [partition, start, stop]
    """

    size: int
    samples: int
    sha256: str
    index: bytes
    tally: Tally
    missing: list[list[int]]


class ShardMaker:
    """Makes shards, one after the other, with a reader of its own. For one thread."""

    def __init__(self, contents: Contents, snapshot: Snapshot, plan: Plan, stop: threading.Event) -> None:
        self._contents, self._snapshot, self._plan, self._stop = contents, snapshot, plan, stop
        self._reader: Reader | None = None

    def make(self, k: int, write: Callable[[bytes], object], advance: Advance = lambda *_: None) -> Made:
        """Give `write` the bytes of shard k, in order.

        Raises:
            ClosedError: the stop event is set.
            ConfigError: two of its samples have one key.
            SourceError: records cannot be read.
        """
        if self._reader is None:
            self._reader = self._contents.source.reader(None, self._stop)
        digest = hashlib.sha256()

        def put(data: bytes) -> None:
            digest.update(data)
            write(data)

        tar, tally = TarWriter(put), Tally()
        keys: set[str] | None = None if self._contents.keys.unique else set()
        missing = _Missing() if self._snapshot.interleaved else None
        start, stop = self._plan.borders[k : k + 2].tolist()
        number = start
        for extents in extents_of(self._snapshot, start, stop):
            if self._stop.is_set():
                msg = "pack: it was stopped"
                raise ClosedError(msg)
            block = self._reader.read(extents)
            before = tar.size
            try:
                for row, sample in enumerate(self._contents.samples(block, number)):
                    if isinstance(sample, Sample):
                        if keys is not None:
                            if sample.key in keys:
                                raise _twice(sample.key, self._plan.shard(k))
                            keys.add(sample.key)
                        tar.add(*sample)
                        tally.records += 1
                        tally.size += sum(len(data) for _, data in sample.files)
                        continue
                    sample_id = int(block.ids[row])
                    if missing is not None:
                        missing.add(*unpack_id(sample_id))
                    if sample is None:
                        tally.absent += 1
                    else:
                        tally.fail(sample, self._contents.source.where(*unpack_id(sample_id)))
                number += len(block.ids)
                advance(len(block.ids), tar.size - before)
            finally:
                block.payloads.clear()
                block.lease.release()
        index = tar.finish()
        runs = [] if missing is None else missing.runs
        return Made(tar.size, len(tar), digest.hexdigest(), index_bytes(index), tally, runs)

    def close(self) -> None:
        """Close its reader. Safe to call twice."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None


class _Missing:
    """Positions, put together into runs as they come."""

    def __init__(self) -> None:
        self.runs: list[list[int]] = []

    def add(self, partition: int, position: int) -> None:
        last = self.runs[-1] if self.runs else None
        if last is not None and last[0] == partition and last[2] == position:
            last[2] += 1
        else:
            self.runs.append([partition, position, position + 1])


def sample_bytes(contents: Contents, snapshot: Snapshot) -> tuple[float, str]:
    """Bytes of a sample in a tar file, the mean of a few; and the suffix that most payloads would have.

    The mean size of the source's records is taken where none of the few can be written.
    """
    reader = contents.source.reader(None, None)
    sizes: list[int] = []
    kinds: list[str] = []
    number = 0
    try:
        for extents in probed(snapshot):
            block = reader.read(extents)
            try:
                kind = contents.kind_of(block)
                kinds += [] if kind is None else [kind]
                made = [sample for sample in contents.samples(block, number) if isinstance(sample, Sample)]
                sizes += [sum(_BLOCK - len(data) // -_BLOCK * _BLOCK for _, data in sample.files) for sample in made]
                number += len(block.ids)
            finally:
                block.payloads.clear()
                block.lease.release()
    finally:
        reader.close()
    mean = float(np.mean(sizes)) if sizes else snapshot.record_bytes + 2.0 * _BLOCK
    return mean, max(sorted(set(kinds)), key=kinds.count, default=contents.fallback)


def _twice(key: str, shard: str) -> ConfigError:
    msg = f'{shard}: no two samples of a shard may have one key; found {key!r} twice; give keys="number"'
    return ConfigError(msg)


# What is packed, how, and into which shards: made of a source and options, or found again where a run was killed.


VERSION = 1
QUALITY = 90


@dataclass(frozen=True, slots=True)
class PackJob:
    """Everything that decides the bytes of a set.

    told      the same as plain JSON: kept in the manifest
    finished  whether the set is there already
    """

    contents: Contents
    snapshot: Snapshot
    plan: Plan
    told: Mapping[str, Any]
    finished: bool = False


def job_of(
    source: Any,
    work: WorkFolder,
    shard_bytes: int,
    options: Mapping[str, Any],
    known: Mapping[str, Any] | None,
    layout: Layout | None = None,
) -> PackJob:
    """The job of these options: new, or the one that is under way in `work`, or `known`, of a set that is there.

    Raises:
        StateError: another one is under way, or there; every difference is told.
        SourceChangedError: it is of a source with other records.
    """
    source = as_source(source)
    contents = contents_for(source, options)
    there = dict(known) if known else work.plan()
    snapshot = source.snapshot(None if there is None else there.get("pin"))
    if not len(snapshot):
        msg = f"{snapshot.source}: a set must hold records; found none"
        raise SourceEmptyError(msg)
    told: dict[str, Any] = {
        "version": VERSION,
        "source": snapshot.source,
        "fingerprint": snapshot.fingerprint,
        "pin": snapshot.pin,
        "interleaved": snapshot.interleaved,
        "shard_bytes": shard_bytes,
        "options": contents.told() | ({} if layout is None else {"layout": asdict(layout)}),
    }
    told = json.loads(json.dumps(told))
    if there is not None:
        return _resumed(there, told, contents, snapshot, work, finished=bool(known))
    targets = () if layout is None else layout.targets
    for folder in (work.out, *(work.out / target for target in targets)):
        if some := sorted(path.name for path in folder.glob(f"{work.name}-*.tar*")):
            msg = (
                f"{folder}: a new set must not replace files that are there; found {some[0]}; "
                "give another name or folder"
            )
            raise ConfigError(msg)
    mean, fallback = sample_bytes(contents, snapshot)
    plan = Plan(work.name, borders_of(snapshot, mean, shard_bytes))
    told |= {"fallback": fallback}
    told |= plan.told()
    work.begin(told)
    return PackJob(replace(contents, fallback=fallback), snapshot, plan, told)


def _resumed(
    there: dict[str, Any],
    told: dict[str, Any],
    contents: Contents,
    snapshot: Snapshot,
    work: WorkFolder,
    *,
    finished: bool,
) -> PackJob:
    """The job that is there, where `told` would be the same."""
    where, cure = work.out / f"{work.name}.dfset", "give the same, give another place, or remove the files there"
    try:
        plan, fallback = Plan.of(there), str(there["fallback"])
    except (KeyError, TypeError, ValueError) as error:
        msg = f"{where}: an unfinished set must have its plan; {type(error).__name__}: {error}; {cure}"
        raise StateError(msg) from error
    if there.get("fingerprint") != told["fingerprint"]:
        msg = (
            f"{where}: a set must be packed from one source; it was begun with {there.get('source')}, "
            f"fingerprint {there.get('fingerprint')}; found {told['source']}, {told['fingerprint']}; {cure}"
        )
        raise SourceChangedError(msg)
    mine = {name: there.get(name) for name in ("version", "shard_bytes")} | dict(there.get("options", {}))
    its = {name: told[name] for name in ("version", "shard_bytes")} | told["options"]
    odd = [
        f"{name}: {mine.get(name)!r}, found {its.get(name)!r}" for name in mine | its if mine.get(name) != its.get(name)
    ]
    if odd:
        msg = f"{where}: the files there must have been packed with the same options; {'; '.join(odd)}; {cure}"
        raise StateError(msg)
    return PackJob(replace(contents, fallback=fallback), snapshot, plan, there, finished)


def contents_for(source: Any, options: Mapping[str, Any]) -> Contents:
    """What becomes of the records of a source; `options` are those of `pack` by name. Raises ConfigError."""
    given = dict(options)
    if given.get("map") is not None and (given.get("resize") is not None or given.get("quality") is not None):
        msg = f"map: takes the place of resize and quality; found {given['map']!r} and one of them; leave one out"
        raise ConfigError(msg)
    changes: list[Change] = []
    if given.get("map") is not None:
        changes.append(OnImages(given["map"]))
    elif given.get("resize") is not None or given.get("quality") is not None:
        changes.append(OnImages(Pictures(given.get("resize"), given.get("quality") or QUALITY)))
    if given.get("decoded"):
        changes.append(OnImages(Decoded()))
    if given.get("tokens") is not None:
        changes.append(Tokenized(given["tokens"], given.get("text") or "txt"))
    return replace(contents_of(source, given.get("members"), given.get("keys") or "auto"), changes=tuple(changes))


def as_source(source: Any) -> Any:
    """The source itself; the rows of a dataset of Hugging Face."""
    table = getattr(getattr(source, "data", None), "table", None)
    if table is None or hasattr(source, "snapshot"):
        return source
    indices = getattr(source, "_indices", None)
    rows = None if indices is None else indices.column(0).to_numpy()
    return ArrowRows(table, _image_of(table), rows, name=str(getattr(source, "split", None) or "dataset"))


def _image_of(table: Any) -> str | None:
    """The first column that is a struct of bytes and path, as these datasets keep images."""
    from pyarrow import types

    for column in table.schema:
        if types.is_struct(column.type) and {part.name for part in column.type} == {"bytes", "path"}:
            return str(column.name)
    return None


# Where shards go: into the work folder, to their names when they are whole, and into the manifest last.


class Output:
    """Whole files in one folder, or parts of them on targets."""

    def __init__(self, work: WorkFolder, layout: Layout | None = None) -> None:
        self._work, self._layout = work, layout
        self.manifest = work.out / f"{work.name}{SET}"

    @property
    def layout(self) -> Layout | None:
        """The targets; None where shards lie beside the manifest."""
        return self._layout

    def there(self, name: str, k: int) -> Receipt | None:
        """What shard k is, where it is finished; it has its name then. None: it must be written."""
        receipt = self._work.receipt(k)
        if receipt is None:
            return None
        self._name(k, name, receipt.size)
        try:
            self._check(k, receipt.shard(name))
        except DataLostError:
            return None
        return receipt

    def write(self, k: int, name: str, maker: ShardMaker, advance: Callable[[int, int], None]) -> Receipt:
        """Write shard k. When this returns, it outlasts a power cut."""
        temporary = self._work.temporary(k)
        index = temporary.with_name(temporary.name + SUFFIX)
        try:
            self._work.forget(k)
            made = self._make(k, name, maker, advance)
            with index.open("wb") as file:
                file.write(made.index)
                file.flush()
                os.fsync(file.fileno())
            receipt = Receipt(
                made.size, made.samples, made.sha256, digest_of(made.index), len(made.index), made.tally, made.missing
            )
            self._work.keep(k, receipt)
            self._name(k, name, receipt.size)
        except OSError as error:
            raise denied(temporary, error) from error
        return receipt

    def _make(self, k: int, name: str, maker: ShardMaker, advance: Callable[[int, int], None]) -> Made:
        """Have the bytes of shard k on the disks, under temporary names."""
        if self._layout is None:
            with self._work.temporary(k).open("wb") as file:
                made = maker.make(k, file.write, advance)
                file.flush()
                os.fsync(file.fileno())
            return made
        stripes = StripeWriter(self._work.out, self._layout, k, name, self._work.attempt)
        try:
            made = maker.make(k, stripes.write, advance)
            stripes.finish()
        except BaseException:
            stripes.abort()
            raise
        return made

    def known(self) -> Manifest | None:
        """The set that is there; None where there is none."""
        try:
            return load_manifest(str(self.manifest))
        except SourceNotFoundError:
            return None

    def finish(self, job: PackJob, receipts: Sequence[Receipt]) -> None:
        """Write the manifest: the set is there then, and not before."""
        sync_folder(self._work.out)
        tally = Tally()
        for receipt in receipts:
            tally.add(receipt.tally)
        replay = None
        if job.snapshot.pin is not None and job.snapshot.interleaved:
            missing = [run for receipt in receipts for run in receipt.missing]
            replay = Replay.missing(job.snapshot.pin, missing).told()
        shards = tuple(each.shard(job.plan.shard(k)) for k, each in enumerate(receipts))
        made = dict(job.told) | {"tally": tally.told()}
        save(self._work.path, self.manifest, Manifest(shards, made, replay, self._layout))
        if self._layout is not None:  # a process that was killed, or given up by Ray
            sweep(self._work.out, self._layout, {shard.name for shard in shards})

    def checked(self, told: Manifest) -> None:
        """Raise DataLostError where a file of the set is not there, or of another size. Its bytes are not looked at."""
        for k, shard in enumerate(told.shards):
            self._check(k, shard)

    def _check(self, k: int, shard: Shard) -> None:
        files = [(f"{shard.name}{SUFFIX}", shard.index_size)]
        if self._layout is None:
            files.insert(0, (shard.name, shard.size))
        else:
            check_parts(self._work.out, self._layout, self._layout.parts(k, shard.name, shard.size))
        for name, size in files:
            path = self._work.out / name
            if (found := _size(path)) != size:
                what = "it is not there" if found < 0 else f"found {found}"
                msg = f"{path}: the set has it with {size} bytes; {what}; remove {self.manifest} to pack it again"
                raise DataLostError(msg)

    def _name(self, k: int, name: str, size: int) -> None:
        """Give shard k its name, and its index; again, where a kill came between."""
        if self._layout is not None:
            settle(self._work.out, self._layout, self._layout.parts(k, name, size), self._work.attempt)
        temporary = self._work.temporary(k)
        for end in ("", SUFFIX):
            here = temporary.with_name(temporary.name + end)
            if here.exists():
                here.replace(self._work.out / f"{name}{end}")


def save(work: Path, path: Path, manifest: Manifest) -> None:
    """Write a manifest by way of the folder `work`: whole or not at all, and when this returns it is on the disk."""
    fresh = work / path.name
    with fresh.open("wb") as file:
        file.write(manifest_bytes(manifest))
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    sync_folder(path.parent)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1
