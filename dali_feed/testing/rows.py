"""What a source's reader gives for a position depends on that position alone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dali_feed.columns.request import open_reader
from dali_feed.plan.order import canonical
from dali_feed.records.slabs import SlabPool
from dali_feed.records.source import Block, Extents, Snapshot, Source

SINGLE = 24  # positions that are read by themselves
MIXED = 8  # extents in a read of several


@dataclass(frozen=True, slots=True)
class _Row:
    """What a reader gives for a position: values of its record, or the fault of that; `there` False: no record."""

    there: bool = True
    fault: str = ""
    values: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return (f"a fault: {self.fault}" if self.fault else str(self.values)) if self.there else "absent"


def assert_rows_are_pure(source: Source, names: Sequence[str], snapshot: Snapshot, absent: int | None) -> None:
    """Read everything in canonical order, and parts of it again otherwise; every row must come out the same.

    `absent`: how many positions hold no record; None: any number.
    """
    line = canonical(snapshot, snapshot.extent)
    in_order = _read(source, names, [snapshot.located(line[k : k + 1]) for k in range(len(line))])
    seen = {sample: row for _, sample, row in in_order}
    missing = [sample for sample, row in seen.items() if not row.there]
    assert absent is None or len(missing) == absent, (
        f"{snapshot.source}: with absent={absent} so many positions must hold no record; found {len(missing)},"
        f" such as {[_where(source, sample) for sample in missing[:3]]}"
    )
    backwards = [line[::-1][k : k + MIXED] for k in range(0, len(line), MIXED)]
    otherwise = [snapshot.located(numbers) for numbers in (*_singles(line), *backwards)]
    for extents, sample, row in _read(source, names, otherwise):
        assert row == seen[sample], (
            f"{_where(source, sample)}: a record must be the same however it is read; in order it was"
            f" {seen[sample]}, in a read of {len(extents)} extents and {int(extents.lengths.sum())} positions"
            f" it is {row}"
        )


def _singles(line: Extents) -> list[Extents]:
    """Single records, spread over the line, back to front; the ends of extents among them."""
    ends = np.cumsum(line.lengths)
    total = int(ends[-1])
    wanted = np.unique(np.linspace(0, total - 1, min(SINGLE, total)).astype(np.int64))[::-1]
    k = np.searchsorted(ends, wanted, side="right")
    position = line.stop[k] - (ends[k] - wanted)
    return [Extents.one(int(p), int(at), int(at) + 1) for p, at in zip(line.partition[k], position, strict=True)]


def _read(source: Source, names: Sequence[str], reads: list[Extents]) -> Iterator[tuple[Extents, int, _Row]]:
    """(read, sample, its row) of each position of some reads of one new reader."""
    reader, pool = open_reader(source, names), SlabPool()
    try:
        for extents in reads:
            lease = pool.lease()
            try:
                rows = _rows(source, names, reader.read(extents, lease), extents)
            finally:
                lease.release()
            for sample, row in rows:
                yield extents, sample, row
    finally:
        reader.close()


def _rows(source: Source, names: Sequence[str], block: Block, extents: Extents) -> list[tuple[int, _Row]]:
    """(sample, its row) of one read."""
    ids, read_ids = extents.ids().tolist(), block.ids.tolist()
    counts = {name: len(block.values[name]) for name in names}
    assert (read_ids, set(counts.values()) - {len(ids)}) == (ids, set()), (
        f"read of {_where(source, ids[0])} to {_where(source, ids[-1])}: must give one row per position, {len(ids)},"
        f" in order; found {len(read_ids)} ids and so many values: {counts}"
    )
    absent = set(block.absent_rows())
    rows: list[tuple[int, _Row]] = []
    for k, (sample, *values) in enumerate(zip(ids, *(block.values[name] for name in names), strict=True)):
        fault = block.faults.get(k)
        if k in absent:
            row = _Row(there=False)
        elif fault is not None:
            row = _Row(fault=fault.reason)
        else:
            row = _Row(values=tuple(map(_kept, values)))
        rows.append((sample, row))
    return rows


def _kept(value: Any) -> Any:
    """A value that stays what it is when the block's memory goes back, and can be compared."""
    if isinstance(value, memoryview | bytes):
        return f"{len(value)} bytes ({hashlib.blake2b(value, digest_size=8).hexdigest()})"
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _where(source: Source, sample: int) -> str:
    return source.where(sample >> 40, sample & ((1 << 40) - 1))
