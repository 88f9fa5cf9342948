"""Columns before a GPU: one copy takes all of a batch's, and the kernels take them as they come."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit.images import QUICK
from kit.member_shards import shards
from kit.recorded import Recorded
from kit.twin import Machine
from kit.unpacked import unpack_reference

from dali_feed import DataLoader
from dali_feed.columns import Array, Column, Image, Number, Packed, Text, Tokens
from dali_feed.columns import array as arrays
from dali_feed.columns.column import Faults
from dali_feed.columns.graph_inputs import graph_inputs
from dali_feed.engines.device.parcel import Parcels
from dali_feed.external_sources import ShardSet
from dali_feed.feed import machine
from dali_feed.feed.batch import Uploads
from dali_feed.kernels.unpack import unpack


def letters(text: str) -> list[int]:
    """A token for each letter, of a text's first few by its number."""
    return [ord(c) for c in text][: int(text.split()[1]) % 9]


COLUMNS: dict[str, Column] = {
    "features": Array("f32", "float32", (2, 3)),
    "bytes": Array("f32", "uint8", (24,)),
    "rows": Array("f32", "uint16", (12,)),
    "pixels": Array("f32", "uint8", (2, 4, 3), scale=(1 / 255, 1 / 3, -7.7), bias=-0.485),
    "levels": Array("f32", "uint16", (12,), bias=0.1),
    "halves": Array("f32", "float32", (2, 3), scale=0.5),  # by NumPy: as many bytes
    "label": Number("cls"),
    "tokens": Tokens("txt", letters, 4),
    "packed": Packed("txt", letters, 5),
    "text": Text("txt"),
}


def batches(source: ShardSet, device: str) -> list[Any]:
    """All of them, each column's tensors in a list."""
    with DataLoader(source, 6, shuffle=True, columns=COLUMNS, device=device, tuning=QUICK, lanes=2) as loader:
        return [
            {name: [*part] if isinstance(part, tuple) else [part] for name, part in batch.items()} for batch in loader
        ]


def same(wanted: list[Any], found: list[Any], device: str) -> None:
    """Equal values and types, there."""
    for one, other in zip(wanted, found, strict=True):
        assert one.pop("text") == other.pop("text")
        for name, parts in one.items():
            for a, b in zip(parts, other[name], strict=True):
                assert (b.device.type, b.dtype) == (device, a.dtype)
                assert torch.equal(a, b.cpu())


def test_bytes_travel_as_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is scaled on the device is sent as it was read; one launch, which was rehearsed, makes it float32 there."""
    columns: dict[str, Column] = {"x": Array("f32", "uint8", (8, 3), scale=2)}
    gpu, sizes = Recorded(), list[int]()

    def send(here: torch.Tensor) -> torch.Tensor:
        sizes.append(here.numel())
        return Recorded.send(gpu, here)

    monkeypatch.setattr(gpu, "send", send)
    monkeypatch.setattr(machine, "Uploads", lambda companions, device: Uploads(companions, gpu))
    with DataLoader(shards(tmp_path), 6, columns=columns, tuning=QUICK, device="cpu") as loader:
        found = [batch["x"] for batch in loader]
    assert sizes == [6 * 24] * 4
    assert [each.dtype for each in found] == [torch.float32] * 4
    assert (gpu.calls.count("launch"), gpu.calls.count("copy")) == (1 + 4, 0)


def test_a_users_graph_is_given_what_was_scaled() -> None:
    """A record's array before the batch is made, raw or a view; and a default."""
    scaled = Array("x", "uint8", (3,), scale=(0.5, 1.0, 2.0), bias=1, default=4)
    column = graph_inputs({"image": Image("jpg"), "x": scaled})["x"]
    kept = column.read([memoryview(bytes([1, 2, 3])), np.array([4, 5, 6], np.uint8)], Faults())
    assert [each.tolist() for each in kept] == [[1.5, 3.0, 7.0], [3.0, 6.0, 13.0]]
    assert column.read_default(Faults())[0].tolist() == [3.0, 5.0, 9.0]
    assert {each.dtype for each in kept} == {np.dtype(np.float32)}


def test_a_users_graph_is_given_the_columns_dtype() -> None:
    """Of numbers in lists too, and of an array of fewer bits: a graph's types are those of its first batch."""
    columns = graph_inputs(
        {"image": Image("jpg"), "x": Array("x", "int16", (2,)), "rows": Array("x", "int32", (None,))}
    )
    for name, dtype in (("x", np.int16), ("rows", np.int32)):
        kept = columns[name].read([[1, 2], np.array([3, 4], np.uint8)], Faults())
        assert [(each.dtype, each.tolist()) for each in kept] == [(dtype, [1, 2]), (dtype, [3, 4])]


def test_a_room_that_is_not_filled_is_not_sent() -> None:
    """An array that has only part of one, or is written elsewhere, goes with the others; a room counts for one call."""
    gpu = Recorded()
    sends = Parcels(gpu)
    whole, part, late = sends.room(16), sends.room(16), sends.room(16)
    whole[:], part[:] = 1, 2
    sent = sends({"whole": whole.view(np.int32), "part": part[:8], "other": np.arange(3)})
    gpu.wait()
    assert gpu.calls == ["send", "send", "wait"]
    assert [*sent] == ["whole", "part", "other"]
    assert [each.tolist() for each in sent.values()] == [[0x01010101] * 4, [2] * 8, [0, 1, 2]]
    late[:] = 3
    sent = sends({"late": late})
    gpu.wait()
    assert sent["late"].tolist() == [3] * 16
    assert late.tolist() == [3] * 16  # it was copied: what is sent is written over


@pytest.mark.device
@pytest.mark.parametrize(("large", "copies"), [(arrays.LARGE, 1), (24, 1 + 6)])
def test_the_gpu_gives_the_columns_of_the_cpu(
    tmp_path: Path, large: int, copies: int, on_device: Machine | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one copy of a batch's, and one of each array that is large, which is sent from where it is made."""
    source = shards(tmp_path)
    wanted = batches(source, "cpu")
    monkeypatch.setattr(arrays, "LARGE", large)
    monkeypatch.setattr(arrays, "LARGE_BATCH", 6 * large)
    found = batches(source, "cuda")
    assert on_device is None or on_device.calls["copy"] == copies * len(wanted)
    same(wanted, found, "cuda")


@pytest.mark.device
def test_kernels_take_arrays_as_they_come(tmp_path: Path) -> None:
    """Bytes of plain pixels: what `unpack` makes of them is what its reference says."""
    (batch, *_) = batches(shards(tmp_path), "cuda")
    (raw,) = batch["bytes"]
    pixels = torch.empty(len(raw), 3, 4, 2, device="cuda")
    stream = torch.cuda.current_stream()
    unpack(raw, pixels, shape=(4, 2, 3), scale=1 / 255, stream=stream)
    unpacked = unpack_reference(raw.cpu().numpy(), shape=(4, 2, 3), scale=1 / 255)
    assert np.array_equal(pixels.cpu().numpy(), unpacked)
