"""Files that outlast a power cut: whole under their name, or not there; and what a run keeps beside them.

The law: nobody sees half of a file, and JSON that is checked is what was written, or an error.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import tempfile
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


@contextmanager
def only_one(path: Path) -> Iterator[None]:
    """Have a place to ourselves: the lock of the file at `path`, which goes with the process, however that ends.

    Raises BlockingIOError where another process has it, another OSError where the file cannot be made.
    """
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(lock)


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
