"""Files that outlast a power cut: whole under their name, or not there; and files that processes lock and share.

The law: nobody sees half of a file, and JSON that is checked is what was written, or an error.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that nobody sees half of it. Its bytes are on the disk then, its name is after `sync_folder`.

    Raises OSError, and leaves nothing. Several writers of one name do not disturb each other.
    """
    fresh = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with fresh.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def sync_folder(path: Path) -> None:
    """Have a folder's new names on the disk."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def checked_json(content: Mapping[str, Any]) -> bytes:
    """As JSON, and behind it a line with its SHA-256: a flipped digit would be taken for a number otherwise."""
    text = json.dumps(content).encode()
    return text + b"\n" + hashlib.sha256(text).hexdigest().encode() + b"\n"


def checked(data: bytes) -> dict[str, Any]:
    """What `checked_json` was given; ValueError where it is other bytes."""
    text, _, check = data.partition(b"\n")
    if check != hashlib.sha256(text).hexdigest().encode() + b"\n":
        msg = "its SHA-256 is another"
        raise ValueError(msg)
    return dict(json.loads(text))


# Locks of files that processes of one machine share: a lock goes with the process that holds it, however that ends.
#
# The law: nobody waits for ever. A process may stand still with a lock; who waits gives up with a named TimeoutError.


SLICE_S = 0.001  # how often one who waits looks again: such a lock is held for a moment


def flocked(fd: int) -> bool:
    """Whether the lock of an open file could be had, for this process alone."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def locked(path: Path, patience: float = 0.0) -> Iterator[int]:
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


def user_cache() -> Path:
    """Where indexes of files and tunings are kept: `dali_feed` under XDG_CACHE_HOME, or under ~/.cache.

    It may not be there yet. Of a user who has no home, as in many containers, it is a folder of his own among the
    temporary files.
    """
    if folder := os.environ.get("XDG_CACHE_HOME"):
        return Path(folder, "dali_feed")
    home = os.path.expanduser("~")
    if home == "~":  # it would be a folder of that name, wherever the program runs
        return Path(tempfile.gettempdir(), f"dali_feed-{os.getuid()}")
    return Path(home, ".cache", "dali_feed")
