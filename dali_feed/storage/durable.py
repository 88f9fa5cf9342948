"""Files that outlast a power cut: whole under their name, or not there."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

__all__ = ["sync_folder", "write_whole"]


def write_whole(path: Path, held: bytes) -> None:
    """Write a file so that nobody sees half of it. Its bytes are on the disk then, its name is after `sync_folder`.

    Raises OSError, and leaves nothing. Several writers of one name do not disturb each other.
    """
    fresh = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with fresh.open("xb") as file:
            file.write(held)
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
