"""The bytes of one shard, written to the files that its layout says.

The law: a part has its name only when all bytes of its shard are on the disks. What a kill leaves are temporary names,
which are written over by the next try, or given their names by `settle` where they were whole.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Collection, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO

from dali_feed.errors import DataLostError, SourceDeniedError
from dali_feed.storage.durable import sync_folder
from dali_feed.storage.layout import Layout, Part

__all__ = ["StripeWriter", "check_parts", "check_targets", "lost", "remove_parts", "settle", "sweep"]

_ATTEMPT = re.compile(r"\.(?P<shard>.+?)(\.\d+of\d+)?\.[0-9a-f]{32}\.tmp")


class StripeWriter:
    """Writes one shard from its first byte to its last. Used by one thread.

    home    the folder of the manifest
    number  of the shard in its set: it says on which target its first stripe lies
    attempt told apart in the temporary names, where two may write the same shard at once; "" where one does

    Targets must be folders that are there: one that is not mounted must not be made on the disk below.

    Raises SourceDeniedError, which names the target, where one cannot be written to; `write` and `finish` too.
    """

    def __init__(self, home: str | os.PathLike[str], layout: Layout, number: int, name: str, attempt: str = "") -> None:
        self._home, self._layout, self._number, self._name = os.fspath(home), layout, number, name
        self._attempt = attempt
        self._size = 0
        self._stack = ExitStack()
        self._files: list[IO[bytes]] = []
        self._paths = _temporaries(self._home, layout, layout.parts(number, name, 0), attempt)
        with ExitStack() as opened:
            for path in self._paths:
                try:
                    self._files.append(opened.enter_context(path.open("wb")))
                except OSError as error:
                    raise _denied(path, error) from error
            self._stack = opened.pop_all()

    @property
    def size(self) -> int:
        """Bytes that were written."""
        return self._size

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Write the next bytes; how many they were."""
        view = memoryview(data).cast("B")
        done = 0
        for part, _, size in self._layout.pieces(self._size, len(view)):
            try:
                self._files[part].write(view[done : done + size])
            except OSError as error:
                raise _denied(self._paths[part], error) from error
            done += size
        self._size += done
        return done

    def finish(self) -> tuple[Part, ...]:
        """Have all bytes on the disks, under temporary names. `settle` gives them theirs."""
        for file, path in zip(self._files, self._paths, strict=True):
            try:
                file.flush()
                os.fsync(file.fileno())
                file.close()
            except OSError as error:
                raise _denied(path, error) from error
        return self._layout.parts(self._number, self._name, self._size)

    def commit(self) -> tuple[Part, ...]:
        """`finish`, and `settle`: the shard is there when this returns, and outlasts a power cut."""
        parts = self.finish()
        settle(self._home, self._layout, parts, self._attempt)
        return parts

    def abort(self) -> None:
        """Leave nothing. Safe to call twice, and after `commit`, where it does nothing."""
        with suppress(OSError):  # of bytes that are still to be written, on a disk that is full
            self._stack.close()
        for path in self._paths:
            path.unlink(missing_ok=True)


def settle(home: str | os.PathLike[str], layout: Layout, parts: Sequence[Part], attempt: str = "") -> None:
    """Give finished parts their names; again, where a kill came between. SourceDeniedError where it cannot be."""
    for part, path in zip(parts, _temporaries(home, layout, parts, attempt), strict=True):
        try:
            if path.exists():
                path.replace(path.with_name(part.file))
                sync_folder(path.parent)
        except OSError as error:
            raise _denied(path, error) from error


def check_targets(home: str | os.PathLike[str], layout: Layout) -> None:
    """Raise SourceDeniedError, which names it, where a target is no folder that this process can write to."""
    for target in range(len(layout.targets)):
        folder = Path(layout.folder(target, os.fspath(home)))
        if not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
            found = "that it cannot be written to" if folder.is_dir() else "a file" if folder.exists() else "none"
            msg = f"target {folder}: must be a folder that can be written to; found {found}; mount or make it"
            raise SourceDeniedError(msg)


def sweep(home: str | os.PathLike[str], layout: Layout, names: Collection[str]) -> None:
    """Remove what attempts that were given up have left of these shards under temporary names."""
    for target in range(len(layout.targets)):
        for path in Path(layout.folder(target, os.fspath(home))).glob(".*.tmp"):
            found = _ATTEMPT.fullmatch(path.name)
            if found is not None and found["shard"] in names:
                path.unlink(missing_ok=True)


def check_parts(home: str | os.PathLike[str], layout: Layout, parts: Sequence[Part]) -> None:
    """Raise DataLostError where a part is not there, or of another size. Bytes are not looked at."""
    for part in parts:
        folder = layout.folder(part.target, os.fspath(home))
        path = os.path.join(folder, part.file)
        try:
            found = os.stat(path).st_size
        except OSError as error:
            raise DataLostError(lost(folder, part, error.strerror or type(error).__name__)) from error
        if found != part.size:
            raise DataLostError(lost(folder, part, f"{found} bytes"))


def lost(folder: str, part: Part, found: str) -> str:
    """What is said of a part that is not as its manifest has it."""
    if not os.path.isdir(folder):
        return f"target {folder}: a target of a set must be there; found no such folder; mount it, or put it back"
    path = os.path.join(folder, part.file)
    return f"{path}: this part of a shard must have {part.size} bytes; found {found}; fetch it or pack the set again"


def remove_parts(home: str | os.PathLike[str], layout: Layout, parts: Sequence[Part]) -> None:
    """Remove parts, and what is left of them under temporary names. What is not there is no error."""
    for part, path in zip(parts, _temporaries(home, layout, parts), strict=True):
        path.unlink(missing_ok=True)
        path.with_name(part.file).unlink(missing_ok=True)


def _temporaries(home: str | os.PathLike[str], layout: Layout, parts: Sequence[Part], attempt: str = "") -> list[Path]:
    end = f"{attempt and '.'}{attempt}.tmp"
    return [Path(layout.folder(part.target, os.fspath(home)), f".{part.file}{end}") for part in parts]


def _denied(path: Path, error: OSError) -> SourceDeniedError:
    found = error.strerror or type(error).__name__
    cure = "make room" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "mount or make it"
    msg = f"target {path.parent}: must be a folder that can be written to; writing {path.name} failed: {found}; {cure}"
    return SourceDeniedError(msg)
