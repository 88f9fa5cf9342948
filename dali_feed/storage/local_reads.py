"""Many reads of mounted files: first what the page cache has; the rest is asked of the disk before any is waited for.

The law: which bytes were in the page cache decides when they come, never what they are. A disk that has many reads to
do at once does them faster; how many that are is bounded, so that a stop is heard soon. On Lustre it is bytes that are
bounded, as many as keep each server of the file at work, and large reads are asked for beforehand too.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import perf_counter
from typing import Protocol, cast

from dali_feed.records.storage_stats import StorageMeter
from dali_feed.storage.contract import Opened

__all__ = ["fill_local"]

DEPTH = 128  # reads asked of the disk and not waited for
LARGE = 1 << 20  # bytes of a read that the kernel reads ahead of better than advice does
_AT_ONCE = getattr(os, "RWF_NOWAIT", 0)
_UNKNOWN = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


class _Mounted(Protocol):
    """A `LocalFile`, which opens what this file reads."""

    fd: int
    at_once: bool
    ahead: int


def fill_local(
    file_of: Callable[[int], Opened],
    files: Sequence[int],
    views: Sequence[memoryview],
    at: Sequence[int],
    stop: threading.Event,
    meter: StorageMeter | None = None,
) -> list[int]:
    """See `storage.contract.Store.fill`; `meter` counts each read, from when it was asked for."""
    counts, took = [-1] * len(views), list[float]()
    if meter is None:
        _fill(file_of, files, views, at, stop, counts, took)
        return counts
    meter.queued = len(views)
    try:
        _fill(file_of, files, views, at, stop, counts, took)
    finally:
        meter.queued = 0
        meter.many(took, sum(count for count in counts if count > 0))
    return counts


def _fill(
    file_of: Callable[[int], Opened],
    files: Sequence[int],
    views: Sequence[memoryview],
    at: Sequence[int],
    stop: threading.Event,
    counts: list[int],
    took: list[float],
) -> None:
    late: deque[tuple[int, float]] = deque()  # which, since when
    held = 0  # bytes of them
    stopped, preadv = stop.is_set, os.preadv
    last, opened = -1, cast("_Mounted", None)
    now = perf_counter()
    for k, (file, view, byte) in enumerate(zip(files, views, at, strict=True)):
        if stopped():
            return
        if file != last:
            last, opened = file, cast("_Mounted", file_of(file))
        large = len(view) > LARGE
        if opened.at_once or (large and not opened.ahead):
            try:
                got = preadv(opened.fd, (view,), byte, 0 if large and not opened.ahead else _AT_ONCE)
            except OSError as error:
                got = -1
                opened.at_once = opened.at_once and error.errno not in _UNKNOWN
            if got == len(view):
                counts[k] = got
                then = perf_counter()
                took.append(then - now)
                now = then
                continue
        while opened.ahead and late and held + len(view) > opened.ahead:
            held -= len(views[late[0][0]])
            _wait(deque([late.popleft()]), file_of, files, views, at, stop, counts, took)
            opened = cast("_Mounted", file_of(file))  # it may have been closed
        late.append((k, now))
        held += len(view)
        with suppress(OSError):  # a file system that takes no advice
            os.posix_fadvise(opened.fd, byte, len(view), os.POSIX_FADV_WILLNEED)
        if len(late) == DEPTH:
            _wait(late, file_of, files, views, at, stop, counts, took)
            last, held = -1, 0  # it may have been closed
        now = perf_counter()
    _wait(late, file_of, files, views, at, stop, counts, took)


def _wait(
    late: deque[tuple[int, float]],
    file_of: Callable[[int], Opened],
    files: Sequence[int],
    views: Sequence[memoryview],
    at: Sequence[int],
    stop: threading.Event,
    counts: list[int],
    took: list[float],
) -> None:
    """Read what was asked for. `file_of` again: it closes the oldest of many, and another file has its number then."""
    for k, since in late:
        if stop.is_set():
            break
        try:
            counts[k] = os.preadv(cast("_Mounted", file_of(files[k])).fd, (views[k],), at[k])
        except OSError:
            continue
        finally:
            took.append(perf_counter() - since)
    late.clear()
