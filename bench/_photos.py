"""The data of the benchmarks: JPEGs cut at random out of photographs that come with scikit-image and scikit-learn.

    python bench/_photos.py [--photos 3000] [--data FOLDER]      makes them, so that no clock runs meanwhile

Nothing is downloaded. DALI_FEED_ORIGINALS names a folder with copies of those photographs, for a machine without the
two packages. Equal arguments give equal files. A photograph is scaled to a little more than the crop's size,
then cropped: 500x375 at quality 93, 29 to 90 KB a file and 63 KB on average (ImageNet's mean is 110 KB). What it came
to is in `Photos.mean_bytes`, and every row of a benchmark repeats it.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from dali_feed.testing.shards import write_shard

__all__ = ["Photos", "cache_folder", "originals", "photos"]

WIDTH, HEIGHT = 500, 375
QUALITY = 93
SHARDS = 4
LINKS = 12  # names per shard, so that an epoch is long and its end is not what is measured
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
        return [str(self.root / f"train-{k}.tar") for k in range(SHARDS)]

    @property
    def linked(self) -> list[str]:
        """The tar files under LINKS names each: as many times the samples in the same page cache."""
        return [str(self.root / f"link-{n:02d}-{k}.tar") for n in range(LINKS) for k in range(SHARDS)]

    @property
    def files(self) -> Path:
        """A folder as torchvision's ImageFolder takes it."""
        return self.root / "files"

    def records(self) -> Iterator[tuple[bytes, int]]:
        """(JPEG, label) of each image, in order."""
        for k in range(self.count):
            yield _file(self.root, k).read_bytes(), k % CLASSES

    def touch(self) -> None:
        """Read everything once, so that it lies in the page cache."""
        for path in (*self.shards, *map(str, self.files.glob("*/*.jpg"))):
            with Path(path).open("rb") as file:
                while file.read(1 << 20):
                    pass


def _file(root: Path, k: int) -> Path:
    return root / "files" / f"class-{k % CLASSES}" / f"{k:06d}.jpg"


def originals() -> list[Image.Image]:
    """The photographs themselves, from 451x300 to 1000x872."""
    if folder := os.environ.get("DALI_FEED_ORIGINALS"):
        found = sorted(path for path in Path(folder).iterdir() if path.name in _SKIMAGE + _SKLEARN)
        return [Image.open(path).convert("RGB") for path in found]
    import skimage
    import sklearn

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
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "dali_feed" / "bench"


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
    for label in range(min(CLASSES, count)):
        (root / "files" / f"class-{label}").mkdir(parents=True)
    for k, jpeg in enumerate(_jpegs(count, seed)):
        _file(root, k).write_bytes(jpeg)
    made = Photos(root, count, 0)
    records = list(made.records())
    for k, path in enumerate(made.shards):
        first, stop = k * count // SHARDS, (k + 1) * count // SHARDS
        write_shard(path, records[first:stop], first=first)
    for n, path in enumerate(made.linked):
        Path(path).symlink_to(Path(made.shards[n % SHARDS]).name)


def main() -> None:
    """Make them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=int, default=3000)
    parser.add_argument("--data", type=Path, default=None, help="where they are kept (default: the user's cache)")
    args = parser.parse_args()
    made = photos(args.photos, cache=args.data)
    print(f"{made.count} photographs of {made.mean_bytes} bytes on average in {made.root}")


if __name__ == "__main__":
    main()
