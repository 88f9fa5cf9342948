"""Several images, EXIF orientations, masks that follow and functions of the user's, all in one record."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit.images import QUICK, encoded
from PIL import Image as Pillow
from torchvision.transforms import v2

from dali_feed import DataLoader, Decode
from dali_feed.columns import Boxes, Bytes, Column, Image, Mask, Number
from dali_feed.external_sources import ShardSet
from dali_feed.testing import assert_resumes_anywhere

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
    assert_resumes_anywhere(source, columns=wanted, lanes=4, world_sizes=(1, 2, 4), positions=2, absent=0)
