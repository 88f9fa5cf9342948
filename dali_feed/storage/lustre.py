"""Folders on Lustre, which spreads files over its servers by itself: how the files made in one will be laid out.

The law: a folder has the layout that was asked for, as Lustre itself tells it back, or there is an error. Lustre's tool
`lfs` sets and tells it; a new file or folder has the layout of the folder it is made in.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from dataclasses import dataclass

from dali_feed.errors import ConfigError, SourceError

__all__ = ["MAGIC", "LustreLayout", "layout_of", "magic_of", "parsed", "set_layout", "widest"]

MAGIC = 0x0BD00BD0  # `f_type` of Lustre, from its own lustre_user.h
UNIT = 64 << 10  # stripes are a multiple of it
_SECONDS = 60  # that `lfs` may take
_TOLD = re.compile(r"\b(?:lmm_)?stripe_(count|size):\s+(-?\d+)")


@dataclass(frozen=True, slots=True)
class LustreLayout:
    """How a file is laid out: over so many of Lustre's targets (-1: all), in stripes of so many bytes."""

    count: int
    size: int


def magic_of(path: str) -> int:
    """What `statfs` says which file system it is. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    found = ctypes.create_string_buffer(512)  # its first field is a long, and the whole is far shorter
    if libc.statfs(os.fsencode(path), found):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    return ctypes.c_long.from_buffer(found).value & 0xFFFFFFFF


def set_layout(folder: str, layout: LustreLayout) -> None:
    """Have new files in a folder, which is made where there is none, laid out so.

    Raises:
        ConfigError: it is on no Lustre, stripes cannot be so large, `lfs` is missing or refuses.
        SourceError: Lustre does not answer.
    """
    if layout.size < UNIT or layout.size % UNIT:
        msg = f"--stripe-size: must be a multiple of {UNIT} bytes on Lustre; found {layout.size}"
        raise ConfigError(msg)
    there = os.path.abspath(folder)
    while not os.path.exists(there):
        there = os.path.dirname(there)
    if magic_of(there) != MAGIC:
        msg = (
            f"--stripe-count, --stripe-size: are for --targets, or for a folder on Lustre; found {folder}, which "
            "is not on Lustre; name the folders with --targets"
        )
        raise ConfigError(msg)
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        rule = "must be a folder that can be written to"
        msg = f"{folder}: {rule}; found {error.strerror}; check its permissions and owner"
        raise ConfigError(msg) from error
    _lfs("setstripe", "-c", str(layout.count), "-S", str(layout.size), folder)
    found = parsed(_lfs("getstripe", "-d", folder), folder)
    if found != layout:
        msg = f"{folder}: must have {layout} once lfs setstripe has set it; found {found}; ask who runs this Lustre"
        raise ConfigError(msg)


def layout_of(file: str) -> LustreLayout:
    """How a file on Lustre is laid out; of one in several components, that over most targets.

    Raises ConfigError, SourceError as `set_layout` does where `lfs` does not tell.
    """
    return widest(_lfs("getstripe", file), file)


def widest(told: str, path: str) -> LustreLayout:
    """What `lfs getstripe` said of a file: of several components the one over most targets. Raises as `parsed`."""
    first, numbers = parsed(told, path), {"count": list[int](), "size": list[int]()}
    for name, number in _TOLD.findall(told):
        numbers[name].append(int(number))
    found = [LustreLayout(count, size) for count, size in zip(numbers["count"], numbers["size"], strict=False)]
    return max([first, *found], key=lambda each: each.count)


def parsed(told: str, path: str) -> LustreLayout:
    """What `lfs getstripe` said of a file or folder; of a layout in several components, the first of them.

    Raises ConfigError where it has no count or no size.
    """
    found: dict[str, int] = {}
    for name, number in _TOLD.findall(told):
        found.setdefault(name, int(number))
    if len(found) < 2:
        msg = f"{path}: lfs getstripe must print stripe_count and stripe_size; found {told.strip()[:200]!r}"
        raise ConfigError(msg)
    return LustreLayout(found["count"], found["size"])


def _lfs(*command: str) -> str:
    told, tool = f"lfs {' '.join(command)}", shutil.which("lfs")
    if tool is None:
        msg = f"{told}: Lustre's tool must be on PATH; found none; install Lustre's client utilities"
        raise ConfigError(msg)
    try:
        done = subprocess.run(  # noqa: S603  a list of arguments, no shell
            [tool, *command], capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False
        )
    except OSError as error:
        msg = f"{told}: Lustre's tool must be a program; {tool} failed: {error.strerror}; install it again"
        raise ConfigError(msg) from error
    except subprocess.TimeoutExpired as error:
        msg = f"{told}: must end in time; it took more than {_SECONDS} seconds; check the mount"
        raise SourceError(msg) from error
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "no word").splitlines()[0]
        msg = f"{told}: must end with 0; found {done.returncode}: {said}"
        raise ConfigError(msg)
    return done.stdout
