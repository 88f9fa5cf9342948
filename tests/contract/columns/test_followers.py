"""Masks, boxes and keypoints are moved as their image is: torchvision's own results, on both engines, in any slot."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from kit.followers import GEOMETRY, columns, pictured
from kit.images import QUICK, encoded
from kit.resumes import assert_resumes_in_turn
from PIL import Image as Pillow
from PIL import ImageOps
from torchvision import tv_tensors
from torchvision.transforms import InterpolationMode, v2

from dali_feed import BadRecords, DataLoader, Decode, Shuffle
from dali_feed.columns import Boxes, Bytes, Column, Counted, Image, Keypoints, Mask, Number
from dali_feed.errors import ConfigError
from dali_feed.external_sources import ShardSet


def test_a_nest_moves_what_follows_where_it_moved_the_image(tmp_path: Path) -> None:
    """An image of its classes, turned and mirrored by nearest pixels, is its mask, whatever was picked."""
    transform = v2.Compose(
        [
            v2.Resize((30, 30), InterpolationMode.NEAREST_EXACT),
            v2.RandomApply([v2.RandomRotation(30)], 0.5),
            v2.RandomChoice([v2.RandomHorizontalFlip(1.0), v2.RandomVerticalFlip(1.0)]),
        ]
    )
    source = pictured(tmp_path)
    plain = v2.Compose([v2.Resize((30, 30), InterpolationMode.NEAREST_EXACT)])
    with DataLoader(
        source, 4, columns=columns(transform), decode=Decode(engine="host"), tuning=QUICK, seed=2
    ) as loader:
        found = [(a, b) for batch in loader for a, b in zip(batch["image"], batch["mask"], strict=True)]
    with DataLoader(source, 4, columns=columns(plain), decode=Decode(engine="host"), tuning=QUICK, seed=2) as loader:
        still = [b for batch in loader for b in batch["mask"]]
    agree = [float((image[0] == mask * 20).float().mean()) for image, mask in found]
    assert min(agree) > 0.85  # masks are resized by "nearest", the image by "nearest-exact": edges of classes differ
    assert not any(torch.equal(mask, before) for (_, mask), before in zip(found, still, strict=True))


def test_a_collate_fn_is_given_tensors_of_what_follows(tmp_path: Path) -> None:
    """Masks and boxes of each sample, whose boxes differ in number."""
    wanted = columns(GEOMETRY["crop and resize"])
    with DataLoader(pictured(tmp_path), 8, columns=wanted, collate_fn=list, tuning=QUICK) as loader:
        (samples,) = loader
    assert all(isinstance(sample["boxes"], torch.Tensor) for sample in samples)
    assert [sample["boxes"].shape for sample in samples] == [(n % 4, 5) for n in range(8)]
    assert all(sample["mask"].shape == (20, 20) for sample in samples)


def test_padded_rows_come_with_a_count(tmp_path: Path) -> None:
    """One array for the batch; a record of more rows than `most` is a bad one."""
    wanted: dict[str, Column] = {
        "image": Image("jpg", v2.CenterCrop(32)),
        "boxes": Boxes("boxes", more=1, most=2),
        "n": Number("cls"),
    }
    with DataLoader(pictured(tmp_path), 4, columns=wanted, tuning=QUICK, bad=BadRecords(limit=2)) as loader:
        for batch in loader:
            assert isinstance(batch["boxes"], Counted)
            assert batch["boxes"].rows.shape == (4, 2, 5)
            assert batch["boxes"].count.tolist() == [n % 4 for n in batch["n"].tolist()]
            assert 3 not in batch["n"].tolist()


def test_small_boxes_are_dropped_as_torchvision_drops_them(tmp_path: Path) -> None:
    """`min_size` keeps what SanitizeBoundingBoxes keeps, with its class."""
    transform = v2.RandomResizedCrop(20, scale=(0.05, 0.4))
    wanted: dict[str, Column] = {
        "image": Image("jpg", transform),
        "all": Boxes("boxes", more=1),
        "kept": Boxes("boxes", more=1, min_size=3.0),
    }
    dropped = 0
    with DataLoader(pictured(tmp_path), 4, columns=wanted, tuning=QUICK, seed=1) as loader:
        for batch in loader:
            for every, kept in zip(batch["all"], batch["kept"], strict=True):
                given = {
                    "boxes": tv_tensors.BoundingBoxes(every[:, :4], format="XYXY", canvas_size=(20, 20)),
                    "labels": every[:, 4],
                }
                left = v2.SanitizeBoundingBoxes(min_size=3.0)(given) if len(every) else given
                assert torch.equal(kept[:, :4], left["boxes"].as_subclass(torch.Tensor))
                assert torch.equal(kept[:, 4], left["labels"])
                dropped += len(every) - len(kept)
    assert dropped


def test_followers_resume_anywhere(tmp_path: Path) -> None:
    """With their draws, and a bad mask."""
    source = pictured(tmp_path, mask=b"junk")
    padded: dict[str, Column] = {"boxes": Boxes("boxes", more=1, most=3), "points": Keypoints("points", most=2)}
    made = columns(v2.RandomResizedCrop(12)) | padded
    assert_resumes_in_turn(source, columns=made, shuffle=Shuffle(2, 2), lanes=4, world_sizes=(1, 2, 4), positions=3)


@pytest.mark.parametrize("engine", ["host", "dali"])
def test_what_follows_a_turned_image_belongs_to_the_upright_one(tmp_path: Path, engine: str) -> None:
    """With exif=True a mask has the upright image's size, a mask's own EXIF turns it too, and boxes are not turned."""
    mask = np.arange(5 * 8, dtype=np.uint8).reshape(5, 8)
    exif = Pillow.Exif()
    exif[0x0112] = 6
    files: list[dict[str, bytes]] = []
    for own, size in ((True, (5, 8)), (False, (8, 5)), (False, (5, 8))):
        image = encoded(np.stack([mask] * 3, axis=2), exif=exif)
        shown = mask if own else (np.rot90(mask, -1) if size == (8, 5) else mask)
        around = encoded(shown, exif=exif if own else None)
        files.append({"png": image, "mask": around, "boxes": b"[[1, 2, 4, 7]]"})
    with tarfile.open(tmp_path / "0.tar", "w") as tar:
        for n, members in enumerate(files):
            for suffix, data in members.items():
                info = tarfile.TarInfo(f"{n:03}.{suffix}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    source = ShardSet(str(tmp_path / "0.tar"), index_dir=tmp_path)
    asked = {"image": Image("png"), "mask": Mask("mask"), "boxes": Boxes("boxes")}
    with DataLoader(
        source, 3, columns=asked, decode=Decode(engine=engine, exif=True), tuning=QUICK, device="cpu", info=True
    ) as loader:
        ((batch, info),) = loader
    assert info.ok.tolist() == [True, True, False]  # the last mask lies as its image is stored
    upright = torch.from_numpy(np.rot90(mask, -1).copy())
    for slot in range(2):
        assert torch.equal(batch["image"][slot], upright.expand(3, -1, -1))
        assert torch.equal(batch["mask"][slot], upright)
        assert batch["boxes"][slot].tolist() == [[1, 2, 4, 7]]
    with pytest.raises(ConfigError, match=r"Decode\(exif=...\): turns images, and no column is an Image"):
        DataLoader(source, 3, columns={"boxes": Bytes("boxes")}, decode=Decode(exif=True), device="cpu")


def test_a_mask_is_turned_by_each_orientation_as_its_image_is(tmp_path: Path) -> None:
    """All eight, by Pillow's own turning."""
    stored = np.arange(36, dtype=np.uint8).reshape(6, 6)
    turned = []
    with tarfile.open(tmp_path / "0.tar", "w") as tar:
        for way in range(1, 9):
            exif = Pillow.Exif()
            exif[0x0112] = way
            members = {"png": encoded(np.stack([stored] * 3, axis=2), exif=exif), "mask": encoded(stored, exif=exif)}
            turned.append(np.array(ImageOps.exif_transpose(Pillow.open(io.BytesIO(members["mask"])))))
            for suffix, data in members.items():
                info = tarfile.TarInfo(f"{way:03}.{suffix}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    source = ShardSet(str(tmp_path / "0.tar"), index_dir=tmp_path)
    asked = {"image": Image("png"), "mask": Mask("mask")}
    with DataLoader(source, 8, columns=asked, decode=Decode(exif=True), tuning=QUICK, device="cpu") as loader:
        (batch,) = loader
    assert batch["mask"].tolist() == np.stack(turned).tolist()
    assert torch.equal(batch["image"][:, 0], batch["mask"])
