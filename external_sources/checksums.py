"""Checksums of what was read, where an index has them: no wrong byte passes for a right one.

The law: what does not agree with its CRC-32 costs its own row, and says so.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence

import numpy as np

from dali_feed.external_sources.tar_index import TarIndex
from dali_feed.records.source import Int64s

__all__ = ["compare", "expected"]

NONE = -1  # of a member that has none


def expected(indexes: Sequence[TarIndex], suffixes: Sequence[bytes]) -> Int64s | None:
    """The CRC-32 of each sample's member, int64 (all samples,), as `TarIndex.member` chooses it; -1 where nobody knows.

    None where no index has any.
    """
    if all(index.crc is None for index in indexes):
        return None
    return np.concatenate([_of(index, suffixes) for index in indexes])


def _of(index: TarIndex, suffixes: Sequence[bytes]) -> Int64s:
    if index.crc is None:
        return np.full(len(index), NONE, np.int64)
    member = index.chosen(suffixes)
    crc = np.append(index.crc, np.uint32(0))  # one more, for samples without the member
    return np.where(member >= 0, crc[member].astype(np.int64), NONE)


def compare(
    views: Iterable[memoryview | bytes | None], crc: Int64s, faults: dict[int, str], what: str = "the image"
) -> None:
    """A fault for each row whose bytes are not those of its checksum."""
    for row, (view, known) in enumerate(zip(views, crc.tolist(), strict=True)):
        if known != NONE and view is not None and (found := zlib.crc32(view)) != known:
            faults.setdefault(
                row,
                f"{what} is not what was packed: its CRC-32 is {found:08x}, and the index has {known:08x}; fetch "
                "the shard again, or pack it again",
            )
