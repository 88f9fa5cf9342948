"""The dali engine's pixels do not depend on who stands beside a sample: any batch size, a short batch, the twin."""

from __future__ import annotations

import functools
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit.images import broken_png, jpeg, pixels, png
from numpy.typing import NDArray
from PIL import Image
from torchvision.transforms import v2

from dali_feed import BadRecords, DataLoader, Decode
from dali_feed.testing.scripted import ScriptedSource

SILICON = Path("/dev/nvidiactl").exists()
LARGE = 64 if SILICON else 40
COUNT = 150 if SILICON else 54  # two large batches, or one, and a short one; 18 of 8, or 6, and one of 6
BAD = LARGE + 6  # behind a good batch of either size

on_either = pytest.mark.parametrize("device", ["cpu", "cuda"])


# Height, width, and how Pillow saves it: colour at half and at full resolution, both odd and even sizes, ...
_KINDS: list[tuple[int, int, dict[str, Any]]] = [
    (480, 640, {"subsampling": 2}),
    (251, 333, {"subsampling": 2}),
    (300, 400, {"subsampling": 1}),
    (375, 500, {"subsampling": 0}),
    (384, 512, {"subsampling": 2, "restart_marker_rows": 1}),
    (337, 450, {"subsampling": 2, "progressive": True}),
]


def steep(height: int, width: int, options: dict[str, Any]) -> bytes:
    """A picture that is steep in brightness and slow in colour."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    light = 60 * np.sin(x / 2.9) * np.cos(y / 3.7) + 20 * np.sin((x + 2 * y) / 40)
    colour = 25 * np.stack([np.sin(x / 70), np.sin(y / 90), np.cos((x - y) / 80)], axis=-1)
    out = io.BytesIO()
    picture = Image.fromarray((128 + light[..., None] + colour).clip(0, 255).astype(np.uint8))
    picture.save(out, "JPEG", quality=90, **options)
    return out.getvalue()


@functools.cache
def payloads() -> tuple[bytes, ...]:
    """Every kind that a GPU decodes in a way of its own, so that no two neighbours are of one kind."""
    part = 1 if SILICON else 3  # a CPU's decoder has one way for all sizes
    kinds = [steep(height // part, width // part, how) for height, width, how in _KINDS]
    size = (1000, 1200) if SILICON else (100, 120)  # from a million pixels on its Huffman codes are the GPU's
    large = io.BytesIO()
    Image.fromarray(pixels(3, *size)).save(large, "JPEG", quality=80)
    kinds += [large.getvalue(), jpeg(1, 37, 53), jpeg(2, 200, 17), png(3, 120, 90)]
    return tuple(kinds[n % len(kinds)] for n in range(COUNT))


def epoch(device: str, batch_size: int, *, load: float = 0.0, bad: int | None = None) -> dict[int, NDArray[np.uint8]]:
    """Sample -> its pixels; every sample has draws of its own. `bad`: the sample that no decoder takes."""
    items: list[Any] = [(payload, n) for n, payload in enumerate(payloads())]
    if bad is not None:
        items[bad] = (broken_png(), bad)
    loader = DataLoader(
        ScriptedSource(items),
        batch_size,
        transform=v2.RandomResizedCrop(32, scale=(0.3, 1.0)),
        device=device,
        decode=Decode(engine="dali", hardware=load),
        bad=BadRecords(limit=None),
        seed=5,
        info=True,
    )
    found: dict[int, NDArray[np.uint8]] = {}
    with loader:
        for images, _, info in loader:
            for sample, good, image in zip(info.ids.tolist(), info.ok.tolist(), images.cpu().numpy(), strict=True):
                if good:
                    found[sample] = image.copy()
    return found


@functools.cache
def alone(device: str) -> dict[int, NDArray[np.uint8]]:
    """Each sample a batch by itself."""
    return epoch(device, 1)


@pytest.mark.device
@on_either
@pytest.mark.parametrize("batch_size", [8, LARGE])
def test_a_sample_has_its_bits_in_any_batch(device: str, batch_size: int) -> None:
    """Those it has alone, in full batches and in the short one at the end."""
    found = epoch(device, batch_size)
    assert list(found) == list(alone(device))
    assert len(found) == COUNT
    assert not [sample for sample, image in found.items() if not np.array_equal(image, alone(device)[sample])]


@pytest.mark.device
@on_either
@pytest.mark.parametrize("batch_size", [8, LARGE])
def test_a_sample_has_its_bits_from_the_twin(device: str, batch_size: int) -> None:
    """A batch with a bad record is run again: its good ones are what they would have been."""
    found = epoch(device, batch_size, bad=BAD)
    assert sorted(found) == [sample for sample in alone(device) if sample != sorted(alone(device))[BAD]]
    assert not [sample for sample, image in found.items() if not np.array_equal(image, alone(device)[sample])]


@pytest.mark.device
@pytest.mark.parametrize("load", [0.65, 1.0])
@pytest.mark.parametrize("batch_size", [1, 8, LARGE])
def test_the_jpeg_engines_pixels_are_close(load: float, batch_size: int) -> None:
    """All samples come, in order, within a few levels of the CUDA decoder's on average; equal bits nobody promises.

    The twin has no JPEG engine: it shows the order, and that the share is DALI's to take.
    """
    found = epoch("cuda", batch_size, load=load)
    assert list(found) == list(alone("cuda"))
    for sample, image in found.items():
        assert np.abs(image.astype(np.int16) - alone("cuda")[sample]).mean() < 3


@pytest.mark.device
def test_an_epoch_repeats() -> None:
    """Bit for bit, in a decoder of its own."""
    again = epoch("cuda", LARGE)
    assert all(np.array_equal(image, again[sample]) for sample, image in epoch("cuda", LARGE).items())
