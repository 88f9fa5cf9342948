"""What a sample of a source shows.

Nothing is decoded. A record is judged as a training run would judge it before its decoder: by the source, by
its header, by its number of pixels. A format that only some engines take is good, and the report names those.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from dali_feed.cli.labels import integer, missing_label, odd_label
from dali_feed.cli.targets import HEADERS
from dali_feed.records.source import LABEL, Block, Extents, Snapshot, Source, unpack_ids
from dali_feed.screen.header import Header
from dali_feed.screen.screen import UnusableError, header_of, screen

__all__ = ["Findings", "blocks", "fields_of", "look", "refused", "size_of", "spread"]

RUN = 16  # neighbours that are sampled together where a single record costs a seek
CHUNK_BYTES = 64 << 20


@dataclass(slots=True)
class Findings:
    """The findings of a sample.

    rows, absent  positions looked at, and how many of them hold no record
    payloads      sizes in bytes of the records that are there
    formats       image format -> records, of those with a sound header; as `sizes`
    sizes         (width, height) as stored
    turned        records whose EXIF orientation is another than 1, upright; a TIFF's is applied anyway, and not counted
    fields        field -> the integers found in it; None stands for a value that is none
    unlabelled    where, of Kafka records without a header `label` that are good otherwise
    bad           (where, reason)
    """

    rows: int = 0
    absent: int = 0
    payloads: list[int] = field(default_factory=list)
    formats: Counter[str] = field(default_factory=Counter)
    sizes: list[tuple[int, int]] = field(default_factory=list)
    turned: int = 0
    fields: dict[str, list[int | None]] = field(default_factory=dict)
    unlabelled: list[str] = field(default_factory=list)
    bad: list[tuple[str, str]] = field(default_factory=list)

    @property
    def good(self) -> int:
        """Records that can be used."""
        return self.rows - self.absent - len(self.bad)


def look(source: Source, snapshot: Snapshot, count: int) -> Findings:
    """Read a sample of `count` records and judge each. Holds about 64 MB of payloads at a time."""
    findings = Findings()
    for block in blocks(source, snapshot, spread(snapshot, count)):
        _judge(source, block, findings)
    if LABEL in findings.fields:  # a topic without any label is read with label=None; one with some has bad records
        findings.bad += [(where, missing_label()) for where in findings.unlabelled]
    return findings


def blocks(source: Source, snapshot: Snapshot, extents: Extents) -> Iterator[Block]:
    """The records of `extents`, about 64 MB of payloads at a time; a block's memory is gone when the next one comes."""
    before = np.cumsum(extents.lengths) - extents.lengths
    chunk = before // max(1, CHUNK_BYTES // snapshot.record_bytes)
    reader = source.reader()
    try:
        for rows in np.split(np.arange(len(extents)), np.flatnonzero(np.diff(chunk)) + 1):
            block = reader.read(extents[rows])
            try:
                yield block
            finally:
                block.payloads.clear()
                block.lease.release()
    finally:
        reader.close()


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
        values = {} if row in block.faults else fields_of(block, row)
        if reason is None and HEADERS in block.fields and LABEL in values:
            reason = odd_label(block.fields[HEADERS][row][LABEL])
        if reason is None and HEADERS in block.fields and LABEL not in values:
            findings.unlabelled.append(where)
        for name, value in values.items():
            findings.fields.setdefault(name, []).append(value)
        if reason is not None:
            findings.bad.append((where, reason))


def size_of(block: Block, row: int) -> int:
    """Bytes of a record's members; single numbers count none."""
    values = [column[row] for column in block.fields.values()]
    return sum(
        value.nbytes if isinstance(value, np.ndarray) else len(value)
        for value in values
        if isinstance(value, memoryview | bytes | np.ndarray)
    )


def refused(payload: memoryview) -> str | None:
    """Why a training run would not give this to a decoder; None where it would."""
    found = _screened(payload)
    return found if isinstance(found, str) else None


def _take_image(payload: memoryview, findings: Findings) -> str | None:
    header = _screened(payload)
    if isinstance(header, str):
        return header
    findings.formats[header.format] += 1
    findings.turned += header.orientation != 1
    findings.sizes.append((header.width, header.height))
    return None


def _screened(payload: memoryview) -> Header | str:
    try:
        header = header_of(payload)
    except UnusableError as error:
        return str(error)
    return screen([payload]).reasons.get(0, header)


def fields_of(block: Block, row: int) -> dict[str, int | None]:
    """The row's fields as integers; a Kafka record's are its headers."""
    if HEADERS in block.fields:
        return {name: integer(value) for name, value in block.fields[HEADERS][row].items()}
    return {name: int(values[row]) for name, values in block.fields.items()}
