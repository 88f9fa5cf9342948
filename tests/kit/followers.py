"""Images with what follows them: masks, boxes and keypoints, and transforms that move them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from kit.by_hand import tar
from kit.images import encoded
from torchvision.transforms import v2

from dali_feed.columns import Boxes, Column, Image, Keypoints, Mask, Number
from dali_feed.external_sources import ShardSet

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
    samples = []
    for n in range(COUNT):
        mask = classes(n)
        members: dict[str, bytes | None] = {
            "jpg": encoded(np.stack([mask * 20] * 3, axis=2)),
            "mask": encoded(mask, palette=bool(n % 2)),
            "boxes": json.dumps(boxes(n)).encode(),
            "points": json.dumps(points(n)).encode(),
            "cls": str(n).encode(),
        }
        members |= instead if n == 3 else {}
        samples.append((f"{n:03}", {suffix: data for suffix, data in members.items() if data is not None}))
    tar(folder / "0.tar", samples)
    return ShardSet(str(folder / "0.tar"), index_dir=folder)


def columns(transform: Any) -> dict[str, Column]:
    """Image, mask, boxes, points and number."""
    return {
        "image": Image("jpg", transform),
        "mask": Mask("mask"),
        "boxes": Boxes("boxes", more=1),
        "points": Keypoints("points"),
        "n": Number("cls"),
    }
