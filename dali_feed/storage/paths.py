"""Which files a user's patterns name, what to call them, and what is shown of an address.

The law: what stands behind `?` in an address, as signed ones have it, is used to ask, and shown nowhere. An object is
called by its address without what signs it, so that messages, names, states and caches hold no signature, and are the
same when the address is signed anew.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
from collections.abc import Sequence
from urllib.parse import parse_qsl

from dali_feed.errors import ConfigError, SourceNotFoundError

INDEXES = (".dfidx", ".idx")  # beside the shards: ours, and those of other tools

MASK = "?***"
_QUERY = re.compile(r"(https?://[^\s'\"?]*)\?[^\s'\"]*")
_SIGNS = re.compile(
    r"x-(amz|goog|oss|cos|bce)-.*|awsaccesskeyid|googleaccessid|ossaccesskeyid|.*signature.*|expires|policy|key-pair-id"
    r"|s[eiprtv]|sig|spr|skoid|sktid|skt|ske|sks|skv|srt|.*(token|auth|secret|password|credential|key).*",
    re.IGNORECASE,
)
_SIGNS_OF_PATTERNS = re.compile(r"(\*\*/?|\*|\?|\[[^\]]+\])")
_BRACE = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")


def matches(pattern: str, subject: str = "ShardSet", files: str = "*.tar") -> list[str]:
    """The files that one pattern names, sorted; errors begin with `subject`, and of a folder tell to name `files`."""
    if "://" in pattern or pattern.startswith("pipe:"):
        msg = f"{subject}: shards must be files or addresses such as s3://bucket/a.tar; found {pattern!r}; name those"
        raise ConfigError(msg)
    paths = []
    for name in braces(os.path.expanduser(pattern), subject):
        some = [name] if os.path.exists(name) else glob.glob(name, recursive=True)
        some = [path for path in some if not path.endswith(INDEXES)]
        if not some:
            what = "file" if name != pattern else "file or match"
            msg = f"{subject}: {pattern!r} must name files that are there; found no {what} {name!r}; check the path"
            raise SourceNotFoundError(msg)
        if os.path.isdir(name):
            msg = f"{subject}: shards are files; found the folder {name!r}; write {os.path.join(name, files)!r}"
            raise ConfigError(msg)
        paths += some
    return sorted(paths)


def braces(pattern: str, subject: str = "ShardSet") -> list[str]:
    """`a-{00..02}.tar` and `{a,b}.tar`, spelled out."""
    brace = _BRACE.search(pattern)
    if brace is None or os.path.exists(pattern):
        return [pattern]
    span = _RANGE.fullmatch(brace[1])
    if span:
        width = len(span[1]) if span[1].startswith("0") or len(span[1]) == len(span[2]) else 0
        parts = [f"{n:0{width}d}" for n in range(int(span[1]), int(span[2]) + 1)]
        if not parts:
            msg = f"{subject}: a range must ascend; found {brace[0]} in {shown(pattern)!r}; swap its ends"
            raise ConfigError(msg)
    else:
        parts = brace[1].split(",")
    head, tail = pattern[: brace.start()], pattern[brace.end() :]
    return [head + part + rest for part in parts for rest in braces(tail, subject)]


def unique_names(paths: Sequence[str]) -> tuple[str, ...]:
    """Basenames; where those are equal, as many folders before them as tell them apart, or else all of each path."""
    parts = [(place.partition("://")[2] or place[1:]).split("/") for place in map(place_of, paths)]
    for depth in range(1, max(map(len, parts), default=0) + 1):
        names = tuple("/".join(part[-depth:]) for part in parts)
        if len(set(names)) == len(names):
            return names
    return tuple(paths)


def place_of(path: str) -> str:
    """What all spellings of one local path have in common; an address as it is."""
    return path if "://" in path else os.path.abspath(path)


def named_twice(paths: Sequence[str]) -> str | None:
    """The first path that an earlier one names too, in whichever spelling."""
    known: set[str] = set()
    for path in paths:
        place = place_of(path)
        if place in known:
            return path
        known.add(place)
    return None


def called(address: str) -> str:
    """What an object is called: its address with *** for the query, and a hash of what in it signs nothing."""
    where, sign, query = address.partition("?")
    if not sign:
        return address
    rest = sorted((k, v) for k, v in parse_qsl(query, keep_blank_values=True) if not _SIGNS.fullmatch(k))
    return where + MASK + (hashlib.sha256(repr(rest).encode()).hexdigest()[:12] if rest else "")


def shown(text: str) -> str:
    """A text of others with *** in the place of each query."""
    return _QUERY.sub(lambda match: match[1] + MASK, text)


def has_magic(name: str) -> bool:
    """Whether a name is a pattern."""
    return any(sign in name for sign in "*?[")


def pattern_of(key: str) -> re.Pattern[str]:
    """What names of objects a pattern fits: `*` and `?` stop at a slash, `**` does not."""
    plain = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    parts = [
        plain.get(part)
        or (part.replace("[!", "[^") if part.startswith("[") and part.endswith("]") else re.escape(part))
        for part in _SIGNS_OF_PATTERNS.split(key)
    ]
    return re.compile("".join(parts), re.DOTALL)
