"""Many reads of striped shards at once: all that one block needs is asked for before any of it is waited for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from dali_feed.errors import DaliFeedError
from dali_feed.storage.contract import Opened
from dali_feed.storage.striped_file import AHEAD, StripedFile
from dali_feed.storage.target_queues import Batch

__all__ = ["fill_striped"]


def fill_striped(
    file_of: Callable[[int], Opened],
    files: Sequence[int],
    views: Sequence[memoryview],
    at: Sequence[int],
    stop: threading.Event,
    most_open: int,
) -> list[int]:
    """See `storage.contract.Store.fill`. Up to AHEAD bytes are asked for at once."""
    counts, failed = [-1] * len(views), set[int]()
    batch, opened, whole = Batch(), set[int](), False
    try:
        for k, (file, view, byte) in enumerate(zip(files, views, at, strict=True)):
            if stop.is_set():
                break
            if file not in opened and len(opened) >= most_open:  # `file_of` closes one that is being read
                if not batch.wait(stop):
                    break
                opened.clear()
            opened.add(file)
            found = file_of(file)
            if isinstance(found, StripedFile):
                counts[k] = found.ask(batch, view, byte, lambda _, k=k: failed.add(k))  # type: ignore[misc]
            else:
                counts[k] = _read(found, view, byte)
            if not batch.wait(stop, AHEAD):
                break
    finally:  # a file that cannot be opened ends the read, and the memory that others still write to is given back
        whole = batch.wait(stop)
    if not whole:
        return [-1] * len(views)
    return [-1 if k in failed else count for k, count in enumerate(counts)]


def _read(file: Opened, view: memoryview, at: int) -> int:
    try:
        return file.read(view, at)
    except (OSError, DaliFeedError):  # who finds a count of -1 reads it again, and tells
        return -1
