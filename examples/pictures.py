"""What the examples with frameworks share: a small folder of JPEGs, transforms for it and a small network."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torchvision.transforms import v2

__all__ = ["COLOURS", "SIDE", "arguments", "network", "pictures", "transforms"]

SIDE = 32
COLOURS = {"blue": (40, 40, 250), "green": (40, 250, 40), "red": (250, 40, 40)}  # the classes, sorted as folders are


def arguments(description: str | None) -> argparse.Namespace:
    """The command line of each of them."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the checkpoint, and of made pictures")
    parser.add_argument("--data", type=Path, help="a folder of images per class; made under --out where not given")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=30, help="in all; a run that was stopped before goes on to it")
    return parser.parse_args()


def pictures(args: argparse.Namespace) -> Path:
    """The folder of --data, or one of 50 JPEGs of noise with a coloured square on it."""
    if args.data is not None:
        return Path(args.data)
    root, draws = Path(args.out, "pictures"), np.random.default_rng(1)
    for n in range(50):
        name, colour = list(COLOURS.items())[n % len(COLOURS)]
        path = root / name / f"{n:02d}.jpg"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            image = draws.integers(0, 120, (48, 40 + n, 3), np.uint8)
            image[12:36, 12:36] = colour
            new = path.with_name(f"{path.name}.{os.getpid()}")  # each rank makes them, and none finds half a file
            Image.fromarray(image).save(new, "JPEG")
            new.replace(path)
    return root


def transforms() -> v2.Compose:
    """Random ones, so that a resumed run shows whether it repeats them."""
    return v2.Compose(
        [
            v2.ToImage(),
            v2.RandomResizedCrop(SIDE, scale=(0.5, 1.0)),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
        ]
    )


def network(classes: int) -> nn.Module:
    """Two convolutions and a linear layer."""
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, classes)),
    )
