"""Insides that contract/sources/test_array_shards.py needs not: they go with what they test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit.images import QUICK

from dali_feed import DataLoader
from dali_feed.external_sources import ArrayShards

ROWS = np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32)


def saved(folder: Path, rows: Any = ROWS, name: str = "rows.npy") -> str:
    """A `.npy` file of these rows."""
    np.save(folder / name, rows)
    return str(folder / name)


def made(kind: str, folder: Path, rows: Any = ROWS) -> ArrayShards:
    """The same rows: in two files with an empty one between, raw, in memory side by side, or with gaps, or mapped."""
    if kind == "files":
        for name, part in {"a": rows[:23], "b": rows[:0], "c": rows[23:]}.items():
            saved(folder, part, f"{name}.npy")
        return ArrayShards(folder / "*.npy")
    if kind == "raw":
        (folder / "rows.bin").write_bytes(rows.tobytes())
        return ArrayShards(folder / "rows.bin", rows.dtype, rows.shape[1:])
    if kind == "gaps":
        return ArrayShards(np.repeat(rows, 2, axis=0)[::2])
    return ArrayShards(np.load(saved(folder, rows), mmap_mode="r") if kind == "mapped" else [rows[:9], rows[9:]])


KINDS = ("files", "raw", "memory", "gaps", "mapped")


@pytest.mark.parametrize("kind", KINDS)
def test_a_loader_gives_tuples_of_rows_and_labels(tmp_path: Path, kind: str) -> None:
    """Without columns=, as torch's TensorDataset would: each row with its label, shuffled; alone without labels."""
    source = made(kind, tmp_path)
    source._label = np.arange(60)
    with DataLoader(source, 20, shuffle=True, device="cpu", tuning=QUICK) as loader:
        batches = list(loader)
    rows, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    assert sorted(labels.tolist()) == list(range(60)) != labels.tolist()
    assert np.array_equal(rows.numpy(), ROWS[labels.numpy()])
    with DataLoader(ArrayShards(ROWS[:, 0].copy()), 60, device="cpu", tuning=QUICK) as loader:
        ((numbers,),) = loader
    assert np.array_equal(numbers.numpy(), ROWS[:, 0])
