"""Insides that contract/columns/test_followers.py needs not: they go with what they test."""

from __future__ import annotations

import contextlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit.images import QUICK, encoded
from kit.torchvision_way import applied
from torchvision import tv_tensors
from torchvision.transforms import v2

from dali_feed import BadRecords, DataLoader, Decode
from dali_feed.columns import Boxes, Image, Keypoints, Kind, Mask, Number
from dali_feed.compiler.host import compile_host
from dali_feed.compiler.program import Picture, PicturesProgram, compile_following
from dali_feed.engines.choose import compiled, make_engine
from dali_feed.engines.engine import Work
from dali_feed.engines.late import FollowingEngine
from dali_feed.errors import ClosedError
from dali_feed.external_sources import ShardSet
from dali_feed.transforms.lower import lower

COUNT = 8
GEOMETRY: dict[str, Any] = {
    "crop and resize": v2.RandomResizedCrop(20),
    "flips": v2.Compose([v2.Resize((24, 28)), v2.RandomHorizontalFlip(), v2.RandomVerticalFlip()]),
    "resize to an edge, middle": v2.Compose([v2.Resize(40), v2.CenterCrop(32)]),
    "middle of what is smaller": v2.CenterCrop((60, 70)),
    "crop with padding": v2.RandomCrop(30, padding=6),
    "crop that pads if needed": v2.RandomCrop((48, 64), pad_if_needed=True),
    "pad": v2.Compose([v2.Resize((24, 24)), v2.Pad((1, 2, 3, 4))]),
    "rotation": v2.Compose([v2.Resize((30, 34)), v2.RandomRotation(40)]),
    "affine": v2.Compose([v2.Resize((30, 34)), v2.RandomAffine(20, (0.1, 0.2), (0.8, 1.2), (-5, 5, -3, 3))]),
    "perspective": v2.Compose([v2.Resize((30, 34)), v2.RandomPerspective(0.5, 0.9)]),
    "nests": v2.Compose(
        [
            v2.Resize((30, 30)),
            v2.RandomApply([v2.RandomRotation(30), v2.ColorJitter(0.3)], 0.5),
            v2.RandomChoice([v2.RandomHorizontalFlip(1.0), v2.RandomVerticalFlip(1.0)]),
        ]
    ),
    "colours alone": v2.Compose([v2.Resize((30, 30)), v2.ColorJitter(0.4, 0.4), v2.RandomGrayscale(0.5)]),
    "floats, normalized and erased": v2.Compose(
        [
            v2.RandomResizedCrop(20),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.5], [0.5]),
            v2.RandomErasing(1.0),
        ]
    ),
}


def classes(n: int) -> np.ndarray[Any, Any]:
    """A mask of 40 or 50 by 56 or 44 pixels with regions of several classes."""
    rng = np.random.default_rng(n)
    high, wide = (40, 56) if n % 2 else (50, 44)
    return rng.integers(0, 9, (high // 8 + 1, wide // 8 + 1), np.uint8).repeat(8, 0).repeat(8, 1)[:high, :wide]


def boxes(n: int) -> list[list[float]]:
    """N % 4 boxes as x, y, x, y, and a class."""
    return [[2.0 + k, 3.0, 20.0 + k, 30.5, float(k)] for k in range(n % 4)]


def points(n: int) -> list[list[float]]:
    """N % 3 points."""
    return [[5.0 * k + 1, 7.0 + n] for k in range(n % 3)]


def pictured(folder: Path, **instead: bytes | None) -> ShardSet:
    """A shard of images, masks (each second one a palette's), boxes, points; `instead`: of number 3's members."""
    with tarfile.open(folder / "0.tar", "w") as tar:
        for n in range(COUNT):
            mask = classes(n)
            members = {
                "jpg": encoded(np.stack([mask * 20] * 3, axis=2)),
                "mask": encoded(mask, palette=bool(n % 2)),
                "boxes": json.dumps(boxes(n)).encode(),
                "points": json.dumps(points(n)).encode(),
                "cls": str(n).encode(),
            }
            for suffix, whole in members.items():
                data = instead.get(suffix, whole) if n == 3 else whole
                if data is not None:
                    info = tarfile.TarInfo(f"{n:03}.{suffix}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
    return ShardSet(str(folder / "0.tar"), index_dir=folder)


def columns(transform: Any) -> dict[str, Kind]:
    """Image, mask, boxes, points and number."""
    return {
        "image": Image("jpg", transform),
        "mask": Mask("mask"),
        "boxes": Boxes("boxes", more=1),
        "points": Keypoints("points"),
        "n": Number("cls"),
    }


def theirs(transform: Any, numbers: list[int], ids: np.ndarray[Any, Any], seed: int) -> list[tuple[Any, Any, Any]]:
    """Mask, boxes and points of each record by torchvision's functions for tv_tensors, on the same draws."""
    recipe = lower(transform)
    sizes = np.array([classes(n).shape for n in numbers], np.int32)
    made = compile_host(recipe).parameters(sizes, ids, seed, 0).arrays
    out = []
    for row, n in enumerate(numbers):
        rows = {name: values[row].tolist() for name, values in made.items()}
        size = classes(n).shape
        kept: list[Any] = [
            tv_tensors.Mask(torch.from_numpy(classes(n).copy())[None]),
            tv_tensors.BoundingBoxes(
                torch.tensor([box[:4] for box in boxes(n)]).reshape(-1, 4), format="XYXY", canvas_size=size
            ),
            tv_tensors.KeyPoints(torch.tensor(points(n)).reshape(-1, 2), canvas_size=size),
        ]
        moving = [(k, op) for k, op in enumerate(recipe.ops) if type(op).__name__ not in STILL]
        for k, op in moving:
            kept = [applied(given, k, op, rows) for given in kept]
        out.append((kept[0][0], kept[1], kept[2]))
    return out


STILL = {"ColorJitter", "RandomGrayscale", "ToFloat", "Normalize", "RandomErasing"}


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        (name, engine)
        for name in GEOMETRY
        for engine in ("host", "dali")
        if name != "nests" and (name, engine) != ("perspective", "dali")  # DALI has no operator for it
    ],
)
def test_what_follows_is_torchvisions_bit_for_bit(tmp_path: Path, name: str, engine: str) -> None:
    """Masks, boxes and points of every geometric transform, by the draws of the image in the slot."""
    transform = GEOMETRY[name]
    source = pictured(tmp_path)
    size = 1 if name in ("pad", "resize to an edge, middle") else 4
    with DataLoader(
        source,
        size,
        shuffle=True,
        columns=columns(transform),
        decode=Decode(engine=engine),
        tuning=QUICK,
        seed=5,
        info=True,
    ) as loader:
        for batch, info in loader:
            numbers = batch["n"].tolist()
            assert info.ok.all()
            for slot, (mask, box, point) in enumerate(theirs(transform, numbers, info.ids.numpy(), 5)):
                assert torch.equal(batch["mask"][slot], mask.as_subclass(torch.Tensor)), (name, numbers[slot])
                assert torch.equal(batch["boxes"][slot][:, :4], box.as_subclass(torch.Tensor))
                assert batch["boxes"][slot][:, 4].tolist() == list(range(numbers[slot] % 4))
                assert torch.equal(batch["points"][slot], point.as_subclass(torch.Tensor))


@pytest.mark.parametrize(
    ("member", "data", "reason"),
    [
        ("mask", None, "column 'mask' of member 'mask': the record has no such member"),
        ("mask", b"junk", "column 'mask' of member 'mask': "),
        ("mask", encoded(np.zeros((9, 9), np.uint8)), "a mask must have the size of its image, 56x40; found 9x9"),
        (
            "mask",
            encoded(np.zeros((40, 56, 3), np.uint8)),
            "one number for each pixel; found an image of mode RGB",
        ),
        ("boxes", b"[[1, 2, 3]]", "rows of 5 numbers are needed; found an array of shape (1, 3)"),
        ("boxes", b"[[1, 2, 3, 1e999, 0]]", "rows of 5 numbers are needed; json: "),
        ("boxes", b"{", "rows of 5 numbers are needed; "),
        ("points", b"7", "rows of 2 numbers are needed; "),
        ("jpg", b"\xff\xd8 no image", ""),
    ],
)
@pytest.mark.parametrize("engine", ["host", "dali"])
def test_what_cannot_follow_costs_its_slot(
    tmp_path: Path, engine: str, member: str, data: bytes | None, reason: str
) -> None:
    """Found when it is read or when it is moved: the next good record stands there, with its own mask and boxes."""
    source = pictured(tmp_path, **{member: data})
    transform = v2.RandomResizedCrop(20)
    bad = BadRecords(limit=1)
    with DataLoader(
        source, 4, columns=columns(transform), decode=Decode(engine=engine), tuning=QUICK, bad=bad, info=True
    ) as loader:
        batches = list(loader)
        told = loader.stats().recent_bad
    numbers = [n for batch, _ in batches for n in batch["n"].tolist()]
    assert numbers == [0, 1, 2, 4, 4, 5, 6, 7]
    assert len(told) == 1
    assert reason in told[0][1]
    for batch, info in batches:
        for slot, (mask, box, _) in enumerate(theirs(transform, batch["n"].tolist(), info.ids.numpy(), 0)):
            assert torch.equal(batch["mask"][slot], mask.as_subclass(torch.Tensor))
            assert torch.equal(batch["boxes"][slot][:, :4], box.as_subclass(torch.Tensor))


@pytest.mark.parametrize("name", ["host", "dali"])
def test_a_batch_that_was_halted_leaves_nothing_to_the_next(name: str) -> None:
    """A pass that is left while its batch is waited for: the next pass has its own masks, not those of that batch."""
    recipe = lower(v2.Compose([v2.Resize((20, 24)), v2.RandomHorizontalFlip(1.0)]))
    inner_name, program = compiled(recipe, Decode(engine=name), None)
    followed = compile_following(recipe, boxes=False)
    inner = make_engine(inner_name, program, batch_size=2, device=None, tuning=QUICK)
    engine = FollowingEngine(inner, [(followed, {"mask": Mask("mask")})], QUICK)
    whole = PicturesProgram([Picture(program.views[0], followed)])

    def work(numbers: list[int]) -> Work:
        sizes, ids = np.array([classes(n).shape for n in numbers], np.int32), np.array(numbers)
        payloads = [memoryview(encoded(np.stack([classes(n)] * 3, axis=2))) for n in numbers]
        made = whole.parameters(sizes, ids, 0, 0)
        return Work(engine.prepare(payloads), made.arrays, {"mask": [memoryview(encoded(classes(n))) for n in numbers]})

    engine.enter()
    wanted = engine.redo(work([2, 3])).columns["mask"]
    engine.submit(work([0, 1]))
    engine.halt()
    with contextlib.suppress(ClosedError) if name == "dali" else pytest.raises(ClosedError):
        engine.take()  # a DALI graph cannot be stopped: its batch may come all the same
    engine.resume()
    engine.submit(work([2, 3]))
    found = engine.take().columns["mask"]
    engine.close()
    assert all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True))
