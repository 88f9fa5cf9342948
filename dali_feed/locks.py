"""Locks of files that processes of one machine share: a lock goes with the process that holds it, however that ends.

The law: nobody waits for ever. A process may stand still with a lock; who waits gives up with a named TimeoutError.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SLICE_S = 0.001  # how often one who waits looks again: such a lock is held for a moment


def flocked(fd: int) -> bool:
    """Whether the lock of an open file could be had, for this process alone."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def locked(path: Path, patience: float) -> Iterator[int]:
    """The open file at `path`, made where it is not there, with its lock held.

    TimeoutError where another process has had it for `patience` seconds; OSError where the folder fails.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        ends = time.monotonic() + patience
        while not flocked(fd):
            if time.monotonic() > ends:
                msg = f"{path} has been held by another process for {patience:g} s"
                raise TimeoutError(msg)
            time.sleep(SLICE_S)
        yield fd
    finally:
        os.close(fd)
