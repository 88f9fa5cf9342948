"""Rows of files, read to where they belong: neighbours by one read, thousands of rows by one call of C.

The law: a row's bytes are those of its file, or its count says that they are not all there; which rows the page cache
had changes when they come, never what they are. What it has not is left to the store, which knows its disks.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from time import perf_counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dali_feed.native import library as native
from dali_feed.native.library import library
from dali_feed.storage.store import FileOf, FileReads, LocalFile, Store

Int64s = NDArray[np.int64]

CALL_BYTES = 16 << 20  # of one call, between which `stop` is heard


class FileRows(NamedTuple):
    """Row k is the `size[k]` bytes from byte `at[k]` of the file `file[k]`, and goes to `room[to[k]:]`.

    file, at, size, to  int64 (n,)
    """

    file: Int64s
    at: Int64s
    size: Int64s
    to: Int64s
    room: memoryview

    def views(self) -> list[memoryview]:
        """Where each goes."""
        return [self.room[a:b] for a, b in zip(self.to.tolist(), (self.to + self.size).tolist(), strict=True)]

    def taken(self, rows: Int64s) -> FileRows:
        """Those rows, in that order."""
        return FileRows(self.file[rows], self.at[rows], self.size[rows], self.to[rows], self.room)


def fill_rows(store: Store, file_of: FileOf, rows: FileRows, stop: threading.Event) -> Int64s:
    """Read all rows, in any order; the bytes that came of each, int64 (n,).

    `file_of` and what a count means are as in `Store.fill`.
    """
    counts = np.full(len(rows.file), -1, np.int64)
    if library() is not None:
        _at_once(store, file_of, rows, stop, counts)
    late = np.flatnonzero(counts < 0)
    if len(late) and not stop.is_set():
        its = rows.taken(late)
        counts[late] = store.fill(FileReads(file_of, its.file.tolist(), its.views(), its.at.tolist(), stop))
    return counts


def _at_once(store: Store, file_of: FileOf, rows: FileRows, stop: threading.Event, counts: Int64s) -> None:
    """Read what mounted files have in the page cache, and long runs of neighbours; other counts stay as they are."""
    place = (rows.file << 44) + rows.at
    order = None if (place[1:] >= place[:-1]).all() else np.argsort(place)
    rows, out = rows if order is None else rows.taken(order), np.frombuffer(rows.room, np.uint8)
    for a, b, files, lengths in _calls(rows, store.most_open):
        if stop.is_set():
            return
        opened = [file_of(k) for k in files]
        fds = [file.fds[0] for file in opened if isinstance(file, LocalFile) and _is_plain(file)]
        if len(fds) < len(files):
            continue
        begun = perf_counter()
        fd = np.repeat(np.array(fds, np.int32), lengths)
        filled = native.fill(fd, rows.at[a:b], rows.size[a:b], rows.to[a:b], out)
        if filled is not None:
            reads, came = filled
            counts[slice(a, b) if order is None else order[a:b]] = came
            if store.meter is not None:
                store.meter.alike(reads, perf_counter() - begun, int(came[came > 0].sum()))


def _is_plain(file: LocalFile) -> bool:
    """Whether it is one file, whose page cache can be asked, and which nobody else counts or reads ahead of."""
    return file.at_once and not file.ahead and file.meter is None


def _calls(rows: FileRows, most_open: int) -> Iterator[tuple[int, int, list[int], list[int]]]:
    """From and up to which row each call goes: its files, no more than may be open, and how many rows each has."""
    if not len(rows.file):
        return
    begins = [0, *(np.flatnonzero(np.diff(rows.file)) + 1).tolist()]  # of the rows of one file
    edges = {0, *begins[::most_open], len(rows.file)}
    if rows.size.sum() > CALL_BYTES:
        edges.update((np.flatnonzero(np.diff(np.cumsum(rows.size) // CALL_BYTES)) + 1).tolist())
    for a, b in itertools.pairwise(sorted(edges)):
        its = [a, *(begin for begin in begins if a < begin < b)]
        yield a, b, rows.file[its].tolist(), np.diff([*its, b]).tolist()
