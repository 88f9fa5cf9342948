"""Shards of sets: `/data/imagenet.dfset/imagenet-000000.tar` is the file beside the manifest that it names.

The law: what a manifest names is there, with the bytes that it had, or reading it is an error that names the file.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dali_feed.errors import DataLostError, SourceNotFoundError
from dali_feed.storage.contract import Opened
from dali_feed.storage.local import LOCAL, LocalFile
from dali_feed.storage.manifest import SUFFIX, Manifest, Shard, load_manifest
from dali_feed.storage.stamp import Stamp

__all__ = ["SetStore", "is_set_path"]

INDEX = ".dfidx"
_INSIDE = SUFFIX + "/"


def is_set_path(pattern: str) -> bool:
    """Whether a path is of a set, or of what lies in one."""
    return pattern.endswith(SUFFIX) or _INSIDE in pattern


@dataclass(frozen=True)
class SetStore:
    """Files of sets by their manifests; other paths as on any mounted file system."""

    most_open: int = LOCAL.most_open
    random_access: bool = True
    _sets: dict[str, tuple[Manifest, dict[str, Shard]]] = field(default_factory=dict, repr=False, compare=False)

    def __reduce__(self) -> Any:
        return SetStore, ()  # another process looks at its own files

    def matches(self, pattern: str) -> list[str]:
        """The shards of a set, in its order, or those of them that a pattern behind the set's path names."""
        if not is_set_path(pattern):
            return LOCAL.matches(pattern)
        home, inside = _split(os.path.expanduser(pattern))
        homes = sorted(glob.glob(home)) if glob.has_magic(home) and not os.path.exists(home) else [home]
        found = [
            f"{each}/{shard.name}"
            for each in homes
            for shard in self.manifest(each).shards
            if not inside or fnmatch.fnmatchcase(shard.name, inside)
        ]
        if not found:
            msg = f"ShardSet: {pattern!r} must name shards of a set; found none; check the path"
            raise SourceNotFoundError(msg)
        return found

    def stamp(self, path: str) -> Stamp:
        """What the file is now, which has the size that the manifest says."""
        real, size = self._real(path)
        return _sized(path, real, size, LOCAL.stamp(real))

    def open(self, path: str, stop: threading.Event | None = None) -> LocalFile:
        """The file; see `storage.contract.Store`. Raises DataLostError where it is not as long as the manifest says."""
        real, size = self._real(path)
        file = LOCAL.open(real, stop)
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
        """As on any mounted file system."""
        return LOCAL.fill(file_of, files, views, at, stop)

    def manifest(self, home: str) -> Manifest:
        """The manifest of a set, read once."""
        return self._held(home)[0]

    def index_sha256(self, path: str) -> str | None:
        """The SHA-256 of a shard's index, where it is a shard of a set."""
        return self._shard(path).index_sha256 if _INSIDE in path else None

    def replay(self, patterns: Sequence[str]) -> Mapping[str, Any] | None:
        """Which offsets of a topic the samples had, where `patterns` are one whole set that has a topic's."""
        if len(patterns) != 1 or not patterns[0].endswith(SUFFIX) or glob.has_magic(patterns[0]):
            return None
        return self.manifest(os.path.expanduser(patterns[0])).replay

    def _held(self, home: str) -> tuple[Manifest, dict[str, Shard]]:
        if home not in self._sets:
            found = load_manifest(home)
            self._sets[home] = found, {shard.name: shard for shard in found.shards}
        return self._sets[home]

    def _shard(self, path: str) -> Shard:
        home, name = _split(path)
        shard = self._held(home)[1].get(name)
        if shard is None:
            msg = f"{path}: no such shard in the set; check the path or the pattern"
            raise SourceNotFoundError(msg)
        return shard

    def _real(self, path: str) -> tuple[str, int | None]:
        """Where a file lies, and its bytes where a manifest says so."""
        if _INSIDE not in path:
            return path, None
        home, name = _split(path)
        shard = self._shard(path.removesuffix(INDEX))
        return os.path.join(os.path.dirname(home), name), shard.index_size if path.endswith(INDEX) else shard.size


def _split(path: str) -> tuple[str, str]:
    """The path of a manifest, and what comes behind it."""
    if path.endswith(SUFFIX):
        return path, ""
    home, _, inside = path.partition(_INSIDE)
    return home + SUFFIX, inside


def _sized(path: str, real: str, size: int | None, stamp: Stamp) -> Stamp:
    if size is not None and stamp.size != size:
        msg = f"{path}: the manifest says {size} bytes; {real} has {stamp.size}; fetch it again, or pack the set again"
        raise DataLostError(msg)
    return stamp
