"""Which files a user's patterns name, and what to call them."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence

from dali_feed.errors import ConfigError, SourceNotFoundError
from dali_feed.storage.signed import shown

__all__ = ["INDEXES", "braces", "matches", "unique_names"]

INDEXES = (".dfidx", ".idx")  # beside the shards: ours, and those of other tools

_BRACE = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")


def matches(pattern: str, told: str = "ShardSet", files: str = "*.tar") -> list[str]:
    """The files that one pattern names, sorted. Errors begin with `told`; of a folder `files` are the ones to name."""
    if "://" in pattern or pattern.startswith("pipe:"):
        msg = f"{told}: shards must be files or addresses such as s3://bucket/a.tar; found {pattern!r}; name those"
        raise ConfigError(msg)
    found = []
    for name in braces(os.path.expanduser(pattern), told):
        some = [name] if os.path.exists(name) else glob.glob(name, recursive=True)
        some = [path for path in some if not path.endswith(INDEXES)]
        if not some:
            what = "file" if name != pattern else "file or match"
            msg = f"{told}: {pattern!r} must name files that are there; found no {what} {name!r}; check the path"
            raise SourceNotFoundError(msg)
        if os.path.isdir(name):
            msg = f"{told}: shards are files; found the folder {name!r}; write {os.path.join(name, files)!r}"
            raise ConfigError(msg)
        found += some
    return sorted(found)


def braces(pattern: str, told: str = "ShardSet") -> list[str]:
    """`a-{00..02}.tar` and `{a,b}.tar`, spelled out."""
    brace = _BRACE.search(pattern)
    if brace is None or os.path.exists(pattern):
        return [pattern]
    span = _RANGE.fullmatch(brace[1])
    if span:
        width = len(span[1]) if span[1].startswith("0") or len(span[1]) == len(span[2]) else 0
        parts = [f"{n:0{width}d}" for n in range(int(span[1]), int(span[2]) + 1)]
        if not parts:
            msg = f"{told}: a range must ascend; found {brace[0]} in {shown(pattern)!r}; swap its ends"
            raise ConfigError(msg)
    else:
        parts = brace[1].split(",")
    head, tail = pattern[: brace.start()], pattern[brace.end() :]
    return [head + part + rest for part in parts for rest in braces(tail, told)]


def unique_names(paths: Sequence[str]) -> tuple[str, ...]:
    """Basenames; where those are equal, as many folders before them as tell them apart."""
    parts = [(p.partition("://")[2] if "://" in p else os.path.abspath(p)[1:]).split("/") for p in paths]
    depth = 1
    while True:
        names = ["/".join(p[-depth:]) for p in parts]
        if len(set(names)) == len(names):
            return tuple(names)
        depth += 1
