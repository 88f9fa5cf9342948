"""What compilers make of the kernels, kept from one run to the next: it depends on what they are given alone."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

_UNUSED = 14 * 24 * 3600.0  # seconds after which a file goes


class Kept:
    """Files by what they were made from, in a folder that several processes may use at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for path in folder.iterdir():
            if path.stat().st_mtime < time.time() - _UNUSED:
                path.unlink(missing_ok=True)

    def file(self, name: str, made_from: Iterable[str], make: Callable[[Path], object]) -> Path:
        """The file that `make` writes to the path it is given, or has written when it was `made_from` the same.

        `made_from` is all that the file depends on: sources, options, the compiler with its version. Where `make`
        raises, nothing is kept.
        """
        found = hashlib.sha256()
        for part in made_from:
            found.update(f"{len(part)} {part}".encode())
        path = self.folder / f"{found.hexdigest()[:32]}-{name}"
        try:
            os.utime(path)
        except FileNotFoundError:
            work = path.with_name(f"{path.name}.{os.getpid()}.tmp")
            try:
                make(work)
                work.replace(path)  # whole or not at all
            finally:
                work.unlink(missing_ok=True)
        return path
