"""Where indexes of files are kept: beside the file, else in the user's cache, or in a folder that was named."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from dali_feed.errors import SourceDeniedError
from dali_feed.storage.durable import user_cache
from dali_feed.storage.local import LOCAL
from dali_feed.storage.store import Store

__all__ = ["SUFFIX", "homes_of", "index_path", "keep"]

SUFFIX = ".dfidx"  # of our own: Energon keeps a train-0000.tar.idx
_log = logging.getLogger("dali_feed")


def index_path(path: str, folder: str | os.PathLike[str] | None) -> Path:
    """Where the index of a shard lies in `folder` (None: the user's cache)."""
    whole = path if "://" in path else os.path.abspath(path)
    name = hashlib.sha256(whole.encode(errors="surrogateescape")).hexdigest()
    if folder is None:
        return user_cache() / "index" / f"{name}{SUFFIX}"
    return Path(folder, f"{os.path.basename(path)}-{name[:16]}{SUFFIX}")


def homes_of(path: str, index_dir: str | os.PathLike[str] | None, store: Store) -> list[Path]:
    """Where the index of a file may lie, the best place first."""
    own = index_path(path, index_dir)
    return [Path(path + SUFFIX), own] if index_dir is None and store is LOCAL else [own]


def keep(
    path: str, homes: Sequence[Path], write: Callable[[Path], None], index_dir: str | os.PathLike[str] | None
) -> None:
    """Have the index of a file written to the first of its homes that takes it.

    Where none does, a warning says that it is built at every start; SourceDeniedError where `index_dir` was given.
    """
    errors: list[OSError] = []
    for home in homes:
        try:
            write(home)
        except OSError as error:
            errors.append(error)
        else:
            return
    if index_dir is not None:
        msg = f"index_dir={os.fspath(index_dir)!r}: it must be a folder that can be written; found: {errors[0]}"
        raise SourceDeniedError(msg) from errors[0]
    _log.warning(
        "%s: its index cannot be saved (%s), so it is made again at every start; set index_dir", path, errors[-1]
    )
