"""Single image files, with or without integer labels: a list of paths, or a folder per class.

The law: a folder gives the same list, in the same order, with the same labels as torchvision's
`ImageFolder`; and a file that cannot be read, or is written while it is read, is a bad record of its own.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dali_feed.checks import integers_of, path_of, paths_of
from dali_feed.columns import Image, Number
from dali_feed.columns.request import formats_of
from dali_feed.errors import ConfigError, SourceDeniedError, SourceEmptyError, SourceError, SourceNotFoundError
from dali_feed.formats.format import Format
from dali_feed.records.pieces import Filling, Pieces
from dali_feed.records.source import (
    EXTENT_BYTES,
    LABEL,
    Block,
    Fault,
    Int64s,
    Lease,
    Member,
    Reader,
    RowReader,
    Snapshot,
    Source,
    alternatives,
    check_known,
    check_no_pin,
    fixed_snapshot,
    sampled,
)
from dali_feed.storage.store import ReadAt, Stamp, read_place

# One file read into a slab: what every source that names single files shares.


LARGEST = 1 << 31
_OURS = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}  # the process's trouble, not the file's


def load_file(path: str, lease: Lease) -> memoryview | str:
    """The bytes of a file, or why there are none."""
    try:
        # Without O_NONBLOCK a pipe with an image's name would hold the reader up for ever.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        return _fault(path, "the file cannot be opened", error)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return "a folder, not a file" if stat.S_ISDIR(status.st_mode) else "not a regular file"
        size = status.st_size
        if size > LARGEST:
            return f"a file of {size} bytes; at most {LARGEST} are allowed"
        view = lease.room(size)
        if (got := read_place(fd, ReadAt(0, (view,), 0, size))) < size:
            return f"the file ended at byte {got} of {size} while it was read"
        changed = Stamp.of(status).change(Stamp.of(os.fstat(fd)))  # half of one picture and half of another is none
        return f"the file changed while it was read: {changed}" if changed else view
    except OSError as error:
        return _fault(path, "the file cannot be read", error)
    finally:
        os.close(fd)


def load_files(paths: Sequence[str | None], block: Block, check: Callable[[], None], first: int = 0) -> Pieces:
    """The bytes of each row's file; none where it has no path, and where they cannot be read, which is a fault.

    `check` is called before each, and raises where the reader is to stop. The rows are the block's from `first` on.
    """
    filling = Filling(len(paths), block.lease)
    for row, path in enumerate(paths):
        check()
        data = None if path is None else load_file(path, block.lease)
        if isinstance(data, str):
            block.faults.setdefault(first + row, Fault("source", data))
        else:
            filling.keep(row, data)
    return filling.pieces()


def _fault(path: str, what: str, error: OSError | ValueError) -> str:
    if isinstance(error, OSError) and error.errno in _OURS:
        msg = f"{path}: {what}: {error.strerror}; raise the limit (ulimit -n) or use fewer readers"
        raise SourceError(msg) from error
    return f"{what}: {error.strerror if isinstance(error, OSError) else error}"


# The files of each class: what lies below its folder, links followed, as torchvision's `ImageFolder` lists them.
#
# The law: a link that leads back to a folder it lies in is not followed. torchvision follows it until the system
# refuses, after 40 turns: every image 40 times, and those of other classes under this one's label.


log = logging.getLogger("dali_feed")


def files_of(root: str, classes: Sequence[str]) -> list[list[str]]:
    """For each class, a folder in `root`, the paths of all its files, in torchvision's order."""
    back: list[str] = []
    listed = []
    for name in classes:
        folders = sorted(_folders(root, os.path.join(root, name), back))
        listed.append([os.path.join(folder, file) for folder, files in folders for file in sorted(files)])
    if back:
        log.warning(
            "%s: a link must not lead back to a folder that it lies in; found %d that do, such as %s to %s; they are"
            " not followed",
            root,
            len(back),
            min(back),
            os.path.realpath(min(back)),
        )
    return listed


def _folders(root: str, top: str, back: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Each folder from `top` downwards with the names of its files; links that lead back come into `back`."""
    outside = {root: frozenset([_identity(root)])}  # of each folder: itself, and those that it was reached through

    def leads_back(path: str, outer: str) -> bool:
        here = _identity(path)
        outside[path] = outside[outer] | {here}
        if here in outside[outer]:
            back.append(path)
        return here in outside[outer]

    if leads_back(top, root):
        return
    for folder, inner, files in os.walk(top, followlinks=True):
        inner[:] = [name for name in inner if not leads_back(os.path.join(folder, name), folder)]  # what is walked
        yield folder, files


def _identity(path: str) -> object:
    """What a folder and all links to it have in common; its path where it cannot be looked at."""
    try:
        status = os.stat(path)
    except OSError:  # gone, or denied: os.walk passes over it as well
        return path
    return status.st_dev, status.st_ino


IMG_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
BYTES, PATH = "bytes", "path"


class FileList(Source):
    """One image per file; position k is paths[k].

    paths    files in order; duplicates are allowed
    labels   an integer per path, or None for no label field
    classes  names of the labels 0, 1, ..., or None
    format   what the files hold, for `columns=`: "json", or an object of `dali_feed.formats`; a member is then
             `bytes:body.label` too

    Raises:
        ConfigError: labels must be integers, as many as paths, and inside `classes` where that is given.
        SourceEmptyError: no path at all.
    """

    def __init__(
        self,
        paths: Sequence[str | os.PathLike[str]],
        labels: ArrayLike | None = None,
        *,
        classes: Sequence[str] | None = None,
        format: Format | str | Mapping[str, Format | str] | None = None,  # noqa: A002  what users call it
    ) -> None:
        if isinstance(paths, (str, os.PathLike)):
            msg = f"FileList: paths must be a sequence of paths; found {paths!r}; for a folder use FileList.from_folder"
            raise ConfigError(msg)
        self._paths = paths_of("FileList: paths", paths)
        if not self._paths:
            msg = "FileList: paths must name at least one file; found an empty sequence"
            raise SourceEmptyError(msg)
        if not isinstance(classes, Iterable | None):
            raise ConfigError(f"FileList: classes must be a sequence of names, or None; found {classes!r}")
        self._classes = None if classes is None else tuple(classes)
        self._labels = None if labels is None else _checked(labels, len(self._paths), self._classes)
        self._root = shared_folder(min(self._paths), max(self._paths))
        self._formats = formats_of(format, BYTES, "FileList")

    @classmethod
    def from_folder(cls, root: str | os.PathLike[str], extensions: str | tuple[str, ...] = IMG_EXTENSIONS) -> FileList:
        """What `torchvision.datasets.ImageFolder(root)` lists: a folder per class, sorted, links followed.

        But a link that leads back to a folder it lies in is not followed, and the log names it.

        Raises:
            SourceNotFoundError: no such folder.
            SourceDeniedError: it cannot be listed.
            SourceEmptyError: it has no class folder, or a class without an image.
        """
        root = os.path.expanduser(path_of("FileList.from_folder: root", root))
        kinds = (extensions,) if isinstance(extensions, str) else extensions
        if not isinstance(kinds, tuple) or not all(isinstance(each, str) for each in kinds):
            rule = "extensions must be a text such as '.jpg', or a tuple of such"
            raise ConfigError(f"FileList.from_folder: {rule}; found {extensions!r}")
        try:
            with os.scandir(root) as entries:
                classes = sorted(entry.name for entry in entries if entry.is_dir())
        except PermissionError as error:
            msg = f"{root}: the folder of an image set must be readable; found {error.strerror}; check its permissions"
            raise SourceDeniedError(msg) from error
        except (OSError, ValueError) as error:
            what = error.strerror if isinstance(error, OSError) else error
            msg = f"{root}: an image set must be a folder with a folder per class; found: {what}"
            raise SourceNotFoundError(msg) from error
        if not classes:
            msg = (
                f"{root}: an image set must have a folder per class; found none; for a flat folder use FileList(paths)"
            )
            raise SourceEmptyError(msg)
        paths: list[str] = []
        labels: list[int] = []
        empty: list[str] = []
        for label, below in enumerate(files_of(root, classes)):
            images = [path for path in below if path.lower().endswith(extensions)]
            paths += images
            labels += [label] * len(images)
            if not images:
                empty.append(classes[label])
        if empty:
            wanted = extensions if isinstance(extensions, str) else ", ".join(extensions)
            msg = (
                f"{root}: each class folder must hold an image; found none for {', '.join(empty)}; supported: {wanted}"
            )
            raise SourceEmptyError(msg)
        source = cls(paths, labels, classes=classes)
        source._root = root.rstrip(os.sep)
        return source

    def chosen(self, positions: Int64s) -> FileList:
        """These files, in this order; negative positions count from the end. IndexError for one that is not there."""
        labels = None if self._labels is None else self._labels[positions]
        paths = [self._paths[k] for k in positions.tolist()]
        return FileList(paths, labels, classes=self._classes, format=self._formats)

    def __repr__(self) -> str:
        return f"FileList({self._root or '.'}, {len(self._paths)} files)"

    def __len__(self) -> int:
        return len(self._paths)

    @property
    def paths(self) -> list[str]:
        """The files, position by position."""
        return list(self._paths)

    @property
    def labels(self) -> Int64s | None:
        """int64 (files,), or None."""
        return None if self._labels is None else self._labels.copy()

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Names of the labels, or None where they were not given."""
        return self._classes

    @property
    def preset(self) -> Mapping[str, Any]:
        """`image`, and `label` where there are labels."""
        return {"image": Image(BYTES)} | ({} if self._labels is None else {LABEL: Number(LABEL)})

    def format_of(self, member: str) -> Format | None:
        """What was given for it."""
        return self._formats.get(member)

    def snapshot(self, pin: Mapping[str, Any] | None = None) -> Snapshot:
        """All files, as one partition. Looks at the sizes of up to 64 of them.

        Raises:
            ConfigError: a pin is given, which only a source that changes has.
            SourceNotFoundError: none of the files that were looked at is there.
        """
        check_no_pin(repr(self), pin)
        record_bytes = self._mean_size()
        digest = hashlib.sha256()
        skip = len(self._root)
        for path in self._paths:
            digest.update(path[skip:].lstrip(os.sep).encode(errors="surrogateescape") + b"\0")
        if self._labels is not None:
            digest.update(self._labels.astype("<i8").tobytes())
        names, counts = (os.path.basename(self._root) or "files",), np.array([len(self._paths)], np.int64)
        extent = max(1, EXTENT_BYTES // record_bytes)
        return fixed_snapshot(repr(self), names, counts, digest.hexdigest(), extent=extent, record_bytes=record_bytes)

    def members(self) -> tuple[Member, ...]:
        """`bytes`, `path` and, where there are labels, `label`; every record has them."""
        members = (Member(BYTES, 1.0, self.snapshot().record_bytes), Member(PATH, 1.0, 0))
        return members if self._labels is None else (*members, Member(LABEL, 1.0, 0))

    def can_have(self, member: str) -> bool:
        """Whether it is one of its members."""
        return member in (BYTES, PATH) or (member == LABEL and self._labels is not None)

    def image_of(self, member: str) -> str:
        """The same. ConfigError for a path or a label: an image is made of a file's bytes."""
        known = [each for each in alternatives(member) if self.can_have(each.partition(":")[0])]
        if known and known[0] in (PATH, LABEL):
            msg = f"member {member!r}: an image is made of a file's {BYTES!r}; write Image({BYTES!r})"
            raise ConfigError(msg)
        return member

    def reader(self, members: Sequence[str], stop: threading.Event | None = None) -> Reader:
        """A reader for one thread; see `dali_feed.records.source.Source`."""
        check_known(members, (BYTES, PATH, *(() if self._labels is None else (LABEL,))), repr(self))
        return _FileReader(self._paths, self._labels, members, stop)

    def file_stamps(self) -> bytes:
        """Size and time of each file, zeros where there is none. See `Source.file_stamps`."""
        stamps = np.zeros((len(self._paths), 2), "<i8")
        for k, path in enumerate(self._paths):
            with suppress(OSError, ValueError):  # the latter of a NUL
                status = os.stat(path)
                stamps[k] = status.st_size, status.st_mtime_ns
        return stamps.tobytes()

    def where(self, partition: int, position: int) -> str:
        """The file's path."""
        return self._paths[position]

    def _mean_size(self) -> int:
        spread = sampled(len(self._paths)).tolist()
        sizes = []
        for k in spread:
            try:
                sizes.append(os.stat(self._paths[k]).st_size)
            except (OSError, ValueError):  # its reader will report it as a bad record
                continue
        if not sizes:
            msg = (
                f"{self!r}: the files must exist; found none of the {len(spread)} that were checked, such as "
                f"{self._paths[0]}; check the folder"
            )
            raise SourceNotFoundError(msg)
        return max(1, round(sum(sizes) / len(sizes)))


class _FileReader(RowReader):
    """Opens files only where their bytes are asked for."""

    def __init__(
        self, paths: list[str], labels: Int64s | None, members: Sequence[str], stop: threading.Event | None
    ) -> None:
        super().__init__("FileList", len(paths), stop)
        self._paths, self._labels, self._members = paths, labels, members

    def _fill(self, block: Block, _: Int64s, position: Int64s) -> None:
        paths = [self._paths[row] for row in position.tolist()]
        for name in self._members:
            if name == BYTES:
                block.values[name] = load_files(paths, block, self._check_stop)
            else:
                block.values[name] = paths if name == PATH or self._labels is None else self._labels[position]


def shared_folder(least: str, most: str) -> str:
    """The folder that all paths share: what the first and the last of them in order share."""
    same = next((k for k, (a, b) in enumerate(zip(least, most, strict=False)) if a != b), min(len(least), len(most)))
    return least[:same].rpartition(os.sep)[0]


def _checked(labels: ArrayLike, count: int, classes: tuple[str, ...] | None) -> Int64s:
    array = integers_of("FileList: labels", labels)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        msg = f"FileList: labels must be a flat sequence of integers; found {array.dtype} of shape {array.shape}"
        raise ConfigError(msg)
    if len(array) != count:
        msg = f"FileList: each path needs one label; found {count} paths and {len(array)} labels"
        raise ConfigError(msg)
    if array.max() > np.iinfo(np.int64).max:
        msg = f"FileList: labels must fit in signed 64 bits; found {array.max()}"
        raise ConfigError(msg)
    if classes is not None and not 0 <= array.min() <= array.max() < len(classes):
        msg = f"FileList: labels must lie in 0..{len(classes) - 1}; found {array.min()}..{array.max()}"
        raise ConfigError(msg)
    return array.astype(np.int64)
