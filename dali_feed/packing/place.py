"""Where what is written goes: an OUT that can be no place is said before a record is read."""

from __future__ import annotations

import os
from pathlib import Path

from dali_feed.errors import ConfigError

__all__ = ["folder_at", "place"]


def place(out: str | os.PathLike[str]) -> tuple[Path, str]:
    """The folder of a set, and its name. ConfigError where it can be no set's."""
    path = folder_at(out, "a folder, or FOLDER/NAME.dfset")
    if path.suffix == ".dfset":
        if path.is_dir():
            msg = f"out: {path} must be a set's manifest, a file; found a folder; give {path}/NAME.dfset"
            raise ConfigError(msg)
        return path.parent, path.stem
    if not path.name or path.suffix == ".tar":
        msg = f"out: must be a folder, or FOLDER/NAME.dfset; found {os.fspath(out)!r}; name the set, not a shard"
        raise ConfigError(msg)
    return path, path.name


def folder_at(out: str | os.PathLike[str], rule: str = "a folder") -> Path:
    """The absolute path of a place to write at; links stay as they are.

    Raises ConfigError where it has no name, which `os.path` takes for the current folder, and where a file or a folder
    that cannot be written stands in its way.
    """
    told = os.fspath(out)
    if not told.strip():
        msg = f"out: must be {rule}; found {told!r}, which has no name; for the current folder give '.'"
        raise ConfigError(msg)
    if "://" in told:
        msg = f"out: must be {rule} of this machine; found {told!r}; write to a disk or a mount, and copy it from there"
        raise ConfigError(msg)
    path = Path(os.path.abspath(told))  # noqa: PTH100  links stay as they are
    there = path.parent if path.suffix == ".dfset" else path
    while not os.path.lexists(there):
        there = there.parent
    if not there.is_dir():
        what = "a file" if there.exists() else "a broken link"
        msg = f"out: must be {rule}; found {told!r}, where {there} is {what}; give another name, or move it away"
        raise ConfigError(msg)
    if not os.access(there, os.W_OK | os.X_OK):
        msg = (
            f"out: must be {rule} that can be written; found {told!r}; {there} cannot be written; check its "
            "permissions and owner"
        )
        raise ConfigError(msg)
    return path
