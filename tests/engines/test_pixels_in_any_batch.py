"""The dali engine's pixels do not depend on who stands beside a sample: any batch size, a short batch, the twin."""

from __future__ import annotations

import functools
import io
import warnings
from typing import Any, Literal

import numpy as np
import pytest
from kit.images import broken_png, jpeg, pixels, png
from numpy.typing import NDArray
from PIL import Image
from torchvision.transforms import v2

from dali_feed import BadRecords, DataLoader
from dali_feed.engines.dali.region_probes import probes
from dali_feed.testing.scripted import ScriptedSource

COUNT = 150  # two batches of 64 and one of 22, 18 of 8 and one of 6
BAD = 70

on_either = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
of_either = pytest.mark.parametrize("decode", ["exact", "region"])
Decode = Literal["exact", "region"]


@functools.cache
def payloads() -> tuple[bytes, ...]:
    """Every kind that a GPU decodes in a way of its own, so that no two neighbours are of one kind."""
    kinds = list(dict.fromkeys(probe.payload for probe in probes()))
    large = io.BytesIO()  # above the million pixels from which its Huffman codes are the GPU's
    Image.fromarray(pixels(3, 1000, 1200)).save(large, "JPEG", quality=80)
    kinds += [large.getvalue(), jpeg(1, 37, 53), jpeg(2, 200, 17), png(3, 120, 90)]
    return tuple(kinds[n % len(kinds)] for n in range(COUNT))


def epoch(
    device: str, decode: Decode, batch_size: int, *, load: float = 0.0, bad: int | None = None
) -> dict[int, NDArray[np.uint8]]:
    """Sample -> its pixels; every sample has draws of its own. `bad`: the sample that no decoder takes."""
    items: list[Any] = [(payload, n) for n, payload in enumerate(payloads())]
    if bad is not None:
        items[bad] = (broken_png(), bad)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", 'decode="region"')  # its decoder may have failed its test
        loader = DataLoader(
            ScriptedSource(items),
            batch_size,
            transform=v2.RandomResizedCrop(32, scale=(0.3, 1.0)),
            device=device,
            engine="dali",
            decode=decode,
            hw_decoder_load=load,
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
def alone(device: str, decode: Decode) -> dict[int, NDArray[np.uint8]]:
    """Each sample a batch by itself."""
    return epoch(device, decode, 1)


@on_either
@of_either
@pytest.mark.parametrize("batch_size", [8, 64])
def test_a_sample_has_its_bits_in_any_batch(device: str, decode: Decode, batch_size: int) -> None:
    """Those it has alone, in full batches and in the short one at the end."""
    found = epoch(device, decode, batch_size)
    assert list(found) == list(alone(device, decode))
    assert len(found) == COUNT
    assert not [sample for sample, image in found.items() if not np.array_equal(image, alone(device, decode)[sample])]


@on_either
@of_either
@pytest.mark.parametrize("batch_size", [8, 64])
def test_a_sample_has_its_bits_from_the_twin(device: str, decode: Decode, batch_size: int) -> None:
    """A batch with a bad record is run again: its good ones are what they would have been."""
    found = epoch(device, decode, batch_size, bad=BAD)
    assert sorted(found) == [sample for sample in alone(device, decode) if sample != sorted(alone(device, decode))[BAD]]
    assert not [sample for sample, image in found.items() if not np.array_equal(image, alone(device, decode)[sample])]


@pytest.mark.gpu
@of_either
@pytest.mark.parametrize("load", [0.65, 1.0])
@pytest.mark.parametrize("batch_size", [1, 8, 64])
def test_the_jpeg_engines_pixels_are_close(decode: Decode, load: float, batch_size: int) -> None:
    """All samples come, in order, within a few levels of the CUDA decoder's on average; equal bits nobody promises."""
    found = epoch("cuda", decode, batch_size, load=load)
    assert list(found) == list(alone("cuda", decode))
    for sample, image in found.items():
        assert np.abs(image.astype(np.int16) - alone("cuda", decode)[sample]).mean() < 3


@pytest.mark.gpu
@of_either
def test_an_epoch_repeats(decode: Decode) -> None:
    """Bit for bit, in a decoder of its own."""
    again = epoch("cuda", decode, 64)
    assert all(np.array_equal(image, again[sample]) for sample, image in epoch("cuda", decode, 64).items())
