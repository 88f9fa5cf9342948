"""Arrays: rows of `.npy` files, of raw files and of arrays in memory, as samples and as NumPy has them."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit.blocks import Reads
from kit.images import QUICK
from kit.inside import Extents
from kit.resumes import assert_resumes_in_turn

from dali_feed import DataLoader, Shuffle
from dali_feed.columns import Array, Image, Number
from dali_feed.errors import (
    ConfigError,
    DaliFeedError,
    DataLostError,
    SourceChangedError,
    SourceError,
)
from dali_feed.external_sources import Arrays

ROWS = np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32)
PIXELS = np.random.default_rng(0).integers(0, 256, (20, 9, 12, 3), np.uint8)


def saved(folder: Path, rows: Any = ROWS, name: str = "rows.npy") -> str:
    """A `.npy` file of these rows."""
    np.save(folder / name, rows)
    return str(folder / name)


def made(kind: str, folder: Path, rows: Any = ROWS) -> Arrays:
    """The same rows: in two files with an empty one between, raw, in memory side by side, or with gaps, or mapped."""
    if kind == "files":
        for name, part in {"a": rows[:23], "b": rows[:0], "c": rows[23:]}.items():
            saved(folder, part, f"{name}.npy")
        return Arrays(folder / "*.npy")
    if kind == "raw":
        (folder / "rows.bin").write_bytes(rows.tobytes())
        return Arrays(folder / "rows.bin", rows.dtype, rows.shape[1:])
    if kind == "gaps":
        return Arrays(np.repeat(rows, 2, axis=0)[::2])
    return Arrays(np.load(saved(folder, rows), mmap_mode="r") if kind == "mapped" else [rows[:9], rows[9:]])


@pytest.mark.parametrize("kind", ["files", "memory"])
def test_rows_of_pixels_are_images(tmp_path: Path, kind: str) -> None:
    """Rows of uint8 (height, width, 3) go through an engine, and come beside themselves as arrays."""
    source = made(kind, tmp_path, PIXELS)
    columns = {"image": Image("row"), "row": Array("row")}
    with DataLoader(source, 10, shuffle=True, device="cpu", columns=columns, tuning=QUICK) as loader:
        for batch in loader:
            assert torch.equal(batch["image"].permute(0, 2, 3, 1), batch["row"])
    with pytest.raises(ConfigError, match=r"transform: is for images.*Image\('row', transform\)"):
        DataLoader(source, 2, transform=[])
    with pytest.raises(
        ConfigError, match=r"'row': an image is a row of uint8 of the shape \(height, width\).*float32 \(5,\)"
    ):
        next(iter(DataLoader(Arrays(ROWS), 2, columns=[Image("row")])))


def test_arrays_in_memory_are_not_copied_before_the_batch() -> None:
    """A row is a view of the array, and nothing lies in a slab."""
    reader = Reads(Arrays(ROWS), "row")
    block = reader.read(Extents.one(0, 7, 9))
    assert [np.shares_memory(row, ROWS) for row in block.values["row"]] == [True, True]
    assert reader.pool.peak == 0


@pytest.mark.parametrize(("kind", "shuffle"), [("files", True), ("raw", Shuffle(4, 2)), ("gaps", False)])
def test_arrays_resume_anywhere(tmp_path: Path, kind: str, shuffle: bool | Shuffle) -> None:
    """A state taken after any batch gives the rest at world sizes 1 and 2; nothing is absent."""
    columns = {"row": Array("row", "float32", (5,))}
    assert_resumes_in_turn(made(kind, tmp_path), columns=columns, shuffle=shuffle, positions=2, absent=0)


def test_dtype_and_shape_are_the_files_own(tmp_path: Path) -> None:
    """A column that tells another dtype of the same size gets no bytes of this one."""
    source = made("files", tmp_path)
    with DataLoader(source, 60, columns=[Array("row"), Number("label", "int8")][:1], device="cpu") as loader:
        assert next(iter(loader))[0].dtype == torch.float32
    with (
        DataLoader(source, 60, columns=[Array("row", "int32", (5,))], device="cpu") as loader,
        pytest.raises(DaliFeedError, match="array: must be int32; found float32"),
    ):
        next(iter(loader))


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (np.array([[{"a": 1}]], object), "array of numbers or booleans; found the header"),
        (np.array(["text"]), "array of numbers or booleans"),
        (ROWS.astype(">f4"), r"little-endian.*found >f4; convert them: array.astype\('<f4'\)"),
        (ROWS.astype(np.complex64), "little-endian number"),
        (np.asfortranarray(ROWS), "C order.; found Fortran order"),
        (np.float32(1), r"must have at least one row.*shape \(\)"),
        (np.zeros((3, 0), np.float32), r"must have at least one row.*shape \(3, 0\)"),
        (ROWS[:0], "must have rows; found none"),
    ],
)
def test_files_that_are_not_taken(tmp_path: Path, rows: Any, told: str) -> None:
    """Objects are never unpickled; each is refused with its path and why."""
    with pytest.raises(SourceError, match=told) as refused:
        Arrays(saved(tmp_path, rows)).snapshot()
    assert "rows.npy" in str(refused.value)


def test_a_cut_file_is_lost_at_a_row(tmp_path: Path) -> None:
    """A file cut anywhere, its header too, is refused with its name, and the first row that is not whole."""
    whole = Path(saved(tmp_path)).read_bytes()
    for size in (*range(0, 128, 9), 128, 128 + 20 * 17 + 3, len(whole) - 1):
        (tmp_path / "rows.npy").write_bytes(whole[:size])
        row = "" if size < 128 else f"#{(size - 128) // 20}"
        with pytest.raises(SourceError, match=rf"rows\.npy{row}: ") as lost:
            len(Arrays(tmp_path / "rows.npy"))
        assert size < 128 or isinstance(lost.value, DataLostError)
    (tmp_path / "rows.npy").write_bytes(whole + b"more")
    with pytest.raises(DataLostError, match="1328 bytes in all; found that it has 1332 bytes, which is more"):
        len(Arrays(tmp_path / "rows.npy"))
    (tmp_path / "rows.bin").write_bytes(ROWS.tobytes()[:43])
    with pytest.raises(DataLostError, match=r"rows.bin#2: .*of float32 \(5,\), 20 bytes each; found only 3 bytes"):
        len(Arrays(tmp_path / "rows.bin", "float32", (5,)))


def test_a_file_that_is_cut_or_changed_while_it_is_read(tmp_path: Path) -> None:
    """One that ends too early names the row, one that is another says so; a mapped one too."""
    path = saved(tmp_path)
    source = Arrays(path)
    reader = Reads(source, "row")
    reader.read(Extents.one(0, 0, 2))
    os.truncate(path, 128 + 20 * 30 + 7)
    with pytest.raises(DataLostError, match=r"rows.npy#30: the shard ends at byte 735"):
        reader.read(Extents.one(0, 25, 40))
    with pytest.raises(SourceChangedError, match="it had 1328 bytes and has 735 now; make a new Arrays"):
        source.snapshot()
    mapped = Reads(made("mapped", tmp_path), "row")
    os.utime(tmp_path / "rows.npy")
    with pytest.raises(SourceChangedError, match=r"rows.npy: a mapped file must stay as it is"):
        mapped.read(Extents.one(0, 0, 2))


def test_the_fingerprint_is_that_of_the_contents(tmp_path: Path) -> None:
    """The same in a copy elsewhere and in a pickle, another one for other values, labels or rows."""
    path = saved(tmp_path)

    def found(*arguments: Any, **options: Any) -> str:
        return Arrays(*arguments, **options).snapshot().fingerprint

    (tmp_path / "copy").mkdir()
    source = Arrays(path, label=np.arange(60))
    same = {
        source.snapshot().fingerprint,
        pickle.loads(pickle.dumps(source)).snapshot().fingerprint,
        found(saved(tmp_path / "copy"), label=saved(tmp_path, np.arange(60), "labels.npy")),
    }
    assert len(same) == 1
    other = ROWS.copy()
    other[59, 4] += 1
    others = [found(path), found(path, label=np.zeros(60, int))]
    others += [found(saved(tmp_path / "copy", rows)) for rows in (other, ROWS[:59])]
    assert len({*others, *same}) == 5


@pytest.mark.parametrize("kind", ["files", "memory"])
def test_a_loader_gives_tuples_of_rows_and_labels(tmp_path: Path, kind: str) -> None:
    """Without columns=, as torch's TensorDataset would: each row with its label, shuffled; alone without labels."""
    arrays: Any = [ROWS[:9], ROWS[9:]] if kind == "memory" else saved(tmp_path)
    with DataLoader(Arrays(arrays, label=np.arange(60)), 20, shuffle=True, device="cpu", tuning=QUICK) as loader:
        batches = list(loader)
    rows, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    assert sorted(labels.tolist()) == list(range(60)) != labels.tolist()
    assert np.array_equal(rows.numpy(), ROWS[labels.numpy()])
    with DataLoader(Arrays(ROWS[:, 0].copy()), 60, device="cpu", tuning=QUICK) as loader:
        ((numbers,),) = loader
    assert np.array_equal(numbers.numpy(), ROWS[:, 0])
