"""Shards that lie on several targets, as RAID-0 over folders: where each byte is, and how it is written and read.

The law: which byte lies where is arithmetic on (layout, number of the shard, byte) alone, so a manifest names the
layout once, and the sizes of parts always add up to their shard's. A part has its name only when all bytes of its shard
are on the disks. What a kill leaves are temporary names, which `sweep` removes, and shards that lack a part.

A shard is cut into stripes of `stripe_size` bytes. Stripe i goes to part i % stripe_count; a part is one file that has
its stripes one behind the other, so what a read wants of one part together are neighbours there. Part p of shard s lies
on target (s + p) % targets, so that the first stripes, and shards that are smaller than a row of stripes, spread over
all.
"""

from __future__ import annotations

import errno
import os
import re
import threading
import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import IO

from dali_feed.errors import ClosedError, ConfigError, DataLostError, SourceDeniedError, SourceError
from dali_feed.records.gauges import StorageMeter, StorageStats
from dali_feed.storage.durable import sync_folder
from dali_feed.storage.store import LocalFile, ReadAt, Stamp, advise, read_place

BLOCK = 4096  # what direct reads and pages are aligned to
STRIPE_BYTES = 1 << 20
AHEAD_BYTES = 32 << 20  # of a striped file that one reader asks for at once
PLACE_BYTES = 2 << 20  # of one part that are one read
MOST_VIEWS = 512  # of one preadv; Linux takes 1,024
_ATTEMPT = re.compile(r"\.(?P<file>.+?)(\.\d+of\d+)?\.[0-9a-f]{32}\.tmp")


@dataclass(frozen=True, slots=True)
class StripePart:
    """One file of a shard: which target has it, its name there, and its bytes."""

    target: int
    file: str
    size: int


@dataclass(frozen=True, slots=True)
class Layout:
    """How the shards of a set are laid over folders.

    targets       the folders; a relative one is beside the manifest
    stripe_count  parts of a shard: 1 has each shard whole on one target, and all targets in turn
    stripe_size   bytes of a stripe, a multiple of 4096

    Raises ConfigError for values that are not allowed.
    """

    targets: tuple[str, ...]
    stripe_count: int = 1
    stripe_size: int = STRIPE_BYTES

    def __post_init__(self) -> None:
        if not self.targets or not all(isinstance(each, str) and each for each in self.targets):
            msg = f"targets: must be one folder or more; found {self.targets!r}"
            raise ConfigError(msg)
        plain = [os.path.normpath(each) for each in self.targets]
        if len(set(plain)) < len(plain):
            twice = next(each for each in plain if plain.count(each) > 1)
            msg = f"targets: must be different folders, else stripes share a disk; found {twice} twice"
            raise ConfigError(msg)
        if not 1 <= self.stripe_count <= len(self.targets):
            msg = f"stripe_count: must be 1 to {len(self.targets)}, the number of targets; found {self.stripe_count}"
            raise ConfigError(msg)
        if self.stripe_size < BLOCK or self.stripe_size % BLOCK:
            msg = f"stripe_size: must be a multiple of {BLOCK} bytes, the size of a page; found {self.stripe_size}"
            raise ConfigError(msg)

    @classmethod
    def over(cls, home: str, targets: Sequence[str], count: int | None = None, size: int = STRIPE_BYTES) -> Layout:
        """Over folders as a shell names them, for a manifest in `home`; those inside it move with it. None: all."""
        home, folders = os.path.abspath(home), [os.path.abspath(each) for each in targets if each]
        inside = [os.path.relpath(each, home) if each.startswith(f"{home}/") else each for each in folders]
        return cls(tuple(inside), len(inside) if count is None else count, size)

    def folder(self, target: int, home: str) -> str:
        """The folder of a target, for a manifest that lies in the folder `home`."""
        return os.path.normpath(os.path.join(home, self.targets[target]))

    def parts(self, number: int, name: str, size: int) -> tuple[StripePart, ...]:
        """The files of shard `number`, which has `size` bytes. One that gets no byte is an empty file."""
        count, stripe = self.stripe_count, self.stripe_size
        whole, rest = divmod(size, stripe)
        parts = []
        for k in range(count):
            rows = whole // count + (whole % count > k)
            bytes_here = rows * stripe + (rest if whole % count == k else 0)
            file = name if count == 1 else f"{name}.{k}of{count}"
            parts.append(StripePart((number + k) % len(self.targets), file, bytes_here))
        return tuple(parts)

    def pieces(self, at: int, size: int) -> Iterator[tuple[int, int, int]]:
        """Bytes `at` to `at + size` of a shard in order: (part, byte in that part, bytes), none over a stripe's end."""
        end = at + size
        while at < end:
            stripe, inside = divmod(at, self.stripe_size)
            length = min(self.stripe_size - inside, end - at)
            row, part = divmod(stripe, self.stripe_count)
            yield part, row * self.stripe_size + inside, length
            at += length


WHOLE = Layout((".",))  # of a set without targets: each shard is a file beside the manifest


class StripeWriter:
    """Writes one shard from its first byte to its last. Used by one thread.

    home    the folder of the manifest
    number  of the shard in its set: it says on which target its first stripe lies

    Targets must be folders that are there: one that is not mounted must not be made on the disk below. Temporary names
    are random, so that several may write the same shard at once.

    Raises SourceDeniedError, which names the target, where one cannot be written to; `write` and `commit` too.
    """

    def __init__(self, home: str | os.PathLike[str], layout: Layout, number: int, name: str) -> None:
        self._home, self._layout, self._number, self._name = os.fspath(home), layout, number, name
        self._size, self._stack = 0, ExitStack()
        self._files: list[tuple[Path, IO[bytes]]] = []
        attempt = uuid.uuid4().hex
        try:
            for part in layout.parts(number, name, 0):
                path = Path(layout.folder(part.target, self._home), f".{part.file}.{attempt}.tmp")
                with _writing(path):
                    self._files.append((path, self._stack.enter_context(path.open("wb"))))
        except BaseException:
            self.abort()
            raise

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Write the next bytes; how many they were."""
        view = memoryview(data).cast("B")
        done = 0
        for part, _, size in self._layout.pieces(self._size, len(view)):
            path, file = self._files[part]
            with _writing(path):
                file.write(view[done : done + size])
            done += size
        self._size += done
        return done

    def commit(self) -> tuple[StripePart, ...]:
        """Have all bytes on the disks, then give each part its name: the shard is there then, and outlasts a power cut.

        A kill between two names leaves a shard that lacks a part, and is written again.
        """
        for path, file in self._files:
            with _writing(path), file:
                file.flush()
                os.fsync(file.fileno())
        parts = self._layout.parts(self._number, self._name, self._size)
        for part, (path, _) in zip(parts, self._files, strict=True):
            with _writing(path):
                path.replace(path.with_name(part.file))
                sync_folder(path.parent)
        return parts

    def abort(self) -> None:
        """Leave nothing under temporary names. Safe to call twice, and after `commit`, where it does nothing."""
        with suppress(OSError):  # of bytes that are still to be written, on a disk that is full
            self._stack.close()
        for path, _ in self._files:
            path.unlink(missing_ok=True)


class StripedFile(LocalFile):
    """A shard on its targets, open; its reads are counted for each of them. Errors name target and file.

    name           of its set, in figures
    home           the folder of the manifest
    layout, parts  where it lies
    stop           ends a read between two parts, with a ClosedError
    """

    __slots__ = ("_folders", "_layout", "_parts", "_stop", "size")

    def __init__(
        self, name: str, home: str, layout: Layout, parts: Sequence[StripePart], stop: threading.Event | None = None
    ) -> None:
        self._layout, self._parts, self._stop = layout, parts, stop
        self._folders = [layout.folder(part.target, home) for part in parts]
        self.size = sum(part.size for part in parts)
        others = [folder for k in range(len(layout.targets)) if (folder := layout.folder(k, home)) not in self._folders]
        super().__init__((), AHEAD_BYTES, StorageMeter(name, [*self._folders, *others]))
        try:
            for folder, part in zip(self._folders, parts, strict=True):
                self.fds.append(_open_part(folder, part))
        except BaseException:
            self.close()
            raise

    def stamp(self) -> Stamp:
        """Of all parts together: their bytes, and the last of their times."""
        return stamp_of_parts([os.fstat(fd) for fd in self.fds])

    def storage(self) -> tuple[StorageStats, ...]:
        """What it has measured by now."""
        return () if self.meter is None else (self.meter.stats(),)

    def files(self, at: int, size: int) -> list[str]:
        """The paths of the parts that have some of these bytes."""
        parts = sorted({part for part, _, _ in self._layout.pieces(at, size)})
        return [os.path.join(self._folders[part], self._parts[part].file) for part in parts]

    def places(self, view: memoryview, at: int) -> list[ReadAt]:
        """Of each part what `view` wants of it, in reads of about PLACE_BYTES, all parts in turn."""
        rows: list[list[tuple[list[memoryview], int, int]]] = [[] for _ in self._parts]
        done = 0
        for part, byte, length in self._layout.pieces(at, max(0, min(len(view), self.size - at))):
            room, reads = view[done : done + length], rows[part]
            done += length
            if reads and reads[-1][2] < PLACE_BYTES and len(reads[-1][0]) < MOST_VIEWS:
                views, first, size = reads[-1]
                views.append(room)
                reads[-1] = views, first, size + length
            else:
                reads.append(([room], byte, length))
        most = max(map(len, rows))
        return [ReadAt(part, *reads[k]) for k in range(most) for part, reads in enumerate(rows) if k < len(reads)]

    def read(self, view: memoryview, at: int) -> int:
        """See `storage.store.File`."""
        places = self.places(view, at)
        for place in places if len(places) > 1 else ():
            advise(self.fds[place.part], place)
        for place in places:
            if self._stop is not None and self._stop.is_set():
                msg = f"{self._folders[place.part]}: the read was stopped"
                raise ClosedError(msg)
            self._read(place)
        return sum(place.size for place in places)

    def _read(self, place: ReadAt) -> None:
        folder, part, began, got = self._folders[place.part], self._parts[place.part], perf_counter(), 0
        try:
            got = read_place(self.fds[place.part], place)
        except OSError as error:
            what = f"{error.strerror} (errno {error.errno})"
            path = os.path.join(folder, part.file)
            msg = f"{path}: a part of a shard must be readable; found: {what}; check the target"
            raise SourceError(msg) from error
        finally:
            if self.meter is not None:
                self.meter.read(perf_counter() - began, got, place.part)
                self.meter.failures += got < place.size
        if got < place.size:
            raise DataLostError(_lost(folder, part, f"{place.at + got} bytes"))


def stamp_of_parts(parts: Sequence[os.stat_result]) -> Stamp:
    """What several files are, as one."""
    return Stamp(
        hash(tuple(each.st_ino for each in parts)),
        sum(each.st_size for each in parts),
        max(each.st_mtime_ns for each in parts),
        max(each.st_ctime_ns for each in parts),
    )


def _open_part(folder: str, part: StripePart) -> int:
    path = os.path.join(folder, part.file)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except PermissionError as error:
        msg = f"{path}: a part of a shard must be readable; found {error.strerror}; check its permissions and owner"
        raise SourceDeniedError(msg) from error
    except OSError as error:
        raise DataLostError(_lost(folder, part, error.strerror or f"errno {error.errno}")) from error
    size = os.fstat(fd).st_size
    if size != part.size:
        os.close(fd)
        raise DataLostError(_lost(folder, part, f"{size} bytes"))
    return fd


def check_targets(home: str | os.PathLike[str], layout: Layout) -> None:
    """Raise SourceDeniedError, which names it, where a target is no folder that this process can write to."""
    for target in range(len(layout.targets)):
        folder = Path(layout.folder(target, os.fspath(home)))
        if not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
            what = "that it cannot be written to" if folder.is_dir() else "a file" if folder.exists() else "none"
            msg = f"target {folder}: must be a folder that can be written to; found {what}; mount or make it"
            raise SourceDeniedError(msg)


def sweep(home: str | os.PathLike[str], layout: Layout, names: Collection[str]) -> None:
    """Remove what attempts that came to no end have left of these files under temporary names."""
    for target in range(len(layout.targets)):
        for path in Path(layout.folder(target, os.fspath(home))).glob(".*.tmp"):
            match = _ATTEMPT.fullmatch(path.name)
            if match is not None and match["file"] in names:
                path.unlink(missing_ok=True)


def check_parts(home: str | os.PathLike[str], layout: Layout, parts: Sequence[StripePart]) -> None:
    """Raise DataLostError where a part is not there, or of another size. Bytes are not looked at."""
    for part in parts:
        folder = layout.folder(part.target, os.fspath(home))
        path = os.path.join(folder, part.file)
        try:
            size = os.stat(path).st_size
        except OSError as error:
            raise DataLostError(_lost(folder, part, error.strerror or type(error).__name__)) from error
        if size != part.size:
            raise DataLostError(_lost(folder, part, f"{size} bytes"))


def _lost(folder: str, part: StripePart, what: str) -> str:
    """What is said of a part that is not as its manifest has it."""
    if not os.path.isdir(folder):
        return f"target {folder}: a target of a set must be there; found no such folder; mount it, or put it back"
    path = os.path.join(folder, part.file)
    return f"{path}: this part of a shard must have {part.size} bytes; found {what}; fetch it or pack the set again"


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """An error of the block is one of the target that `path` lies on."""
    try:
        yield
    except OSError as error:
        what = error.strerror or type(error).__name__
        cure = "make room" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "mount or make it"
        rule = "must be a folder that can be written to"
        msg = f"target {path.parent}: {rule}; writing {path.name} failed: {what}; {cure}"
        raise SourceDeniedError(msg) from error
