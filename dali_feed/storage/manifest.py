"""The manifest of a set: `NAME.dfset`, a line of JSON that says which shards were packed together, and what they are.

The law: a manifest is the bytes that were written, or it is an error; it is written last, so where there is one the set
is whole. A name in it never leaves its folder, nor a part its target.

    {"dfset": 1, "sha256": of what follows, "set": {"shards": [...], "made": {...}, "replay": {...} or null}}

The shards of a striped set lie on targets, and "set" has one thing more, from which the files and their sizes follow:

    "layout": {"stripe_count": 4, "stripe_size": 1048576, "targets": ["/mnt/a", ...]}
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dali_feed.errors import ConfigError, DataLostError, SourceDeniedError, SourceNotFoundError
from dali_feed.storage.striping import Layout, StripePart

SUFFIX = ".dfset"
VERSION = 1
MOST = 256 << 20  # bytes of a manifest: a million shards


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard of a set: its file's name, bytes, samples and SHA-256, and bytes and SHA-256 of its index."""

    name: str
    size: int
    samples: int
    sha256: str
    index_size: int
    index_sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a manifest says.

    made    of what and how the set was packed, and what became of the records: plain JSON
    replay  of a set that holds a topic's records, which offsets those had: plain JSON
    layout  which folders the shards lie in; None: each is one file beside the manifest
    """

    shards: tuple[Shard, ...]
    made: Mapping[str, Any]
    replay: Mapping[str, Any] | None = None
    layout: Layout | None = None

    def parts(self, number: int) -> tuple[StripePart, ...]:
        """The files of a shard on their targets; () where it is one file beside the manifest."""
        shard = self.shards[number]
        return () if self.layout is None else self.layout.parts(number, shard.name, shard.size)


def manifest_bytes(manifest: Manifest) -> bytes:
    """The whole file: equal for equal manifests."""
    content: dict[str, Any] = {
        "shards": [asdict(shard) for shard in manifest.shards],
        "made": dict(manifest.made),
        "replay": None if manifest.replay is None else dict(manifest.replay),
    }
    if manifest.layout is not None:
        content["layout"] = asdict(manifest.layout)
    text = json.dumps(content, sort_keys=True)
    return f'{{"dfset": {VERSION}, "sha256": "{hashlib.sha256(text.encode()).hexdigest()}", "set": {text}}}\n'.encode()


def load_manifest(path: str) -> Manifest:
    """The manifest in a file. DataLostError where it is damaged, cut off, or none."""
    try:
        with open(path, "rb") as file:
            whole = file.read(MOST + 1)
    except FileNotFoundError as error:
        msg = f"{path}: no such set; check the path, or let `dali-feed pack` finish, which writes it last"
        raise SourceNotFoundError(msg) from error
    except OSError as error:
        msg = f"{path}: a manifest must be a file that can be read; found {error.strerror}"
        raise SourceDeniedError(msg) from error
    return parsed(path, whole)


def parsed(path: str, whole: bytes) -> Manifest:
    """The manifest in these bytes, which lie at `path`. DataLostError where they are none."""
    try:
        if len(whole) > MOST:
            msg = f"more than {MOST:,} bytes"
            raise ValueError(msg)
        content = json.loads(whole)
        version, content = content["dfset"], content["set"]
        shards = tuple(Shard(**each) for each in content["shards"])
        manifest = Manifest(shards, content["made"], content["replay"], _layout(content))
        fits = version == VERSION and bool(shards) and all(map(_is_shard, shards)) and manifest_bytes(manifest) == whole
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        what = f"{type(error).__name__}: {error}"
        msg = f"{path}: a manifest must be what `dali-feed pack` wrote; found {what}; fetch it again"
        raise DataLostError(msg) from error
    if not fits:
        what = f"version {version!r}" if version != VERSION else "other bytes than its SHA-256 says"
        msg = f"{path}: a manifest must be what `dali-feed pack` wrote; found {what}; fetch it again"
        raise DataLostError(msg)
    return manifest


def load_plain(path: str) -> Manifest:
    """The manifest of a set whose shards are files beside it. ConfigError where they are not; see `load_manifest`."""
    manifest = load_manifest(path)
    if manifest.layout is not None:
        where = ", ".join(manifest.layout.targets)
        msg = (
            f"{path}: must be a set of whole files; found a set striped over {where}; pack it again without targets: "
            f"dali-feed pack {path} OUT"
        )
        raise ConfigError(msg)
    return manifest


def _layout(content: Mapping[str, Any]) -> Layout | None:
    if "layout" not in content:
        return None
    layout = content["layout"]
    return Layout(**{**layout, "targets": tuple(layout["targets"])})


def _is_shard(shard: Shard) -> bool:
    texts = all(isinstance(text, str) for text in (shard.name, shard.sha256, shard.index_sha256))
    counts = all(isinstance(n, int) and n >= 0 for n in (shard.size, shard.samples, shard.index_size))
    return texts and counts and bool(shard.name) and "/" not in shard.name and shard.name not in (".", "..")
