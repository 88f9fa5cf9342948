"""Payloads that are pixels: a PPM's window without a decoder, with the decoder's bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from kit.images import QUICK, encoded, pixels
from kit.photographs import photographs
from kit.recipes import CASES
from kit.torchvision_way import ran
from nvidia.dali.tensors import TensorCPU
from torchvision.transforms import v2

from dali_feed.engines.dali.graph import prepared
from dali_feed.engines.host.decode import decoded, new_decoder
from dali_feed.feed import Feed
from dali_feed.options import Decode
from dali_feed.screen import pillow
from dali_feed.screen.pillow import is_usual, pnm, raw_pixels
from dali_feed.testing.scripted import ScriptedSource
from dali_feed.transforms.op import Recipe

pytestmark = pytest.mark.filterwarnings("ignore:The image decoding:DeprecationWarning")
WINDOWS = [None, (0, 0, 9, 7), (5, 3, 1, 20), (21, 18, 10, 13)]


def raw(payload: bytes) -> bytes:
    """A photograph as the host engine decodes it, uncompressed."""
    return pnm(decoded(new_decoder(), memoryview(payload), None))


@pytest.mark.parametrize("window", WINDOWS)
def test_a_window_is_a_view_of_the_payload(window: tuple[int, ...] | None) -> None:
    """Of a PPM in memory that can be written nothing is copied, and the pixels are those of the decoder's way."""
    payload = memoryview(bytearray(encoded(pixels(3, 31, 40), "PPM")))
    found = raw_pixels(payload, window)
    assert found is not None
    assert np.shares_memory(found, np.frombuffer(payload, np.uint8))
    assert np.array_equal(found, pillow.decode(payload, window))


def test_what_cannot_be_written_is_copied() -> None:
    """Torch warns of arrays over memory that is not its own to write, such as a mapped table's."""
    payload = memoryview(encoded(pixels(3, 31, 40), "PPM"))
    assert payload.readonly
    torch.from_numpy(decoded(new_decoder(), payload, WINDOWS[1]))  # a warning is an error here


@pytest.mark.parametrize("name", ["training", "evaluation", "uint8", "padded crop"])
def test_a_batch_from_pixels_has_the_bits_of_one_from_jpegs(name: str) -> None:
    """A payload of pixels gives what the JPEG that it was made of gives, and stays as it is: another try may come."""
    files, ids = photographs()[:4], range(4)
    plain = [raw(file) for file in files]
    views: Any = [memoryview(bytearray(each)) for each in plain]
    for one, other in zip(ran(Recipe(CASES[name]), files, ids), ran(Recipe(CASES[name]), views, ids), strict=True):
        assert torch.equal(one, other)
    assert [view.tobytes() for view in views] == plain


@pytest.mark.parametrize("write", [pnm, lambda array: encoded(array, "PPM")], ids=["ours", "Pillow's"])
def test_the_dali_engine_reads_pixels_too(write: Any) -> None:
    """Its own decoder is given the PPM as it is: a crop of it has the very pixels."""
    files = [write(pixels(n, 24, 30)) for n in range(4)]
    (given,) = prepared([memoryview(files[0])])
    assert isinstance(given, TensorCPU)
    with Feed(
        ScriptedSource(files), 4, transform=v2.CenterCrop(20), decode=Decode(engine="dali"), tuning=QUICK
    ) as feed:
        (batch,) = feed
        for n, image in enumerate(np.asarray(batch.images)):
            assert np.array_equal(image.transpose(1, 2, 0), pixels(n, 24, 30)[2:22, 5:25])


@pytest.mark.parametrize(
    "payload",
    [b"P6\n# why\n1 1\n255\n123", b"P6  1 1 255\n123", b"P6 1 1 255\n1234", b"P6 1 1 255\n12", b"P6 0 1 255\n"],
    ids=["a comment", "two spaces", "more behind", "cut", "none"],
)
def test_an_unusual_one_is_read_before_the_graph(payload: bytes) -> None:
    """What another parser might read in another way, or not at all, is not given to it."""
    assert not is_usual(memoryview(payload))
