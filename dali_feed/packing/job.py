"""What is packed, how, and into which shards: made of a source and options, or found again where a run was killed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from dali_feed.errors import ConfigError, SourceChangedError, SourceEmptyError, StateError
from dali_feed.external_sources import ArrowRows
from dali_feed.packing.changes import Decoded, OnImages, Tokenized
from dali_feed.packing.contents import Change, Contents, contents_of
from dali_feed.packing.pictures import Pictures
from dali_feed.packing.plan import Plan, borders_of
from dali_feed.packing.shard import sample_bytes
from dali_feed.packing.work import Work
from dali_feed.records.source import Snapshot
from dali_feed.storage.striping import Layout

__all__ = ["Job", "as_source", "contents_for", "job_of"]

VERSION = 1
QUALITY = 90


@dataclass(frozen=True, slots=True)
class Job:
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
    work: Work,
    shard_bytes: int,
    options: Mapping[str, Any],
    known: Mapping[str, Any] | None,
    layout: Layout | None = None,
) -> Job:
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
    return Job(replace(contents, fallback=fallback), snapshot, plan, told)


def _resumed(
    there: dict[str, Any], told: dict[str, Any], contents: Contents, snapshot: Snapshot, work: Work, *, finished: bool
) -> Job:
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
    return Job(replace(contents, fallback=fallback), snapshot, plan, there, finished)


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
