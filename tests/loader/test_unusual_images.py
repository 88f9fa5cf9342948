"""What people expect of unusual and damaged images: their pixels, or a reason that says what was found."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit import kinds
from kit.dali_pipelines import plain
from kit.images import QUICK, bad_tables, broken_png, jpeg
from kit.kinds import opened
from numpy.typing import NDArray
from torchvision.transforms import v2

from dali_feed import BadRecords, DataLoader, Decode
from dali_feed.cli.verify import verify
from dali_feed.dali import DALIClassificationIterator
from dali_feed.external_sources import DeadLetterFolder
from dali_feed.feed import Feed
from dali_feed.screen import pillow
from dali_feed.screen.header import UnusableError
from dali_feed.screen.screen import header_of
from dali_feed.testing import ScriptedSource

LEVELS = kinds.levels(1, "f4")[..., 0]  # 0..255


def gray_tiff(values: NDArray[Any], photometric: int = 1, bits: int | None = None) -> bytes:
    """A TIFF of (height, width) numbers."""
    file: bytes = kinds.tiff(values[..., None], photometric=photometric, bits=bits)
    return file


def odd_and_bad() -> list[bytes]:
    """Good and bad images by turns."""
    stray = jpeg(1)[:20] + b"stray" + jpeg(1)[20:]
    tables = bad_tables()
    return [
        *(jpeg(0), gray_tiff(LEVELS), stray, gray_tiff(LEVELS.astype("u1")), broken_png(), jpeg(2)),
        *(tables[:20] + b"stray" + tables[20:], b"P2 2 2 9 1 2 3 x", jpeg(3), jpeg(4)[:-40], jpeg(5)),
    ]


def quarantined(payloads: Sequence[bytes], engine: str, letters: DeadLetterFolder | None = None) -> dict[str, str]:
    """Where and why, of all that a run replaces."""
    source = ScriptedSource([(payload, n) for n, payload in enumerate(payloads)], extent=4)
    bad = BadRecords(limit=None, dead_letter=letters)
    resize: Any = v2.Resize((8, 8))
    with Feed(source, 4, shuffle=False, transform=resize, decode=Decode(engine=engine), bad=bad, tuning=QUICK) as feed:
        list(feed)
        return dict(feed.stats().recent_bad)


def levels_of(payload: bytes) -> NDArray[np.uint8]:
    """The gray levels that come out of a decoder here."""
    pixels = pillow.decode(memoryview(payload))
    assert (pixels == pixels[..., :1]).all()
    return pixels[..., 0]


@pytest.mark.device
def test_a_gpu_gives_the_same_pixels() -> None:
    """What Pillow decodes reaches a GPU's graph as it is: TIFFs turned in all ways and BMPs, as on the host engine."""
    payloads = [kinds.tiff(kinds.levels(3), photometric=2, orientation=n) for n in range(10)]
    payloads += [kinds.tiff(kinds.levels(4), photometric=5, orientation=n) for n in range(10)]
    source = ScriptedSource([(payload, n) for n, payload in enumerate([*payloads, *dict(kinds.bmps()).values()])])
    found = []
    for engine, device in (("host", "cpu"), ("dali", "cuda:0")):
        how: Any = {"decode": Decode(engine=engine), "device": device, "transform": v2.CenterCrop(7)}
        with DataLoader(source, 16, tuning=QUICK, bad=BadRecords(limit=None), **how) as loader:
            found.append(torch.cat([images.cpu() for images, _ in loader]))
    assert torch.equal(*found)


def test_wide_gray_has_its_upper_bits() -> None:
    """Of 16 and 12 bits the upper eight are taken, whatever the byte order; Pillow would cut off at 255."""
    values = (LEVELS.astype(np.uint16) << 8) + 77
    assert np.array_equal(levels_of(gray_tiff(values)), LEVELS)
    assert np.array_equal(levels_of(gray_tiff(values, photometric=0)), 255 - LEVELS)
    assert np.array_equal(levels_of(gray_tiff(values >> 4, bits=12)), LEVELS)
    big: bytes = kinds.tiff(values[..., None], photometric=1, order=">", deflate=True)
    assert np.array_equal(levels_of(big), LEVELS)
    head = b"P5 %d %d 65535\n" % (kinds.WIDTH, kinds.HEIGHT)
    assert np.array_equal(levels_of(head + (LEVELS.astype(">u2") * 257).tobytes()), LEVELS)


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("f4", "TIFF with floats of 32 bits"),
        ("u4", "TIFF with integers of 32 bits"),
        ("i4", "TIFF with integers of 32 bits"),
        ("i1", "TIFF with signed integers of 8 bits"),
        ("i2", "TIFF with signed integers of 16 bits"),
    ],
)
def test_numbers_that_are_no_levels_are_refused(kind: str, found: str) -> None:
    """Nobody can say what is white there: the reason names the numbers and the cure; Pillow would cut them off."""
    with pytest.raises(UnusableError) as caught:
        levels_of(gray_tiff((LEVELS // 2).astype(kind)))
    assert found in str(caught.value)
    assert "save it with 8 or 16 unsigned bits, or give Bytes(decode=f)" in str(caught.value)


def test_a_tile_may_not_be_far_larger_than_its_image() -> None:
    """A decoder makes room for whole tiles, so a small file with a huge one is refused by its header."""
    payload = kinds.tiff(kinds.levels(3), photometric=2, tile=16)
    large = payload.replace((322).to_bytes(2, "little") + b"\4\0\1\0\0\0\x10\0", b"\x42\1\4\0\1\0\0\0\0\xff")
    large = large.replace((323).to_bytes(2, "little") + b"\4\0\1\0\0\0\x10\0", b"\x43\1\4\0\1\0\0\0\0\xff")
    assert header_of(payload).width == 12
    with pytest.raises(UnusableError, match="TIFF with tiles of 65280x65280 pixels in an image of 84"):
        header_of(large)


def test_a_users_own_pipeline_gets_them_too() -> None:
    """Its decoder sees an image like any other, of Pillow's pixels; one that Pillow refuses costs its slot."""
    payloads = [kinds.tiff(kinds.levels(4), photometric=5, orientation=6), jpeg(1), gray_tiff(LEVELS), jpeg(3)]
    source = ScriptedSource([(payload, n) for n, payload in enumerate(payloads)], extent=4)
    with DALIClassificationIterator(plain, source, bad=BadRecords(limit=None)) as batches:
        (batch,) = next(iter(batches))
        assert batch["label"].flatten().tolist() == [0, 1, 3, 3]
        whole = torch.from_numpy(opened(payloads[0]).astype(np.float32))
        assert abs(batch["data"][0].float().mean() - whole.mean()) < 4  # made larger
        assert [where for where, _ in batches.stats().recent_bad] == ["scripted[0]@2"]


@pytest.mark.parametrize("engine", ["dali", "host"])
def test_verify_agrees_with_the_loader(engine: str) -> None:
    """What `verify --decode` finds bad, a run replaces, and for the same reason; and nothing else."""
    source = ScriptedSource([(payload, n) for n, payload in enumerate(odd_and_bad())], extent=4)
    report = verify(source, source.snapshot(), decode=True)
    found = dict(text.split(": ", 1) for kind in report.failures.values() for text in kind.first)
    assert len(found) == report.failed == 5
    assert quarantined(odd_and_bad(), engine) == found


@pytest.mark.parametrize("engine", ["dali", "host"])
def test_a_letter_has_the_record_as_it_was(engine: str, tmp_path: Path) -> None:
    """A file that is written anew for the decoder, and then refused by it, is kept as it came."""
    letters = DeadLetterFolder(str(tmp_path / "dead"))
    quarantined(odd_and_bad(), engine, letters)
    kept = {letter.position: letter.payload for letter in letters.read()}
    assert kept == {n: odd_and_bad()[n] for n in (1, 4, 6, 7, 9)}
