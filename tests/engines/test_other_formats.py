"""What nvImageCodec does not decode: GIF, WebP and other formats by Pillow, payloads that are pixels, and turning."""

from __future__ import annotations

import struct
import sys

import numpy as np
import pytest
import torch
from kit.images import QUICK, encoded, jpeg, pixels, png
from kit.kinds import gif, gifs, opened
from PIL import Image
from torchvision.transforms import v2

from dali_feed.engines.dali.images import DaliImages
from dali_feed.engines.engine import Part
from dali_feed.engines.host.decode import decoded, new_decoder
from dali_feed.errors import MissingPackageError
from dali_feed.feed import Feed
from dali_feed.options import Decode
from dali_feed.screen import pillow
from dali_feed.screen.pillow import is_usual, pnm, raw_pixels
from dali_feed.screen.screen import screen
from dali_feed.testing.scripted import ScriptedSource

pytestmark = pytest.mark.filterwarnings("ignore:The image decoding:DeprecationWarning")


def kinds() -> dict[str, bytes]:
    """A file of each kind that Pillow decodes, and masks of two others."""
    levels = pixels(0, 31, 40)[..., 0]
    some = {f"webp {lossless}": encoded(pixels(0, 31, 40), "WEBP", lossless=lossless) for lossless in (False, True)}
    some |= {kind: encoded(pixels(0, 31, 40), kind) for kind in ("TIFF", "BMP", "PPM")}
    return gifs() | some | {"lzw": encoded(levels, "TIFF", compression="tiff_lzw")}


def test_pillows_own_bound_and_warnings_have_no_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """An image above Pillow's bound on pixels, which is the user's, is good; so is one of which Pillow warns."""
    want = {name: opened(payload) for name, payload in kinds().items()}
    mask = encoded(pixels(0, 31, 40)[..., 0], "PNG")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1)
    for name, payload in kinds().items():
        assert not screen([memoryview(payload)]).reasons
        assert np.array_equal(pillow.decode(memoryview(payload)), want[name]), name
    assert pillow.opened(mask).size == (40, 31)
    assert Image.MAX_IMAGE_PIXELS == 1
    monkeypatch.undo()
    odd = bytearray(encoded(pixels(0, 31, 40), "TIFF"))
    at = odd.index(struct.pack("<HHI", 284, 3, 1))
    odd[at : at + 8] = struct.pack("<HHI", 284, 3, 2)  # two values where one is expected
    with pytest.warns(UserWarning, match="Metadata Warning"):
        opened(bytes(odd))
    assert pillow.decode(memoryview(odd)).shape == (31, 40, 3)  # a warning is an error here


def test_without_pillow_the_run_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """That is no fault of the record's: it is never counted as bad."""
    views = [memoryview(payload) for payload in (gif(), jpeg(0), png(0))]
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingPackageError, match="pip install pillow"):
        screen(views)
    assert not screen(views[1:]).reasons


WINDOWS = [None, (0, 0, 9, 7), (5, 3, 1, 20), (21, 18, 10, 13)]


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


def test_the_dali_engine_reads_pixels_too() -> None:
    """Its own decoder is given the PPM as it is, ours or Pillow's: a crop of it has the very pixels."""
    files = [*(pnm(pixels(n, 24, 30)) for n in range(2)), *(encoded(pixels(n, 24, 30), "PPM") for n in (2, 3))]
    assert not DaliImages.aside(Part([memoryview(files[0])], []))
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
