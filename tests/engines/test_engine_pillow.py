"""GIF and WebP in the engines: Pillow's pixels in torchvision's steps."""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from kit.gif_files import gif, gifs, opened
from kit.images import QUICK, encoded, jpeg, pixels, png
from PIL import Image
from torchvision.transforms import v2

from dali_feed.engines.choose import ENGINES
from dali_feed.errors import MissingPackageError
from dali_feed.feed import Feed
from dali_feed.options import BadRecords, Decode
from dali_feed.screen import pillow
from dali_feed.screen.screen import screen
from dali_feed.testing.scripted import ScriptedSource

pytestmark = pytest.mark.filterwarnings("ignore:The image decoding:DeprecationWarning")


def webp(n: int, height: int, width: int) -> bytes:
    """A lossless one."""
    return encoded(pixels(n, height, width), "WEBP", lossless=True)


def mixed(count: int) -> list[bytes]:
    """JPEG, GIF, WebP and PNG by turns, each telling its number."""
    return [(jpeg, gif, webp, png)[n % 4](n, 16, 16) for n in range(count)]


def broken_gif() -> bytes:
    """It passes the screen, and its codes name entries that nobody has made."""
    payload = bytearray(gifs()["gif"])
    at = 13 + (6 << (payload[10] & 7)) + 12
    payload[at : at + 40] = b"\xff" * 40
    return bytes(payload)


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


def fed(payloads: Sequence[bytes], engine: str) -> tuple[list[Any], Feed]:
    """The batches of 8 that a feed gives of the payloads, in their order, and the feed, closed."""
    items = [(payload, n) for n, payload in enumerate(payloads)]
    source = ScriptedSource(items, extent=8)
    feed = Feed(
        source,
        8,
        shuffle=False,
        transform=v2.Resize((16, 16)),
        decode=Decode(engine=engine),
        bad=BadRecords(limit=None),
        tuning=QUICK,
    )
    with feed:
        return list(feed), feed


@pytest.mark.parametrize("engine", ENGINES)
def test_a_feed_of_all_formats(engine: str) -> None:
    """Every engine delivers every record: what its decoder does not take has Pillow's pixels, and steps of its own."""
    payloads = mixed(32)
    batches, feed = fed(payloads, engine)
    assert np.concatenate([batch.ids for batch in batches]).tolist() == list(range(32))
    assert feed.stats().bad == 0
    images = np.concatenate([np.asarray(batch.images) for batch in batches])
    for n, payload in enumerate(payloads):
        assert np.array_equal(images[n], opened(payload).transpose(2, 0, 1))


@pytest.mark.parametrize("engine", ENGINES)
def test_what_pillow_cannot_decode_costs_its_slot(engine: str) -> None:
    """On every engine a GIF that passes the screen and no decoder is replaced in its slot, with the reason."""
    payloads = [broken_gif() if n in (3, 12) else (gif, jpeg)[n % 2](n, 16, 16) for n in range(24)]
    batches, feed = fed(payloads, engine)
    ids = np.concatenate([batch.ids for batch in batches])
    assert ids.tolist() == [{3: 4, 12: 13}.get(n, n) for n in range(24)]
    assert [where for where, _ in feed.stats().recent_bad] == ["scripted[0]@3", "scripted[0]@12"]
    for _, reason in feed.stats().recent_bad:
        assert reason.startswith("decoder: Pillow cannot decode it: OSError: broken data stream")
    images = np.concatenate([np.asarray(batch.images) for batch in batches])
    for n, sample in enumerate(ids.tolist()):
        assert np.array_equal(images[n], opened(payloads[sample]).transpose(2, 0, 1))
