"""What a source's reader gives for a position depends on that position alone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from dali_feed.plan.order import canonical
from dali_feed.records.source import Extents, Reader, Snapshot, Source

__all__ = ["assert_rows_are_pure"]

SINGLE = 24  # positions that are read by themselves
MIXED = 8  # extents in a read of several


def assert_rows_are_pure(source: Source, snapshot: Snapshot, absent: int | None) -> set[int]:
    """Read everything in canonical order, and parts of it again otherwise; every row must come out the same.

    Returns the ids of the positions that hold no record.

    Args:
        source: what is read.
        snapshot: its snapshot.
        absent: how many positions hold no record; None: any number.

    Raises:
        AssertionError: names the first record that differs, or says how many are absent.
    """
    line = canonical(snapshot, snapshot.extent)
    in_order = _read(source, [snapshot.located(line[k : k + 1]) for k in range(len(line))])
    seen = {sample: row for _, sample, row in in_order}
    missing = [sample for sample, row in seen.items() if row is None]
    assert absent is None or len(missing) == absent, (
        f"{snapshot.source}: with absent={absent} so many positions must hold no record; found {len(missing)},"
        f" such as {[_where(source, sample) for sample in missing[:3]]}"
    )
    backwards = [line[::-1][k : k + MIXED] for k in range(0, len(line), MIXED)]
    otherwise = [snapshot.located(numbers) for numbers in (*_singles(line), *backwards)]
    for asked, sample, row in _read(source, otherwise):
        assert row == seen[sample], (
            f"{_where(source, sample)}: a record must be the same however it is read; in order it was"
            f" {_told(seen[sample])}, in a read of {len(asked)} extents and {int(asked.lengths.sum())} positions"
            f" it is {_told(row)}"
        )
    return set(missing)


def _singles(line: Extents) -> list[Extents]:
    """Single records, spread over the line, back to front; the ends of extents among them."""
    ends = np.cumsum(line.lengths)
    total = int(ends[-1])
    wanted = np.unique(np.linspace(0, total - 1, min(SINGLE, total)).astype(np.int64))[::-1]
    k = np.searchsorted(ends, wanted, side="right")
    position = line.stop[k] - (ends[k] - wanted)
    return [Extents.one(int(p), int(at), int(at) + 1) for p, at in zip(line.partition[k], position, strict=True)]


def _read(source: Source, reads: list[Extents]) -> Iterator[tuple[Extents, int, Any]]:
    """(read, sample, what its row holds) of each row of some reads of one new reader."""
    reader = source.reader()
    try:
        for extents in reads:
            for sample, row in _rows(source, reader, extents):
                yield extents, sample, row
    finally:
        reader.close()


def _rows(source: Source, reader: Reader, extents: Extents) -> list[tuple[int, Any]]:
    """(sample, what its row holds or None where it is absent) of one read."""
    block = reader.read(extents)
    ids, given = extents.ids().tolist(), block.ids.tolist()
    assert (given, len(block.payloads)) == (ids, len(ids)), (
        f"read of {_where(source, ids[0])} to {_where(source, ids[-1])}: must give one row per position, {len(ids)},"
        f" in order; found {len(given)} ids and {len(block.payloads)} payloads"
    )
    columns = [v.tolist() if isinstance(v, np.ndarray) else list(map(_kept, v)) for v in block.fields.values()]
    rows: list[tuple[int, Any]] = []
    for k, (sample, payload) in enumerate(zip(ids, block.payloads, strict=True)):
        if payload is None:
            rows.append((sample, None))
            continue
        fault = block.faults.get(k)
        held = hashlib.blake2b(payload, digest_size=8).hexdigest()
        fields = () if fault is not None else tuple(column[k] for column in columns)
        rows.append((sample, (len(payload), held, fields, fault)))
    block.lease.release()
    return rows


def _kept(value: Any) -> Any:
    """A value that stays what it is when the block's memory goes back, and can be compared."""
    if isinstance(value, memoryview):
        return bytes(value)
    return value.tolist() if isinstance(value, np.ndarray) else value


def _where(source: Source, sample: int) -> str:
    return source.where(sample >> 40, sample & ((1 << 40) - 1))


def _told(row: Any) -> str:
    if row is None:
        return "absent"
    size, held, fields, fault = row
    return f"{size} bytes ({held}), fields {fields}" + (f", a fault: {fault}" if fault is not None else "")
