"""What people expect of unusual images: ImageFolder's pixels on both engines, or a reason that says what was found."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from kit import kinds
from kit.dali_pipelines import plain
from kit.images import QUICK, jpeg
from kit.kinds import opened
from kit.warm import Warm
from numpy.typing import NDArray
from odd_images import LEVELS, gray_tiff, odd_and_bad, quarantined
from PIL import Image
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from dali_feed import BadRecords, DataLoader, Decode
from dali_feed.cli.verify import verify
from dali_feed.dali import DALIClassificationIterator
from dali_feed.external_sources import DeadLetterFolder
from dali_feed.screen import pillow
from dali_feed.screen.header import UnusableError
from dali_feed.screen.screen import header_of
from dali_feed.testing import ScriptedSource


def levels_of(payload: bytes) -> NDArray[np.uint8]:
    """The gray levels that come out of a decoder here."""
    pixels = pillow.decode(memoryview(payload))
    assert (pixels == pixels[..., :1]).all()
    return pixels[..., 0]


def files() -> dict[str, bytes]:
    """By name in the folder, all 12x7 or 7x12: PPM and PGM, TIFFs turned in all ways, BMPs, and others."""
    colour = Image.fromarray(kinds.levels(3))
    out = {f"turned {n}.tif": kinds.tiff(kinds.levels(3), photometric=2, orientation=n) for n in range(10)}
    out |= {f"cmyk turned {n}.tiff": kinds.tiff(kinds.levels(4), photometric=5, orientation=n) for n in range(10)}
    for name, kind in (("ppm", "PPM"), ("pgm", "PPM"), ("bmp", "BMP")):
        file = io.BytesIO()
        (colour.convert("L") if name == "pgm" else colour).save(file, kind)
        out[f"plain.{name}"] = file.getvalue()
    named = [(f"{n}.bmp", payload) for n, (_, payload) in enumerate(kinds.bmps())]
    named += [(f"{n}.jpg", payload) for n, (_, payload) in enumerate(kinds.jpegs())]
    named += [(f"{n}.png", payload) for n, (name, payload) in enumerate(kinds.made_odd()) if name.startswith("png")]
    return out | {name: payload for name, payload in named if readable(payload)}


def readable(payload: bytes) -> bool:
    """Whether Pillow has an image of it."""
    try:
        opened(payload)
    except OSError:
        return False
    return True


@pytest.mark.parametrize("engine", ["dali", "host"])
def test_a_folder_has_imagefolders_pixels(engine: str, tmp_path: Path) -> None:
    """ImageFolder's samples, whose files are of all these kinds, come out as they do with torch's own loader."""
    (tmp_path / "a").mkdir()
    for name, payload in files().items():
        (tmp_path / "a" / name).write_bytes(payload)
    folder = ImageFolder(str(tmp_path), transform=v2.Compose([v2.ToImage(), v2.Resize((7, 12))]))
    assert len(folder) == len(files()) > 50
    same = [n for n in range(len(folder)) if np.asarray(folder.loader(folder.samples[n][0])).shape == (7, 12, 3)]
    want = torch.stack([folder[n][0] for n in same])
    loader = DataLoader(folder, 16, decode=Decode(engine=engine), device="cpu", tuning=QUICK, bad=BadRecords(limit=0))
    found = torch.cat([images for images, _ in loader])
    assert torch.equal(found[same], want)
    turned = sorted(set(range(len(folder))) - set(same))  # made smaller, by a kernel that is each engine's own
    apart = found[turned].int() - torch.stack([folder[n][0] for n in turned]).int()
    assert apart.abs().float().mean() <= (0 if engine == "host" else 0.5)


@pytest.mark.gpu
def test_a_gpu_gives_the_same_pixels(tmp_path: Path) -> None:
    """What Pillow decodes reaches a GPU's graph as it is: the host engine's pixels, JPEGs aside."""
    (tmp_path / "a").mkdir()
    for name, payload in files().items():
        if not name.endswith((".jpg", ".png")):
            (tmp_path / "a" / name).write_bytes(payload)
    folder = ImageFolder(str(tmp_path), transform=v2.Compose([v2.ToImage(), v2.CenterCrop(7)]))
    found = []
    for engine, device in (("host", "cpu"), ("dali", "cuda:0")):
        with DataLoader(
            folder, 16, decode=Decode(engine=engine), device=device, tuning=QUICK, bad=BadRecords(limit=0)
        ) as loader:
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


TALK = """
import sys
sys.path[:0] = {path!r}
from odd_images import odd_and_bad, quarantined
for engine in ("host", "dali"):
    assert len(quarantined(odd_and_bad(), engine)) == 5
import os
assert not [name for name in os.environ if "NVIMGCODEC" in name or "OPENCV" in name]
"""


def test_damaged_images_print_no_errors_of_libraries(
    warm: Warm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither nvImageCodec nor OpenCV writes to the terminal, and our environment stays as it was."""
    for name in [name for name in os.environ if "NVIMGCODEC" in name or "OPENCV" in name]:
        monkeypatch.delenv(name)
    (tmp_path / "script.py").write_text(TALK.format(path=sys.path))
    done = warm.run(["script.py"], tmp_path, beside=False)
    assert done.returncode == 0, done.stderr
    assert "[ERROR" not in done.stdout + done.stderr
    assert "[WARNING" not in done.stdout + done.stderr
