"""Tar shards whose samples have many members."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
from kit.images import jpeg

from dali_feed.external_sources import ShardSet

__all__ = ["shards", "write_new"]


def write_new(path: Path, data: bytes) -> None:
    """Write a file, unless it is there: one that is written again is another file."""
    if not path.exists() or path.read_bytes() != data:
        path.write_bytes(data)


def shards(folder: Path, samples: int = 24, broken: dict[str, Any] | None = None) -> ShardSet:
    """Two shards; sample n has an image, its number as text, JSON and floats. `broken`: "n.suffix" -> bytes or None."""
    for shard in range(2):
        whole_file = io.BytesIO()
        with tarfile.open(fileobj=whole_file, mode="w") as tar:
            for n in range(shard, samples, 2):
                members = {
                    "jpg": jpeg(n % 16),
                    "txt": f"sample {n} é".encode(),
                    "json": json.dumps({"n": n, "list": [n, n]}).encode(),
                    "cls": str(n).encode(),
                    "f32": np.arange(n, n + 6, dtype="<f4").tobytes(),
                }
                for suffix, whole in members.items():
                    data = (broken or {}).get(f"{n}.{suffix}", whole)
                    if data is not None:
                        info = tarfile.TarInfo(f"{n:05}.{suffix}")
                        info.size = len(data)
                        tar.addfile(info, io.BytesIO(data))
        write_new(folder / f"{shard}.tar", whole_file.getvalue())
    return ShardSet(str(folder / "*.tar"), index_dir=folder)
