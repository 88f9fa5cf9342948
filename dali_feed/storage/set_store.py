"""Shards of sets: `/data/imagenet.dfset/imagenet-000000.tar` is the file beside the manifest, or its parts on targets.

The law: what a manifest names is there, as long as it was, or reading it is an error that names target and file.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from dali_feed.errors import DataLostError, SourceNotFoundError
from dali_feed.records.storage_stats import StorageMeter
from dali_feed.storage.contract import Metered, Opened, Store
from dali_feed.storage.layout import Layout, Part
from dali_feed.storage.local import LOCAL, LocalFile
from dali_feed.storage.manifest import SUFFIX, Manifest, Shard, load_manifest
from dali_feed.storage.stamp import Stamp
from dali_feed.storage.stripe_writer import check_parts
from dali_feed.storage.striped_file import StripedFile, open_part, stamp_of
from dali_feed.storage.striped_reads import fill_striped
from dali_feed.storage.target_file import TargetFile

__all__ = ["SetStore", "is_set_path"]

INDEX = ".dfidx"
_INSIDE = SUFFIX + "/"


def is_set_path(pattern: str) -> bool:
    """Whether a path is of a set, or of what lies in one."""
    return pattern.endswith(SUFFIX) or _INSIDE in pattern


@dataclass(frozen=True)
class SetStore:
    """Files of sets by their manifests; other paths as on any mounted file system.

    below  how the files that are not striped are read
    """

    below: Store = LOCAL
    _sets: dict[str, tuple[Manifest, dict[str, int]]] = field(default_factory=dict, repr=False, compare=False)

    def __reduce__(self) -> Any:
        return type(self), (self.below,)  # another process looks at its own files

    @property
    def meter(self) -> StorageMeter | None:
        """See `storage.contract.Metered`. None of striped sets, each of whose files has its own."""
        return self.below.meter if self._plain and isinstance(self.below, Metered) else None

    def metered(self) -> SetStore:
        """The same, manifests too, for one reader that counts its own reads."""
        return type(self)(self.below.metered() if isinstance(self.below, Metered) else self.below, self._sets)

    @property
    def random_access(self) -> bool:
        """Whether a single record costs little."""
        return self.below.random_access

    @property
    def most_open(self) -> int:
        """Shards that may be open at once: fewer where each is several files."""
        layouts = [found.layout for found, _ in list(self._sets.values())]
        return max(8, self.below.most_open // max((each.stripe_count for each in layouts if each), default=1))

    def matches(self, pattern: str) -> list[str]:
        """The shards of a set, in its order, or those of them that a pattern behind the set's path names."""
        if not is_set_path(pattern):
            return self.below.matches(pattern)
        home, inside = _split(os.path.expanduser(pattern))
        found = [
            f"{each}/{shard.name}"
            for each in self._homes(home)
            for shard in self.manifest(each).shards
            if not inside or fnmatch.fnmatchcase(shard.name, inside)
        ]
        if not found:
            msg = f"ShardSet: {pattern!r} must name shards of a set; found none; check the path"
            raise SourceNotFoundError(msg)
        return found

    def stamp(self, path: str) -> Stamp:
        """What the file is now, which has the size that the manifest says."""
        if striped := self._striped(path):
            return _stamp(*striped)
        real, size = self._real(path)
        with _there(path, real):
            return _sized(path, real, size, self.below.stamp(real))

    def open(self, path: str, stop: threading.Event | None = None) -> Opened:
        """The file; see `storage.contract.Store`. Raises DataLostError where it is not as long as the manifest says."""
        if striped := self._striped(path):
            home, layout, parts = striped
            if len(parts) > 1:
                return StripedFile(_split(path)[0], home, layout, parts, stop)
            targets = [layout.folder(k, home) for k in range(len(layout.targets))]
            held = LocalFile(open_part(targets[parts[0].target], parts[0]))
            return TargetFile(held, parts[0].target, StorageMeter(_split(path)[0], targets))
        real, size = self._real(path)
        with _there(path, real):
            file = self.below.open(real, stop)
        try:
            _sized(path, real, size, file.stamp())
        except DataLostError:
            file.close()
            raise
        return file

    def fill(
        self,
        file_of: Callable[[int], Opened],
        files: Sequence[int],
        views: Sequence[memoryview],
        at: Sequence[int],
        stop: threading.Event,
    ) -> list[int]:
        """From all targets at once, or from the one that has the shard; else as the store below does it."""
        if self._plain:
            return self.below.fill(file_of, files, views, at, stop)
        return fill_striped(file_of, files, views, at, stop, self.most_open)

    @property
    def _plain(self) -> bool:
        """Whether none of the sets is striped."""
        return all(found.layout is None for found, _ in list(self._sets.values()))

    def manifest(self, home: str) -> Manifest:
        """The manifest of a set, read once."""
        return self._held(home)[0]

    def index_sha256(self, path: str) -> str | None:
        """The SHA-256 of a shard's index, where it is a shard of a set."""
        return self._shard(path)[2].index_sha256 if _INSIDE in path else None

    def replay(self, patterns: Sequence[str]) -> Mapping[str, Any] | None:
        """Which offsets of a topic the samples had, where `patterns` are one whole set that has a topic's."""
        if len(patterns) != 1 or not patterns[0].endswith(SUFFIX) or glob.has_magic(patterns[0]):
            return None
        return self.manifest(os.path.expanduser(patterns[0])).replay

    def _homes(self, pattern: str) -> list[str]:
        """The sets that a pattern names."""
        return sorted(glob.glob(pattern)) if glob.has_magic(pattern) and not os.path.exists(pattern) else [pattern]

    def _loaded(self, home: str) -> Manifest:
        return load_manifest(home)

    def _held(self, home: str) -> tuple[Manifest, dict[str, int]]:
        if home not in self._sets:
            found = self._loaded(home)
            self._sets[home] = found, {shard.name: number for number, shard in enumerate(found.shards)}
        return self._sets[home]

    def _shard(self, path: str) -> tuple[Manifest, int, Shard]:
        home, name = _split(path)
        manifest, numbers = self._held(home)
        if name not in numbers:
            msg = f"{path}: no such shard in the set; check the path or the pattern"
            raise SourceNotFoundError(msg)
        return manifest, numbers[name], manifest.shards[numbers[name]]

    def _striped(self, path: str) -> tuple[str, Layout, tuple[Part, ...]] | None:
        """Folder of the manifest, layout and parts of a shard that lies on targets."""
        if _INSIDE not in path or path.endswith(INDEX):
            return None
        manifest, number, _ = self._shard(path)
        if manifest.layout is None:
            return None
        return os.path.dirname(os.path.abspath(_split(path)[0])), manifest.layout, manifest.parts(number)

    def _real(self, path: str) -> tuple[str, int | None]:
        """Where a file lies, and its bytes where a manifest says so."""
        if _INSIDE not in path:
            return path, None
        home, name = _split(path)
        shard = self._shard(path.removesuffix(INDEX))[2]
        return os.path.join(os.path.dirname(home), name), shard.index_size if path.endswith(INDEX) else shard.size


def _split(path: str) -> tuple[str, str]:
    """The path of a manifest, and what comes behind it."""
    if path.endswith(SUFFIX):
        return path, ""
    home, _, inside = path.partition(_INSIDE)
    return home + SUFFIX, inside


def _stamp(home: str, layout: Layout, parts: Sequence[Part]) -> Stamp:
    """What the parts of a shard are now, as one. Raises DataLostError, SourceDeniedError as opening them does."""
    check_parts(home, layout, parts)
    return stamp_of([os.stat(os.path.join(layout.folder(each.target, home), each.file)) for each in parts])


@contextmanager
def _there(path: str, real: str) -> Iterator[None]:
    """A file that a manifest names and that is not there is lost; any other is not found."""
    try:
        yield
    except SourceNotFoundError as error:
        if path == real:
            raise
        msg = f"{path}: the manifest names it, and {real} is not there; fetch it again, or pack the set again"
        raise DataLostError(msg) from error


def _sized(path: str, real: str, size: int | None, stamp: Stamp) -> Stamp:
    if size is not None and stamp.size != size:
        msg = f"{path}: the manifest says {size} bytes; {real} has {stamp.size}; fetch it again, or pack the set again"
        raise DataLostError(msg)
    return stamp
