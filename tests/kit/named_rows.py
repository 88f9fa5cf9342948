"""What the rows of some sources are called in a cache on a disk. As a script, without torch: `named_rows.py FOLDER`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kit.by_hand import write_new
from kit.images import jpeg
from kit.member_shards import shards
from kit.record_files import make

from dali_feed.columns import Image, JsonValue
from dali_feed.columns.columns import Columns
from dali_feed.external_sources import FileList
from dali_feed.feed.disk_rows import key_of


def _files(folder: Path) -> FileList:
    for n in range(4):
        write_new(folder / f"{n}.jpg", jpeg(n))
    return FileList([folder / f"{n}.jpg" for n in range(4)], [0, 1, 2, 3])


SOURCES: dict[str, Callable[[Path], Any]] = {
    "shards": shards,
    "files": _files,
    "mds": lambda folder: make("mds", folder),
    "tfrecord": lambda folder: make("tfrecord", folder),
    "columns": shards,
}


def columns_of(name: str, transform: Any = None) -> dict[str, Any] | None:
    """The columns that are read of a source; None: those that it says itself."""
    return {"image": Image("jpg", transform), "n": JsonValue("json")} if name == "columns" else None


def called(source: Any, columns: dict[str, Any] | None) -> str:
    """The name of its rows."""
    return key_of(source, Columns(source, columns).members, source.snapshot().fingerprint, ())


if __name__ == "__main__":
    found = {name: called(made(Path(sys.argv[1])), columns_of(name)) for name, made in SOURCES.items()}
    sys.stdout.write(json.dumps(found))
