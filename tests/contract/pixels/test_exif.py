"""exif=True: pixels, windows and sizes are those of Pillow's `exif_transpose`, on both engines."""

from __future__ import annotations

import functools
import io
import json
from typing import Any

import numpy as np
import pytest
import torch
from kit.images import QUICK, bad_tables, labelled
from kit.inside import Feed
from kit.photographs import photographs
from numpy.typing import NDArray
from nvidia.dali import fn
from PIL import Image, ImageOps
from torchvision.transforms import v2

from dali_feed import Decode
from dali_feed.errors import StateError
from dali_feed.testing import ScriptedSource

WAYS = range(1, 9)
FORMATS = ["JPEG", "PNG", "WEBP", "TIFF"]
ENGINES = ["host", "dali"]
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


def pillows(payload: bytes) -> NDArray[np.uint8]:
    """The upright image."""
    return np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(payload))).convert("RGB"))


def saved(pixels: NDArray[Any]) -> bytes:
    """A file of these pixels, without EXIF."""
    file = io.BytesIO()
    Image.fromarray(np.asarray(pixels)).save(file, "PNG")
    return file.getvalue()


def feed(payloads: Any, transform: Any = None, size: int = 8, **options: Any) -> Feed:
    """The payloads in turn."""
    options = {"decode": Decode(exif=True), "seed": 3, "tuning": QUICK, **options}
    return Feed(ScriptedSource(payloads), size, transform=transform, **options)


def batches(one: Feed) -> list[Any]:
    """Images of each batch of an epoch."""
    with one:
        return [np.asarray(batch.images).copy() for batch in one]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", FORMATS)
def test_whole_images_are_pillows(name: str, engine: str) -> None:
    """All eight orientations of every format that has them; a lossy one within a level, as without EXIF."""
    found = batches(feed(files(name), size=1, decode=Decode(engine=engine, exif=True)))
    for image, payload in zip(found, files(name), strict=True):
        expected = pillows(payload)
        assert image.shape == (1, 3, *expected.shape[:2])
        apart = np.abs(image[0].transpose(1, 2, 0).astype(int) - expected)
        assert apart.max() <= (1 if name == "JPEG" else 0)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "transform",
    [
        CROP,
        v2.Compose([v2.RandomCrop(30), v2.RandomHorizontalFlip(), v2.RandomVerticalFlip()]),
        v2.Compose([v2.Resize((20, 26)), v2.RandomCrop(16), v2.ToDtype(torch.float32, scale=True)]),
        v2.Compose([v2.ColorJitter(0.5), v2.CenterCrop(28), v2.RandomInvert()]),
        [CROP, v2.Compose([v2.RandomHorizontalFlip(), v2.Resize((12, 12))])],
    ],
    ids=["window", "crop and flips", "resize", "no window", "views"],
)
def test_it_is_as_if_the_upright_image_had_been_stored(transform: Any, engine: str) -> None:
    """Draws, windows and pixels are those of files without EXIF that hold the upright pixels, bit for bit."""
    stand_ins = [saved(pillows(payload)) for payload in files("PNG")]
    with (
        feed(files("PNG"), transform, decode=Decode(engine=engine, exif=True)) as one,
        feed(stand_ins, transform, decode=Decode(engine=engine, exif=False)) as other,
    ):
        (ours,), (theirs,) = list(one), list(other)
        np.testing.assert_array_equal(np.asarray(ours.images), np.asarray(theirs.images))
        for mine, its in zip(ours.more, theirs.more, strict=True):
            np.testing.assert_array_equal(np.asarray(mine.images), np.asarray(its.images))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_bad_turned_image_costs_its_slot(engine: str) -> None:
    """Neighbours that are turned stay as they are, in this batch and in those behind it."""
    turned_bad = bad_tables()[:2] + files("JPEG")[5][2:38] + bad_tables()[2:]
    payloads = [*files("PNG")[:3], turned_bad, *files("PNG")[4:], *files("PNG")]
    crop = v2.Resize((20, 26))
    with (
        feed(payloads, crop, decode=Decode(engine=engine, exif=True)) as one,
        feed(files("PNG"), crop, decode=Decode(engine=engine, exif=True)) as other,
    ):
        (first, second), (whole,) = list(one), list(other)
        assert first.ok.tolist() == [True] * 3 + [False] + [True] * 4
        good = np.flatnonzero(first.ok)
        np.testing.assert_array_equal(np.asarray(first.images)[good], np.asarray(whole.images)[good])
        np.testing.assert_array_equal(np.asarray(second.images), np.asarray(whole.images))


def test_a_graph_function_gets_upright_images() -> None:
    """A function of (images, draws) builds on what our decoder gives, so exif=True is honoured."""

    def graph(images: Any, draws: Any) -> Any:
        del draws
        return fn.resize(images, size=[20, 26])

    (found,) = batches(feed(files("PNG"), graph))
    (expected,) = batches(feed([saved(pillows(each)) for each in files("PNG")], graph, decode=Decode(exif=False)))
    np.testing.assert_array_equal(found, expected)


def test_exif_is_off_unless_asked_for() -> None:
    """Pixels as they are stored; only a TIFF is turned, by Pillow."""
    found = batches(feed([*files("JPEG"), *files("PNG")], v2.Resize((20, 26)), decode=Decode(exif=False), size=8))
    for batch in found:
        assert (batch == batch[:1]).all()


def test_a_state_notices_other_turning() -> None:
    """Both ways."""
    states = {}
    for exif in (False, True):
        with Feed(ScriptedSource(labelled(8)), 4, decode=Decode(exif=exif), tuning=QUICK) as one:
            next(iter(one))
            states[exif] = json.loads(json.dumps(one.state_dict()))
            assert ("exif=True" in one.describe()) is exif
    for exif, told in (
        (False, "the state has True, this loader False"),
        (True, "the state has False, this loader True"),
    ):
        with Feed(ScriptedSource(labelled(8)), 4, decode=Decode(exif=exif), tuning=QUICK) as one:
            with pytest.raises(StateError, match=f"exif: {told}"):
                one.load_state_dict(states[not exif])
            one.load_state_dict(states[exif])
            assert len(list(one)) == 1
