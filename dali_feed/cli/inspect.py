"""Looks into a source: what it holds by its snapshot, and what a sample of it says of itself.

Nothing is decoded. A record is judged as a training run would judge it before its decoder: by the source, by
its header, by its number of pixels. A format that only some engines take is good, and the report names those.
"""

from __future__ import annotations

import glob
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dali_feed.errors import ConfigError, SourceDeniedError, SourceEmptyError, SourceNotFoundError
from dali_feed.external_sources import FileList, KafkaTopic, ShardSet
from dali_feed.external_sources.files import IMG_EXTENSIONS
from dali_feed.records.source import LABEL, Block, Extents, Snapshot, Source, unpack_ids
from dali_feed.screen.scans import MAX_WORK, overworked
from dali_feed.screen.screen import MAX_PIXELS, UnusableError, header_of

__all__ = [
    "Findings",
    "inspect_all",
    "look",
    "missing_label",
    "odd_label",
    "options_of",
    "sources",
    "spread",
    "topic_of",
]

RUN = 16  # neighbours that are sampled together where a single record costs a seek
CHUNK_BYTES = 64 << 20
KAFKA = "kafka://"
IMAGES = (*IMG_EXTENSIONS, ".gif", ".avif")  # files named one by one may be what from_folder passes over
HEADERS = "headers"


@dataclass(slots=True)
class Findings:
    """What a sample says.

    rows, absent  positions looked at, and how many of them hold no record
    payloads      sizes in bytes of the records that are there
    formats       image format -> records, of those with a sound header; as `sizes`
    sizes         (width, height) as stored
    fields        field -> the integers found in it; None stands for a value that is none
    unlabelled    where, of Kafka records without a header `label` that are good otherwise
    bad           (where, reason)
    """

    rows: int = 0
    absent: int = 0
    payloads: list[int] = field(default_factory=list)
    formats: Counter[str] = field(default_factory=Counter)
    sizes: list[tuple[int, int]] = field(default_factory=list)
    fields: dict[str, list[int | None]] = field(default_factory=dict)
    unlabelled: list[str] = field(default_factory=list)
    bad: list[tuple[str, str]] = field(default_factory=list)

    @property
    def good(self) -> int:
        """Records that can be used."""
        return self.rows - self.absent - len(self.bad)


def inspect_all(targets: Sequence[str], *, sample: int, config: Sequence[str], timeout: float) -> tuple[int, int]:
    """Print what each target holds; return how many bad records the samples had, and how many sources no good one.

    Raises:
        ConfigError: a target or an option that cannot be.
        SourceError: records cannot be had.
    """
    from dali_feed.cli.inspect_view import show

    bad = hopeless = 0
    for source in sources(targets, config=options_of(config), timeout=timeout):
        snapshot = source.snapshot()
        findings = look(source, snapshot, sample)
        show(source, snapshot, findings)
        bad += len(findings.bad)
        hopeless += bool(findings.bad) and not findings.good
    return bad, hopeless


def sources(targets: Sequence[str], *, config: dict[str, str], timeout: float) -> list[Source]:
    """A source per topic, per folder, for all shards together and for all single images together."""
    found: list[Source] = []
    shards: list[str] = []
    images: list[str] = []
    for target in targets:
        if target.startswith(KAFKA):
            found.append(_topic(target, config, timeout))
        elif Path(target).is_dir():
            found.append(_folder(target))
        elif target.lower().endswith(IMAGES):
            images += _images(target)
        else:
            shards.append(target)
    if shards:
        found.append(ShardSet(shards))
    if images:
        found.append(FileList(images))
    return found


def options_of(pairs: Sequence[str]) -> dict[str, str]:
    """What --config was given. Raises ConfigError where one is no KEY=VALUE."""
    split = {pair: pair.partition("=") for pair in pairs}
    wrong = [pair for pair, (name, equals, _) in split.items() if not (name and equals)]
    if wrong:
        msg = f"--config: must be KEY=VALUE; found {wrong[0]!r}"
        raise ConfigError(msg)
    return {name: value for name, _, value in split.values()}


def topic_of(target: str) -> tuple[str, str]:
    """The topic and the servers of kafka://host:port/topic. Raises ConfigError where it is none."""
    servers, _, topic = target.removeprefix(KAFKA).partition("/")
    if not servers or not topic or "/" in topic or "@" in servers:
        msg = (
            f"target: a topic is named kafka://host:port/topic, or kafka://host:port,host:port/topic; found {target!r}"
        )
        raise ConfigError(msg)
    return topic, servers


def _topic(target: str, config: dict[str, str], timeout: float) -> KafkaTopic:
    topic, servers = topic_of(target)
    return KafkaTopic(
        topic, servers, codec=_with_headers, fields=(HEADERS,), config=config, timeout=timeout, holes="replace"
    )


def _with_headers(value: memoryview, _: bytes | None, headers: list[tuple[str, bytes]]) -> dict[str, Any]:
    """Every header: which one holds the label is for the reader of the report to say."""
    return {"image": value, HEADERS: dict(headers)}


def _folder(target: str) -> FileList:
    """A folder per class, as training has it; or a flat one."""
    try:
        entries = sorted(Path(target).iterdir())
    except OSError as error:
        msg = f"{target}: the folder of an image set must be readable; found: {error.strerror}; check its mode"
        raise SourceDeniedError(msg) from error
    flat = [str(path) for path in entries if path.name.lower().endswith(IMAGES) and not path.is_dir()]
    if flat:
        return FileList(flat)
    if any(path.is_dir() for path in entries):
        return FileList.from_folder(target)
    tars = any(path.suffix == ".tar" for path in entries)
    cure = f"for its shards write {str(Path(target, '*.tar'))!r}" if tars else "check the path"
    msg = f"{target}: a folder must hold images, or folders of them; found {len(entries)} other files; {cure}"
    raise SourceEmptyError(msg)


def _images(target: str) -> list[str]:
    # Path.glob takes no absolute pattern.
    found = [target] if Path(target).exists() else sorted(glob.glob(target, recursive=True))  # noqa: PTH207
    if not found:
        msg = f"{target!r} must name files that are there; found none; check the path"
        raise SourceNotFoundError(msg)
    return found


def spread(snapshot: Snapshot, count: int) -> Extents:
    """`count` positions (all, where there are fewer), evenly over the partitions laid end to end.

    Single ones where that is cheap, else runs of up to 16, which cost a seek each.
    """
    total = snapshot.positions
    count = min(count, total)
    run = 1 if snapshot.random_access else RUN
    nth = np.arange(count, dtype=np.int64)
    line = nth // run * run * total // count + nth % run
    ends = np.cumsum(snapshot.stops - snapshot.starts)
    partition = np.searchsorted(ends, line, side="right").astype(np.int64)
    position = snapshot.stops[partition] - (ends[partition] - line)
    first = np.flatnonzero((nth % run == 0) | (np.diff(partition, prepend=-1) != 0))
    last = np.append(first[1:], count) - 1
    return Extents(partition[first], position[first], position[last] + 1)


def look(source: Source, snapshot: Snapshot, count: int) -> Findings:
    """Read a sample of `count` records and judge each. Holds about 64 MB of payloads at a time."""
    extents = spread(snapshot, count)
    findings = Findings()
    before = np.cumsum(extents.lengths) - extents.lengths
    chunk = before // max(1, CHUNK_BYTES // snapshot.record_bytes)
    reader = source.reader()
    try:
        for rows in np.split(np.arange(len(extents)), np.flatnonzero(np.diff(chunk)) + 1):
            block = reader.read(extents[rows])
            try:
                _judge(source, block, findings)
            finally:
                block.payloads.clear()
                block.lease.release()
    finally:
        reader.close()
    if LABEL in findings.fields:  # a topic without any label is read with label=None; one with some has bad records
        findings.bad += [(where, missing_label()) for where in findings.unlabelled]
    return findings


def _judge(source: Source, block: Block, findings: Findings) -> None:
    partitions, positions = unpack_ids(block.ids)
    for row, payload in enumerate(block.payloads):
        findings.rows += 1
        if payload is None:
            findings.absent += 1
            continue
        findings.payloads.append(len(payload))
        where = source.where(int(partitions[row]), int(positions[row]))
        reason = block.faults.get(row) or _take_image(payload, findings)
        values = {} if row in block.faults else _integers(block, row)
        if reason is None and HEADERS in block.fields and LABEL in values:
            reason = odd_label(block.fields[HEADERS][row][LABEL])
        if reason is None and HEADERS in block.fields and LABEL not in values:
            findings.unlabelled.append(where)
        for name, value in values.items():
            findings.fields.setdefault(name, []).append(value)
        if reason is not None:
            findings.bad.append((where, reason))


def _take_image(payload: memoryview, findings: Findings) -> str | None:
    try:
        header = header_of(payload)
    except UnusableError as error:
        return str(error)
    if header.width * header.height > MAX_PIXELS:
        return f"{header.width}x{header.height} pixels, more than the bound of {MAX_PIXELS}"
    if slow := overworked(payload, header.width, header.height, MAX_WORK):
        return slow
    findings.formats[header.format] += 1
    findings.sizes.append((header.width, header.height))
    return None


def _integers(block: Block, row: int) -> dict[str, int | None]:
    """The row's fields as integers; a Kafka record's are its headers."""
    if HEADERS in block.fields:
        return {name: _integer(value) for name, value in block.fields[HEADERS][row].items()}
    return {name: int(values[row]) for name, values in block.fields.items()}


def odd_label(text: bytes | None) -> str | None:
    """Why a header is no label, or None."""
    return None if _integer(text) is not None else f"header label: a decimal number is needed; found {text!r}"


def missing_label() -> str:
    """Why a record without a label is bad, in a topic that has labels."""
    return "header label: a decimal number is needed; the record has no such header"


def _integer(text: bytes | None) -> int | None:
    return int(text) if text is not None and text.removeprefix(b"-").isdigit() and len(text) <= 20 else None
