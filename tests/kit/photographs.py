"""Photographs as files of every kind, and what torchvision decodes them to."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

import torch
from kit.kinds import saved
from PIL import Image
from torchvision.io import ImageReadMode, decode_image


def _inside(package: str) -> Path:
    """The folder of a package, which takes seconds to import."""
    found = importlib.util.find_spec(package)
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


@cache
def photographs() -> tuple[bytes, ...]:
    """JPEGs of quality 92, from 97x131 to 427x640 (height x width), with and without subsampled colour."""
    china, flower = (Image.open(_inside("sklearn") / "datasets" / "images" / f"{n}.jpg") for n in ("china", "flower"))
    folder = _inside("skimage") / "data"
    chelsea, coffee = (Image.open(folder / name).convert("RGB") for name in ("chelsea.png", "coffee.png"))
    pictures = (
        china.resize((320, 213)),
        flower,
        chelsea.resize((131, 97)),
        chelsea.resize((226, 150)),
        coffee.resize((375, 250)),
    )
    return tuple(saved(p, quality=92, subsampling=2 * (n % 2)) for n, p in enumerate(pictures))


@cache
def decoded(payload: bytes) -> torch.Tensor:
    """Torchvision's pixels, uint8 (3, height, width)."""
    pixels: torch.Tensor = decode_image(torch.frombuffer(bytearray(payload), dtype=torch.uint8), ImageReadMode.RGB)
    return pixels
