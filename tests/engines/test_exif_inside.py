"""Insides that contract/pixels/test_exif.py needs not: they go with what they test."""

from __future__ import annotations

import functools
import io
from typing import Any

import numpy as np
import pytest
import torch
from kit.images import QUICK
from kit.photographs import photographs
from PIL import Image, ImageOps
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from dali_feed.compiler.host import compile_host
from dali_feed.compiler.program import stored, turns
from dali_feed.engines.host.decode import turned
from dali_feed.feed import Feed
from dali_feed.options import Decode
from dali_feed.testing.scripted import ScriptedSource
from dali_feed.transforms.keys import WINDOW
from dali_feed.transforms.lower import lower

WAYS = range(1, 9)
CROP = v2.RandomResizedCrop(24, scale=(0.2, 0.6))


@functools.cache
def picture() -> Image.Image:
    """A part of a photograph, of odd sides."""
    return Image.open(io.BytesIO(photographs()[2])).convert("RGB").crop((5, 3, 72, 48))


@functools.cache
def files(name: str) -> tuple[bytes, ...]:
    """The picture as it is stored with each orientation, 1 to 8."""
    out = []
    for way in WAYS:
        exif = Image.Exif()
        exif[0x0112] = way
        file = io.BytesIO()
        more: dict[str, Any] = {"tiffinfo": {274: way}} if name == "TIFF" else {"exif": exif.tobytes()}
        more |= {"lossless": True} if name == "WEBP" else {"quality": 95} if name == "JPEG" else {}
        picture().save(file, name, **more)
        out.append(file.getvalue())
    return tuple(out)


def feed(payloads: Any, transform: Any = None, size: int = 8, **options: Any) -> Feed:
    """The payloads in turn."""
    options = {"decode": Decode(exif=True), "seed": 3, "tuning": QUICK, **options}
    return Feed(ScriptedSource(payloads), size, transform=transform, **options)


def batches(one: Feed) -> list[Any]:
    """Images of each batch of an epoch."""
    with one:
        return [np.asarray(batch.images).copy() for batch in one]


@pytest.mark.parametrize("name", ["JPEG", "PNG"])
def test_a_crop_is_torchvisions_on_the_upright_image(name: str) -> None:
    """Bit for bit on the host engine, which decodes the window alone."""
    payloads = files(name)
    (found,) = batches(feed(payloads, CROP, decode=Decode(engine="host", exif=True)))
    upright = [functional.pil_to_tensor(ImageOps.exif_transpose(Image.open(io.BytesIO(each)))) for each in payloads]
    sizes = np.array([image.shape[1:] for image in upright])
    ids = np.arange(8, dtype=np.int64)
    windows = compile_host(lower(CROP)).parameters(sizes, ids, 3, 0).arrays[WINDOW].tolist()
    for image, whole, window in zip(found, upright, windows, strict=True):
        expected = functional.resized_crop(whole, *window, [24, 24], antialias=True)
        assert (torch.from_numpy(image).int() - expected).abs().max() <= (1 if name == "JPEG" else 0)


@pytest.mark.parametrize("way", WAYS)
def test_windows_of_the_upright_image_in_the_stored_one(way: int) -> None:
    """A window decoded from the stored image and turned is the window of the turned image, for any window."""
    rng = np.random.default_rng(way)
    whole = rng.integers(0, 255, (13, 21, 3), np.uint8)
    high, wide = (21, 13) if way > 4 else (13, 21)
    starts = rng.integers(0, (high, wide), (50, 2))
    windows = np.concatenate([starts, rng.integers(1, (high, wide) - starts + 1)], axis=1)
    rows = turns(np.full((50, 3), (high, wide, way)))
    assert rows is not None
    upright = turned(whole, rows[0, :3].tolist())
    assert upright.shape == (high, wide, 3)
    for (y, x, h, w), (b, a, height, width), row in zip(windows, stored(windows, rows), rows, strict=True):
        part = turned(whole[b : b + height, a : a + width], row[:3].tolist())
        np.testing.assert_array_equal(part, upright[y : y + h, x : x + w])
