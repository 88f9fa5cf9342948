"""Tar shards whose samples have many members."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from kit.by_hand import tarred, write_new
from kit.images import jpeg

from dali_feed.external_sources import ShardSet


def shards(folder: Path, samples: int = 24, broken: dict[str, Any] | None = None) -> ShardSet:
    """Two shards; sample n has an image, its number as text, JSON and floats. `broken`: "n.suffix" -> bytes or None."""

    def members(n: int) -> dict[str, bytes]:
        whole: dict[str, Any] = {
            "jpg": jpeg(n % 16),
            "txt": f"sample {n} é".encode(),
            "json": json.dumps({"n": n, "list": [n, n]}).encode(),
            "cls": str(n).encode(),
            "f32": np.arange(n, n + 6, dtype="<f4").tobytes(),
        }
        found = {suffix: (broken or {}).get(f"{n}.{suffix}", data) for suffix, data in whole.items()}
        return {suffix: data for suffix, data in found.items() if data is not None}

    for shard in range(2):
        write_new(folder / f"{shard}.tar", tarred((f"{n:05}", members(n)) for n in range(shard, samples, 2)))
    return ShardSet(str(folder / "*.tar"), index_dir=folder)
