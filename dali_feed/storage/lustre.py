"""Lustre, which spreads files over its servers by itself: whether a file is there, and how those of a folder will lie.

The law: a folder has the layout that was asked for, as Lustre itself tells it back, or there is an error. Lustre's tool
`lfs` sets and tells it; a new file or folder has the layout of the folder it is made in. Reading asks no tool.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import shutil
import subprocess
from dataclasses import dataclass

from dali_feed.errors import ConfigError, SourceError

AHEAD_BYTES = 64 << 20  # of a file that a reader asks for at once: eight servers with 8 MiB each
MAGIC = 0x0BD00BD0  # `f_type` of Lustre, from its own lustre_user.h
UNIT = 64 << 10  # stripes are a multiple of it
_SECONDS = 60  # that `lfs` may take
_NUMBERS = re.compile(r"\b(?:lmm_)?stripe_(count|size):\s+(-?\d+)")


@dataclass(frozen=True, slots=True)
class LustreLayout:
    """How a file is laid out: over so many of Lustre's targets (-1: all), in stripes of so many bytes."""

    count: int
    size: int


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def magic_of(where: str | int) -> int:
    """Which file system a path or an open file is on, as `statfs` says. Raises OSError."""
    status = ctypes.create_string_buffer(512)  # its first field is a long, and the whole is far shorter
    failed = _libc().fstatfs(where, status) if isinstance(where, int) else _libc().statfs(os.fsencode(where), status)
    if failed:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), where)
    return ctypes.c_long.from_buffer(status).value & 0xFFFFFFFF


def set_layout(folder: str, layout: LustreLayout) -> None:
    """Have new files in a folder, which is made where there is none, laid out so. ConfigError where that cannot be."""
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
    now = parsed(_lfs("getstripe", "-d", folder), folder)
    if now != layout:
        msg = f"{folder}: must have {layout} once lfs setstripe has set it; found {now}; ask who runs this Lustre"
        raise ConfigError(msg)


def parsed(text: str, path: str) -> LustreLayout:
    """What `lfs getstripe` said of a file or folder; of a layout in several components, the first of them.

    Raises ConfigError where it has no count or no size.
    """
    numbers: dict[str, int] = {}
    for name, number in _NUMBERS.findall(text):
        numbers.setdefault(name, int(number))
    if len(numbers) < 2:
        msg = f"{path}: lfs getstripe must print stripe_count and stripe_size; found {text.strip()[:200]!r}"
        raise ConfigError(msg)
    return LustreLayout(numbers["count"], numbers["size"])


def _lfs(*command: str) -> str:
    line, tool = f"lfs {' '.join(command)}", shutil.which("lfs")
    if tool is None:
        msg = f"{line}: Lustre's tool must be on PATH; found none; install Lustre's client utilities"
        raise ConfigError(msg)
    try:
        done = subprocess.run(  # noqa: S603  a list of arguments, no shell
            [tool, *command], capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False
        )
    except OSError as error:
        msg = f"{line}: Lustre's tool must be a program; {tool} failed: {error.strerror}; install it again"
        raise ConfigError(msg) from error
    except subprocess.TimeoutExpired as error:
        msg = f"{line}: must end in time; it took more than {_SECONDS} seconds; check the mount"
        raise SourceError(msg) from error
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "no word").splitlines()[0]
        msg = f"{line}: must end with 0; found {done.returncode}: {said}"
        raise ConfigError(msg)
    return done.stdout
