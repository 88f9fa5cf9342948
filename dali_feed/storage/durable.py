"""Files that outlast a power cut (whole under their name, or not there), and the folder for what can be made again."""

from __future__ import annotations

import os
import tempfile
import uuid
from pathlib import Path

__all__ = ["sync_folder", "user_cache", "write_whole"]


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
