"""MixUp and CutMix with columns: the image column and the labels of one Number are mixed as without columns."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit.images import QUICK, encoded
from kit.member_shards import shards
from kit.resumes import assert_resumes_in_turn
from PIL import Image as Pillow
from torchvision.transforms import v2

from dali_feed import DataLoader, Decode, Mixing, Shuffle
from dali_feed.columns import Array, Boxes, Bytes, Column, Image, Mask, Number, Text
from dali_feed.external_sources import ShardSet

FLOAT = v2.Compose([v2.RandomResizedCrop((12, 10)), v2.ToDtype(torch.float32, scale=True)])
IMAGE = Image("jpg", FLOAT)
BOTH = Mixing(mixup=0.4, cutmix=1.0, p=0.8, classes=30, smoothing=0.1)
COLUMNS: dict[str, Column] = {
    "caption": Text("txt"),
    "label": Number("cls"),
    "image": IMAGE,
    "x": Array("f32", "float32"),
}
HOW: dict[str, Any] = {"shuffle": Shuffle(4, 2), "seed": 3, "tuning": QUICK, "device": "cpu"}


@pytest.mark.parametrize(
    ("engine", "mixing"),
    [
        ("host", BOTH),
        ("dali", BOTH),
        ("host", v2.RandomChoice([v2.MixUp(num_classes=30), v2.CutMix(num_classes=30)])),
        ("host", Mixing(mixup=1.0)),
    ],
)
def test_columns_are_mixed_as_images_and_labels_are(tmp_path: Path, engine: str, mixing: Any) -> None:
    """Bit for bit, in a dict and in a tuple; other columns pass."""
    source = shards(tmp_path)
    how = {**HOW, "decode": Decode(engine=engine), "collate_fn": mixing}
    with DataLoader(source, 6, transform=FLOAT, **how) as plain:
        wanted = list(plain)
    with DataLoader(source, 6, columns=COLUMNS, info=True, **how) as loader:
        found = list(loader)
    with DataLoader(source, 6, columns=[IMAGE, Number("cls", "int32")], **how) as loader:
        pairs = list(loader)
    for (images, labels), (batch, info), (same, again) in zip(wanted, found, pairs, strict=True):
        assert list(batch) == list(COLUMNS)
        assert torch.equal(batch["image"], images)
        assert torch.equal(same, images)
        for given in (batch["label"], again):
            assert len(given) == len(labels)
            assert all(map(torch.equal, given, labels))
        assert [int(x) for x in batch["x"][:, 0]] == [int(text.split()[1]) for text in batch["caption"]]
        assert len(info.ids) == len(images)


@pytest.mark.parametrize("names", [("image", "n", "Labels", "label"), ("image", "n", "fine_LABEL")])
def test_the_labels_are_those_that_torchvision_would_find(tmp_path: Path, names: tuple[str, ...]) -> None:
    """By their column's name: torchvision's own class, given such a batch, mixes the same column."""
    columns = {name: IMAGE if name == "image" else Number("cls") for name in names}
    mixup = v2.MixUp(num_classes=30)
    with DataLoader(shards(tmp_path), 6, columns=columns, **HOW) as loader:
        theirs = mixup(next(iter(loader)))
    with DataLoader(shards(tmp_path), 6, columns=columns, collate_fn=mixup, **HOW) as loader:
        ours = next(iter(loader))
    assert {name: ours[name].shape for name in names} == {name: theirs[name].shape for name in names}
    assert ours[names[2]].shape == (6, 30)


@pytest.mark.device
@pytest.mark.parametrize("engine", ["dali", "host"])
def test_columns_are_mixed_on_a_gpu_as_images_and_labels_are(tmp_path: Path, engine: str) -> None:
    """Bit for bit those of a loader without columns on the same GPU, and the CPU's labels."""
    source = shards(tmp_path)
    how = {**HOW, "decode": Decode(engine=engine), "collate_fn": BOTH}
    with DataLoader(source, 6, transform=FLOAT, **{**how, "device": "cuda"}) as plain:
        wanted = list(plain)
    with DataLoader(source, 6, columns=COLUMNS, **how) as cpu:
        labels = [batch["label"] for batch in cpu]
    with DataLoader(source, 6, columns=COLUMNS, **{**how, "device": "cuda"}) as loader:
        for batch, (images, same), soft in zip(loader, wanted, labels, strict=True):
            assert batch["image"].is_cuda
            assert batch["x"].is_cuda
            assert torch.equal(batch["image"], images)
            assert torch.equal(batch["label"], same)
            assert torch.equal(batch["label"].cpu(), soft)


COUNT = 9
CROP = v2.Compose([v2.RandomCrop(24), v2.RandomHorizontalFlip()])  # both engines give the same pixels


def shard(path: Path, *, turned: bool) -> ShardSet:
    """Pairs of images of different sizes; `turned`: the right ones lie on their side, with an EXIF that says so."""
    exif = Pillow.Exif()
    exif[0x0112] = 6
    with tarfile.open(path, "w") as tar:
        for n in range(COUNT):
            rng = np.random.default_rng(n)
            left, right = (rng.integers(0, 255, (high, wide, 3), np.uint8) for high, wide in ((40, 30), (32, 52)))
            members = {
                "left": encoded(left),
                "right": encoded(np.ascontiguousarray(np.rot90(right)), exif=exif) if turned else encoded(right),
                "mask": encoded(right[..., 0] // 8),
                "boxes": b"[[1, 2, 20, 30]]",
                "cls": b"%d" % n,
                "f32": np.full(3, n, np.float32).tobytes() if n != 4 else b"bad",
            }
            for suffix, data in members.items():
                info = tarfile.TarInfo(f"{n:03}.{suffix}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return ShardSet(str(path), index_dir=path.parent)


def columns() -> dict[str, Column]:
    """Everything that can be asked of a record."""
    return {
        "left": Image("left", CROP),
        "right": Image("right", CROP, draws="left"),
        "mask": Mask("mask", of="right"),
        "boxes": Boxes("boxes", of="right", most=2),
        "n": Number("cls"),
        "x": Bytes("f32", decode=lambda data: torch.frombuffer(data, dtype=torch.float32).sum()),
    }


@pytest.mark.parametrize("engine", ["host", "dali"])
def test_a_second_image_is_turned_with_what_follows_it(tmp_path: Path, engine: str) -> None:
    """A pair whose right image lies on its side is the upright pair, its mask, boxes and draws included."""
    batches: list[list[Any]] = []
    for turned in (False, True):
        source = shard(tmp_path / f"{turned}.tar", turned=turned)
        with DataLoader(
            source, 3, columns=columns(), decode=Decode(engine=engine, exif=turned), shuffle=True, tuning=QUICK
        ) as loader:
            batches.append(list(loader))
    upright, put_right = batches
    assert 4 not in [int(n) for batch in upright for n in batch["n"]]  # its `x` is bad: another stands there
    for one, other in zip(upright, put_right, strict=True):
        assert one["right"].shape[1:] == (3, 24, 24)
        for name in ("left", "right", "mask", "n"):
            assert torch.equal(one[name], other[name]), name
        assert all(map(torch.equal, one["boxes"], other["boxes"]))
        assert [float(x) for x in one["x"]] == [float(x) for x in other["x"]] == [3.0 * int(n) for n in one["n"]]


def test_it_resumes_anywhere(tmp_path: Path) -> None:
    """At every world size, in the middle of an epoch."""
    source = shard(tmp_path / "0.tar", turned=False)
    wanted = columns() | {"x": Bytes("f32", decode=lambda data: float(len(data[:12].cast("f"))))}
    assert_resumes_in_turn(source, columns=wanted, lanes=4, world_sizes=(1, 2, 4), positions=2, absent=0)
