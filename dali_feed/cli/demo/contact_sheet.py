"""One augmented batch of photographs as a picture: what the loader gives, slot by slot, with coordinates."""

from __future__ import annotations

import io
import tempfile
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from skimage import data
from sklearn.datasets import load_sample_images
from torchvision.transforms import v2

from dali_feed.errors import ConfigError
from dali_feed.external_sources import ShardSet
from dali_feed.loader import DataLoader
from dali_feed.loader.loader import Info
from dali_feed.options import BadRecords
from dali_feed.testing.shards import write_shard

__all__ = ["Sheet", "make"]

SIDE = 160
COPIES = 4  # of each photograph; each has its own draws
COLUMNS = 6
GAP, EDGE, CAPTION, TITLE = 10, 22, 22, 58
PAPER, INK, DIM, AMBER = "#16181d", "#e8eaed", "#9aa0a6", "#fdb44b"
TEXT = "RandomResizedCrop(160), RandomHorizontalFlip, ColorJitter"


@dataclass(frozen=True, slots=True)
class Sheet:
    """What the picture shows: slots of one batch, how many of them were replaced, and for which bad records."""

    slots: int
    replaced: int
    bad: tuple[tuple[str, str], ...]


def make(out: Path, device: str | None, seed: int = 0) -> Sheet:
    """Run photographs from tar shards, one of them cut off, through the loader and write the batch to `out`.

    Raises:
        ConfigError: `out` cannot be written.
    """
    with tempfile.TemporaryDirectory(prefix="dali-feed-") as folder:
        _write_shards(Path(folder))
        jitter = v2.ColorJitter(brightness=0.25, contrast=0.25, saturation=0.35, hue=0.03)
        crop = v2.RandomResizedCrop(SIDE, scale=(0.25, 1.0))
        with DataLoader(
            ShardSet(f"{folder}/*.tar", label=None),
            COPIES * COLUMNS,
            shuffle=True,
            device=device,
            seed=seed,
            transform=v2.Compose([crop, v2.RandomHorizontalFlip(), jitter]),
            bad=BadRecords(limit=1),
            info=True,
        ) as loader:
            images, info = next(iter(loader))
            bad = loader.stats().recent_bad
    pixels = images.permute(0, 2, 3, 1).cpu().numpy()
    try:
        _draw(pixels, info, bad).save(out)
    except (OSError, ValueError) as error:  # ValueError: a suffix that Pillow does not know
        msg = f"{out}: the contact sheet must be a picture file that can be written; found: {error}"
        raise ConfigError(msg) from error
    return Sheet(len(pixels), int((~info.ok).sum()), bad)


def _write_shards(folder: Path) -> None:
    """A shard per photograph. They come with scikit-image and scikit-learn; nothing is downloaded."""
    china, flower = load_sample_images().images
    photos = {
        "astronaut": data.astronaut(),  # type: ignore[no-untyped-call]
        "cat": data.chelsea(),  # type: ignore[no-untyped-call]
        "china": china,
        "coffee": data.coffee(),  # type: ignore[no-untyped-call]
        "flower": flower,
        "rocket": data.rocket(),  # type: ignore[no-untyped-call]
    }
    for name, pixels in photos.items():
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG", quality=92)
        copies = [file.getvalue()] * COPIES
        if name == "coffee":
            copies[2] = copies[2][: len(copies[2]) // 2]
        write_shard(folder / f"{name}.tar", copies)


def _font(size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(Path(mpl.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf"), size)


def _draw(pixels: NDArray[np.uint8], info: Info, bad: tuple[tuple[str, str], ...]) -> Image.Image:
    rows = -(-len(pixels) // COLUMNS)
    width = 2 * EDGE + COLUMNS * SIDE + (COLUMNS - 1) * GAP
    foot = CAPTION - 8 if bad else 0
    height = TITLE + rows * (SIDE + CAPTION + GAP) + foot + EDGE - GAP
    sheet = Image.new("RGB", (width, height), PAPER)
    draw = ImageDraw.Draw(sheet)
    draw.text((EDGE, 14), f"one batch of {len(pixels)}", INK, _font(17))
    draw.text((width - EDGE, 18), TEXT, DIM, _font(12), anchor="ra")
    small = _font(11)
    for slot, (image, where, ok) in enumerate(zip(pixels, info.where, info.ok.tolist(), strict=True)):
        x = EDGE + slot % COLUMNS * (SIDE + GAP)
        y = TITLE - 10 + slot // COLUMNS * (SIDE + CAPTION + GAP)
        sheet.paste(Image.fromarray(image), (x, y))
        if not ok:
            draw.rectangle((x - 2, y - 2, x + SIDE + 1, y + SIDE + 1), outline=AMBER, width=2)
        draw.text((x, y + SIDE + 5), where if ok else f"{where} stands in", DIM if ok else AMBER, small)
    if bad:
        where, reason = bad[0]
        draw.text((EDGE, height - EDGE - 4), f"bad: {where}: {reason}", AMBER, small)
    return sheet
