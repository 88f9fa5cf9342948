"""`Array(scale=, bias=)`: float32 x * scale + bias, whatever x is and wherever it comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit.by_hand import tar
from kit.images import QUICK
from kit.member_shards import shards
from kit.refused import refusals

from dali_feed import DataLoader
from dali_feed.columns import Array, Column, Counted
from dali_feed.errors import ConfigError
from dali_feed.external_sources import Arrays, ShardSet

RNG = np.random.default_rng(3)
DTYPES = ("uint8", "int8", "bool", "uint16", "int16", "int32", "int64", "float16", "float32", "float64")


def of(rows: np.ndarray[Any, Any], how: dict[str, Any]) -> torch.Tensor:
    """What a loader gives of these rows, in order."""
    column = Array("row", rows.dtype.name, rows.shape[1:], **how)
    with DataLoader(Arrays(rows), 4, columns={"x": column}, tuning=QUICK, device="cpu") as loader:
        return torch.cat([batch["x"] for batch in loader])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("how", [{"scale": 1 / 255}, {"bias": -0.485}, {"scale": (2.0, 0.1, 1e-8), "bias": (1, 2, 3)}])
def test_numbers_are_scaled_to_float32(dtype: str, how: dict[str, Any]) -> None:
    """With the bits of NumPy's x * scale + bias in float32: product and sum each rounded."""
    rows = RNG.integers(0, 2 if dtype == "bool" else 120, (12, 5, 3)).astype(dtype)
    if rows.itemsize > 2:  # more digits than a float32 has
        rows = rows * rows.dtype.type(1_000_007)
    wanted = rows.astype(np.float32) * np.float32(how.get("scale", 1)) + np.float32(how.get("bias", 0))
    found = of(rows, how)
    assert found.dtype == torch.float32
    assert np.array_equal(found.numpy(), wanted)


def test_large_records_are_scaled_too() -> None:
    """Those that lie where they were read to, and are not written to."""
    rows = RNG.integers(0, 256, (8, 1 << 16), dtype=np.uint8)
    found = of(rows, {"scale": 0.5, "bias": 1})
    assert np.array_equal(found.numpy(), rows * np.float32(0.5) + np.float32(1))


def ragged(folder: Path) -> ShardSet:
    """Four records of 0 to 3 points."""
    points = [np.arange(2 * n, dtype=np.float32) for n in range(4)]
    tar(folder / "p-0.tar", [(str(n), {"pts": each.tobytes()}) for n, each in enumerate(points)])
    return ShardSet(str(folder / "p-*.tar"))


def test_ragged_rows_are_scaled_and_padding_is_not(tmp_path: Path) -> None:
    """As a list, padded or nested."""

    def given(**how: Any) -> Any:
        column = Array("pts", "float32", (None, 2), scale=(2.0, 10.0), bias=1, **how)
        with DataLoader(ragged(tmp_path), 4, columns={"p": column}, tuning=QUICK, device="cpu") as loader:
            return next(iter(loader))["p"]

    wanted = [[], [[1, 11]], [[1, 11], [5, 31]], [[1, 11], [5, 31], [9, 51]]]
    assert [each.tolist() for each in given()] == wanted
    padded = given(ragged="pad", most=3)
    assert isinstance(padded, Counted)
    assert padded.rows.tolist() == [rows + [[0, 0]] * (3 - len(rows)) for rows in wanted]
    nested = given(ragged="nested")
    assert [each.tolist() for each in nested.unbind()] == wanted


def test_a_default_stands_for_the_number_that_is_scaled(tmp_path: Path) -> None:
    """In the records' own units."""
    tar(tmp_path / "x-0.tar", [("0", {"x": bytes([1, 2, 3])}), ("1", {"y": b"?"})])
    columns: dict[str, Column] = {"x": Array("x", "uint8", (3,), scale=0.5, default=4)}
    with DataLoader(ShardSet(str(tmp_path / "x-*.tar")), 2, columns=columns, tuning=QUICK, device="cpu") as loader:
        assert next(iter(loader))["x"].tolist() == [[0.5, 1.0, 1.5], [2.0] * 3]


def test_a_collate_fn_is_given_what_was_scaled(tmp_path: Path) -> None:
    """And the state knows nothing of it: a loader of another scale goes on where the first stood."""
    source = shards(tmp_path)

    def loader(scale: float) -> DataLoader:
        columns: dict[str, Column] = {"x": Array("f32", "uint8", (24,), scale=scale)}

        def stack(samples: list[Any]) -> torch.Tensor:
            return torch.stack([each["x"] for each in samples])

        return DataLoader(source, 6, columns=columns, tuning=QUICK, device="cpu", collate_fn=stack)

    with loader(1.0) as one, loader(2.0) as two:
        batches = iter(one)
        next(batches)
        two.load_state_dict(one.state_dict())
        for mine, theirs in zip(batches, two, strict=True):
            assert torch.equal(2 * mine, theirs)


def test_a_shape_that_the_first_record_says_has_as_many_factors(tmp_path: Path) -> None:
    """Else the settled column is refused."""
    column = Array("f32", "float32", scale=(1.0, 2.0))
    loader = DataLoader(shards(tmp_path), 6, columns={"x": column}, tuning=QUICK, device="cpu")
    with loader, pytest.raises(ConfigError, match=r"one for each of the last side of \(6,\)"):
        next(iter(loader))


@refusals(
    ConfigError,
    (lambda: Array("x", "uint8", (2, 3), scale=(1.0, 2.0)), "scale must be a float32 number"),
    (lambda: Array("x", "uint8", (2, 3), bias=()), "bias must be a float32 number"),
    (lambda: Array("x", "uint8", (3,), scale=float("nan")), "found nan"),
    (lambda: Array("x", "uint8", (3,), scale=1e39), r"found 1e\+39"),
    (lambda: Array("x", "uint8", (3,), bias="1"), "found '1'"),  # type: ignore[arg-type]
)
def test_factors_that_cannot_be_are_refused(call: Any, error: Any, said: str) -> None:
    """When the column is made."""
    with pytest.raises(error, match=said):
        call()
