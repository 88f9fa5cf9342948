"""The data of the benchmarks: JPEGs cut at random out of photographs that come with scikit-image and scikit-learn.

Nothing is downloaded. DALI_FEED_ORIGINALS names a folder with copies of those photographs, for a machine without the
two packages. Equal arguments give equal files. A photograph is scaled to a little more than the crop's size,
then cropped: 500x375 at quality 93, 29 to 90 KB a file and 63 KB on average (ImageNet's mean is 110 KB). What it came
to is in `Photos.mean_bytes`, and every row of a benchmark repeats it.
"""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from dali_feed.bench.contract import Data
from dali_feed.bench.forms import data_in, file_of, files_in, touch, write_forms
from dali_feed.errors import MissingPackageError
from dali_feed.storage.durable import user_cache

__all__ = ["Photos", "cache_folder", "originals", "photos"]

WIDTH, HEIGHT = 500, 375
QUALITY = 93
CLASSES = 10
VERSION = 1  # of what is made here; another one makes it anew

# Photographs alone: no drawings, no textures, no microscopy of one colour.
_SKIMAGE = (
    "astronaut.png",
    "chelsea.png",
    "coffee.png",
    "hubble_deep_field.jpg",
    "motorcycle_left.png",
    "motorcycle_right.png",
    "rocket.jpg",
)
_SKLEARN = ("china.jpg", "flower.jpg")


@dataclass(frozen=True, slots=True)
class Photos:
    """The same images twice: `root`/train-*.tar with labels, and `root`/files/CLASS/NUMBER.jpg."""

    root: Path
    count: int
    mean_bytes: int

    @property
    def shards(self) -> list[str]:
        """The tar files, each once."""
        return [str(path) for path in self.data.shards]

    @property
    def linked(self) -> list[str]:
        """The tar files under several names each: as many times the samples in the same page cache."""
        return [str(path) for path in self.data.linked]

    @property
    def files(self) -> Path:
        """A folder as torchvision's ImageFolder takes it."""
        return files_in(self.root)

    @property
    def data(self) -> Data:
        """What a bench is given."""
        name = f"{self.count:,} photos of {WIDTH}x{HEIGHT}"
        return data_in(self.root, name, self.count, self.count * self.mean_bytes, (HEIGHT, WIDTH))

    def records(self) -> Iterator[tuple[bytes, int]]:
        """(JPEG, label) of each image, in order."""
        for k in range(self.count):
            yield file_of(self.root, k, k % CLASSES, "jpg").read_bytes(), k % CLASSES

    def touch(self) -> None:
        """Read everything once, so that it lies in the page cache."""
        touch(self.data)


def originals() -> list[Image.Image]:
    """The photographs themselves, from 451x300 to 1000x872."""
    if folder := os.environ.get("DALI_FEED_ORIGINALS"):
        found = sorted(path for path in Path(folder).iterdir() if path.name in _SKIMAGE + _SKLEARN)
        return [Image.open(path).convert("RGB") for path in found]
    try:
        import skimage
        import sklearn
    except ImportError as error:
        msg = (
            f"bench: its photos come with scikit-image and scikit-learn; found no {error.name}; "
            "pip install 'dali-feed[demo]', or name images of your own"
        )
        raise MissingPackageError(msg, name=error.name) from None
    folders = ((skimage, "data", _SKIMAGE), (sklearn, "datasets/images", _SKLEARN))
    paths = [Path(str(package.__file__)).parent / folder / name for package, folder, names in folders for name in names]
    return [Image.open(path).convert("RGB") for path in paths]


def _jpegs(count: int, seed: int) -> Iterator[bytes]:
    pictures, rng = originals(), np.random.default_rng(seed)
    for _ in range(count):
        image = pictures[rng.integers(len(pictures))]
        least = max(WIDTH / image.width, HEIGHT / image.height)
        scale = least * (1 + 0.15 * rng.random())
        wide, high = max(WIDTH, round(image.width * scale)), max(HEIGHT, round(image.height * scale))
        x, y = int(rng.integers(wide - WIDTH + 1)), int(rng.integers(high - HEIGHT + 1))
        per_x, per_y = image.width / wide, image.height / high
        box = (x * per_x, y * per_y, (x + WIDTH) * per_x, (y + HEIGHT) * per_y)
        crop = image.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC, box=box)
        file = io.BytesIO()
        crop.save(file, "JPEG", quality=QUALITY)
        yield file.getvalue()


def cache_folder() -> Path:
    """Where what is made here is kept, unless told."""
    return user_cache() / "bench"


def photos(count: int = 3000, *, seed: int = 0, cache: Path | None = None) -> Photos:
    """Make them, or find them in `cache` (~/.cache/dali_feed/bench, or under XDG_CACHE_HOME)."""
    root = (cache or cache_folder()) / f"photos-v{VERSION}-{count}-{seed}"
    if not root.exists():
        work = root.with_name(f"{root.name}.{os.getpid()}.tmp")
        try:
            _make(work, count, seed)
            work.rename(root)  # whole or not at all
        finally:
            shutil.rmtree(work, ignore_errors=True)
    total = sum(path.stat().st_size for path in (root / "files").glob("*/*.jpg"))
    return Photos(root, count, round(total / count))


def _make(root: Path, count: int, seed: int) -> None:
    write_forms(root, ((jpeg, k % CLASSES, "jpg") for k, jpeg in enumerate(_jpegs(count, seed))))
