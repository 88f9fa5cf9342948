"""One process of a machine measures, the others wait for it.

The law: nobody waits for ever. A lock is the kernel's, which gives it back when its process ends in whatever way; and
who waits has a limit.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

__all__ = ["Place", "alone"]

Place = Literal["first", "later", "no lock"]
_POLL = 0.05  # seconds


@contextmanager
def alone(path: Path, patience: float) -> Iterator[Place]:
    """Who this process is, while the block runs.

    "first" holds the lock. "later" found that another one held it, and has waited until it gave it back, for `patience`
    seconds at most. "no lock": the file cannot be made or locked.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        yield "no lock"
        return
    try:
        yield _place(held, patience)
    finally:
        os.close(held)  # and so its lock


def _place(held: int, patience: float) -> Place:
    end, place = time.monotonic() + patience, "first"
    while True:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            place = "later"
        except OSError:
            return "no lock"
        else:
            if place == "later":
                fcntl.flock(held, fcntl.LOCK_UN)  # the next one that waits need not wait for this one
            return "first" if place == "first" else "later"
        if time.monotonic() >= end:
            return "later"
        time.sleep(_POLL)
