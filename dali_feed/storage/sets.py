"""Shards of sets, and which store a path is of.

`/data/imagenet.dfset/imagenet-000000.tar` is the file beside the manifest, mounted or behind an address, or its parts
on targets.

The law: what a manifest names is there, as long as it was, with the index that it names, or reading it is an error that
names target and file.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from dali_feed.errors import ConfigError, DataLostError, SourceNotFoundError
from dali_feed.records.gauges import StorageMeter
from dali_feed.storage.manifest import MOST, SUFFIX, Manifest, Shard, load_manifest, parsed
from dali_feed.storage.paths import braces
from dali_feed.storage.store import LOCAL, File, FileReads, Stamp, Store, read_whole
from dali_feed.storage.striping import Layout, StripedFile, StripePart, check_parts, stamp_of_parts

INDEX = ".dfidx"
_INSIDE = SUFFIX + "/"


def store_for(patterns: Sequence[str], options: Mapping[str, Any] | None = None) -> Store:
    """The store of all these patterns; ConfigError where they are of several. `options` are of a remote one."""
    if not isinstance(options, Mapping | None):
        what = f"found a {type(options).__name__}"  # whose contents may be secret
        raise ConfigError(f"ShardSet: storage_options must be a mapping of options of obstore's; {what}")
    remote = [pattern for pattern in patterns if "://" in pattern and not pattern.startswith("pipe:")]
    sets = any(map(is_set_path, patterns))
    if not remote:
        if options:
            msg = (
                "ShardSet: storage_options are for addresses such as s3://bucket/train.tar; found files; leave them out"
            )
            raise ConfigError(msg)
        return SetStore() if sets else LOCAL
    from dali_feed.storage.remote import RemoteStore, check_address

    kinds = {check_address(pattern) if "://" in pattern else "files" for pattern in patterns}
    if len(kinds) > 1:
        msg = f"ShardSet: all shards must be of one store; found {', '.join(sorted(kinds))}; make a ShardSet of each"
        raise ConfigError(msg)
    store = RemoteStore(remote[0], dict(options or {}))
    return SetStore(store) if sets else store


def is_set_path(pattern: str) -> bool:
    """Whether a path is of a set, or of what lies in one."""
    return pattern.endswith(SUFFIX) or _INSIDE in pattern


@dataclass(frozen=True)
class SetStore:
    """Files of sets by their manifests; other paths as the store below has them.

    below  how the files that are not striped are read
    """

    below: Store = LOCAL
    _sets: dict[str, tuple[Manifest, dict[str, int]]] = field(default_factory=dict, repr=False, compare=False)

    def __reduce__(self) -> Any:
        return type(self), (self.below,)  # another process looks at its own files

    @property
    def meter(self) -> StorageMeter | None:
        """See `storage.store.Store`. None of striped sets, each of whose files has its own."""
        return self.below.meter if all(each.layout is None for each, _ in list(self._sets.values())) else None

    def metered(self) -> SetStore:
        """The same, manifests too, for one reader that counts its own reads."""
        return type(self)(self.below.metered(), self._sets)

    @property
    def random_access(self) -> bool:
        """Whether a single record costs little."""
        return self.below.random_access

    @property
    def most_open(self) -> int:
        """Shards that may be open at once: fewer where each is several files."""
        layouts = [each.layout for each, _ in list(self._sets.values())]
        return max(8, self.below.most_open // max((each.stripe_count for each in layouts if each), default=1))

    def matches(self, pattern: str, subject: str = "ShardSet") -> list[str]:
        """The shards of a set, in its order, or those of them that a pattern behind the set's path names."""
        if not is_set_path(pattern):
            return self.below.matches(pattern, subject)
        home, inside = _split(os.path.expanduser(pattern))
        shards = [
            f"{each}/{shard.name}"
            for each in _homes(home)
            for shard in self.manifest(each).shards
            if not inside or any(fnmatch.fnmatchcase(shard.name, each) for each in braces(inside, subject))
        ]
        if not shards:
            msg = f"{subject}: {pattern!r} must name shards of a set; found none; check the path"
            raise SourceNotFoundError(msg)
        return shards

    def stamp(self, path: str) -> Stamp:
        """What the file is now, which has the size that the manifest says."""
        if striped := self._striped(path):
            home, layout, parts = striped
            check_parts(home, layout, parts)
            files = [os.path.join(layout.folder(each.target, home), each.file) for each in parts]
            return stamp_of_parts([os.stat(file) for file in files])
        real, size = self._real(path)
        with _there(path, real):
            return _sized(path, real, size, self.below.stamp(real))

    def open(self, path: str, stop: threading.Event | None = None) -> File:
        """The file; see `storage.store.Store`. Raises DataLostError where it is not as long as the manifest says."""
        if striped := self._striped(path):
            return StripedFile(_split(path)[0], *striped, stop)
        real, size = self._real(path)
        with _there(path, real):
            file = self.below.open(real, stop)
        try:
            _sized(path, real, size, file.stamp())
        except DataLostError:
            file.close()
            raise
        return file

    def fill(self, reads: FileReads) -> list[int]:
        """As the store below does it, from all targets at once where a shard lies on several."""
        return self.below.fill(reads)

    def manifest(self, home: str) -> Manifest:
        """The manifest of a set, read once."""
        return self._set(home)[0]

    def index_sha256(self, path: str) -> str | None:
        """The SHA-256 of a shard's index, where it is a shard of a set."""
        return self._shard(path)[2].index_sha256 if _INSIDE in path else None

    def replay(self, patterns: Sequence[str]) -> Mapping[str, Any] | None:
        """Which offsets of a topic the samples had, where `patterns` are one whole set that has a topic's."""
        if len(patterns) != 1 or not patterns[0].endswith(SUFFIX):
            return None
        home = os.path.expanduser(patterns[0])
        return self.manifest(home).replay if _homes(home) == [home] else None

    def _set(self, home: str) -> tuple[Manifest, dict[str, int]]:
        if home not in self._sets:
            manifest = self._remote(home) if "://" in home else load_manifest(home)
            self._sets[home] = manifest, {shard.name: number for number, shard in enumerate(manifest.shards)}
        return self._sets[home]

    def _remote(self, home: str) -> Manifest:
        try:
            whole = read_whole(self.below.open(home), MOST)
        except ValueError as error:
            msg = f"{home}: a manifest must be what `dali-feed pack` wrote; found that {error}; fetch it again"
            raise DataLostError(msg) from error
        except SourceNotFoundError as error:
            msg = f"{home}: no such set; check the address, or copy the manifest too, last of all"
            raise SourceNotFoundError(msg) from error
        manifest = parsed(home, whole)
        if manifest.layout is not None:
            msg = (
                f"{home}: a remote set must be of whole files; found one striped over {len(manifest.layout.targets)}"
                " targets; pack it again without targets (dali-feed pack SET OUT), and copy that"
            )
            raise ConfigError(msg)
        return manifest

    def _shard(self, path: str) -> tuple[Manifest, int, Shard]:
        home, name = _split(path)
        manifest, numbers = self._set(home)
        if name not in numbers:
            msg = f"{path}: no such shard in the set; check the path or the pattern"
            raise SourceNotFoundError(msg)
        return manifest, numbers[name], manifest.shards[numbers[name]]

    def _striped(self, path: str) -> tuple[str, Layout, tuple[StripePart, ...]] | None:
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


def _homes(pattern: str) -> list[str]:
    """The sets that a pattern names."""
    if "://" not in pattern:
        return [
            home
            for each in braces(pattern)
            for home in (sorted(glob.glob(each)) if glob.has_magic(each) and not os.path.exists(each) else [each])
        ]
    if any(sign in pattern for sign in "*["):
        msg = f"ShardSet: a remote set is named by its address; found the pattern {pattern!r}; write a range, "
        raise ConfigError(msg + "{0..9}, or name each")
    return braces(pattern)


def _split(path: str) -> tuple[str, str]:
    """The path of a manifest, and what comes behind it."""
    if path.endswith(SUFFIX):
        return path, ""
    home, _, inside = path.partition(_INSIDE)
    return home + SUFFIX, inside


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
