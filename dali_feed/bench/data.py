"""What a bench works on: photographs that are made, or images of the user's own, as files, tar shards and topics.

The photographs are JPEGs cut at random out of those that come with scikit-image and scikit-learn: nothing is
downloaded, and equal arguments give equal files. One is scaled to a little more than the crop's size, then cropped:
500x375 at quality 93, 63 KB on average (ImageNet's mean is 110 KB).
"""

from __future__ import annotations

import functools
import io
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dali_feed.engines.host.decode import new_decoder, refusal
from dali_feed.errors import MissingPackageError, SourceEmptyError
from dali_feed.external_sources import Topics
from dali_feed.packing.sinks import write_shard
from dali_feed.screen.header import UnusableError
from dali_feed.screen.screen import header_of
from dali_feed.storage.durable import user_cache
from dali_feed.testing import broker, publish

WIDTH, HEIGHT, QUALITY, CLASSES = 500, 375, 93, 10
VERSION = 1  # of the photographs; another one makes them anew
SHARDS = 4
LINKS = 12  # names per shard, so that an epoch is long and its end is not what is measured
PARTITIONS = 4
MOCK_BYTES = 4 << 20  # of a partition; the mock broker drops the oldest beyond 5 MiB
MOST_BYTES = 4 << 30  # of copies of a user's own images
IN_MEMORY = 1 << 30  # bytes at most that contestants are fed with from memory
SUFFIXES = {"jpeg": "jpg", "png": "png", "webp": "webp"}  # formats that every loader takes, and under which suffix
# Photographs alone: no drawings, no textures, no microscopy of one colour.
_PHOTOGRAPHS = {
    ("skimage", "data"): (
        *("astronaut.png", "chelsea.png", "coffee.png", "hubble_deep_field.jpg"),
        *("motorcycle_left.png", "motorcycle_right.png", "rocket.jpg"),
    ),
    ("sklearn", "datasets/images"): ("china.jpg", "flower.jpg"),
}


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic with an image in each record's value; `pid`: the broker's process on this machine, if any."""

    name: str
    servers: str
    pid: int | None = None


@dataclass(frozen=True, slots=True)
class Data:
    """The same images in every form that somebody reads.

    Attributes:
        name: what it is, as a table says it.
        files: a folder with a folder for each class, as ImageFolder reads it.
        shards: tar files with members `jpg` (or another suffix) and `cls`.
        count: images.
        mean_bytes: of an image, encoded.
        height, width: of the images; 0 where they differ.
        linked: the shards under several names each, so that an epoch is long; (): they have one name each.
        topic: None: not in a topic.
    """

    name: str
    files: Path
    shards: tuple[Path, ...]
    count: int
    mean_bytes: int
    height: int = 0
    width: int = 0
    linked: tuple[Path, ...] = ()
    topic: Topic | None = None

    def records(self) -> Iterator[tuple[bytes, int]]:
        """(image, label) of each, in the order in which they were written."""
        for path in sorted(self.files.glob("*/*"), key=lambda path: path.name):
            yield path.read_bytes(), int(path.parent.name.removeprefix("class-"))

    def touch(self) -> None:
        """Read everything once, so that it lies in the page cache."""
        for path in (*self.shards, *self.files.glob("*/*")):
            path.read_bytes()


@dataclass(frozen=True, slots=True)
class BenchJob:
    """What everybody does, shuffled: RandomResizedCrop(crop), a flip, float32 (n, 3, crop, crop), Normalize.

    Attributes:
        data: the images.
        batch: images of one.
        device: "cpu" or "cuda:K"; where the batch has to be.
        threads: that each may use for decoding, or processes where it has those.
        crop: height and width of what comes out.
        seed: of what is drawn.
        engine: ours; None: the loader's own choice.
    hardware: the share of JPEGs that a GPU's JPEG engine decodes for us.
    """

    data: Data
    batch: int
    device: str
    threads: int
    crop: int = 224
    seed: int = 0
    engine: str | None = None
    hardware: float = 0.0


def cached(name: str, make: Callable[[Path], None]) -> Path:
    """A folder of that name in the user's cache, made where it is not there; whole or not at all."""
    root = user_cache() / "bench" / name
    if root.exists():
        return root
    work = root.with_name(f"{name}.{os.getpid()}.tmp")
    try:
        work.mkdir(parents=True)
        make(work)
        try:
            work.rename(root)
        except OSError:  # another process was faster: its folder is the same
            if not root.exists():
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return root


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder for the run in the user's cache, gone at its end: images of one's own may be many."""
    home = user_cache() / "bench"
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="run-", dir=home, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def _write(root: Path, images: Iterable[tuple[bytes | memoryview, int, str]]) -> int:
    """Write (payload, label, suffix) of each image into `root`, one at a time, as files and as shards; how many."""
    paths: list[tuple[Path, int, str]] = []
    for number, (payload, label, suffix) in enumerate(images):
        path = root / "files" / f"class-{label}" / f"{number:06d}.{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(payload)
        paths.append((path, label, suffix))
    shards = min(SHARDS, len(paths))
    for k in range(shards):
        first, stop = k * len(paths) // shards, (k + 1) * len(paths) // shards
        some = ({suffix: path.read_bytes(), "cls": b"%d" % label} for path, label, suffix in paths[first:stop])
        write_shard(root / f"train-{k}.tar", some, first=first)
        for n in range(LINKS):
            (root / f"link-{n:02d}-{k}.tar").symlink_to(f"train-{k}.tar")
    return len(paths)


def _data(root: Path, name: str, count: int, size: int, shape: tuple[int, int]) -> Data:
    """What `_write` wrote: `count` images of `size` bytes in all; `shape`: height and width, 0 where they differ."""
    shards, linked = (tuple(sorted(root.glob(f"{kind}-*.tar"))) for kind in ("train", "link"))
    return Data(name, root / "files", shards, count, round(size / count), *shape, linked=linked)


def originals() -> list[Image.Image]:
    """The photographs themselves, from 451x300 to 1000x872."""
    try:
        import skimage
        import sklearn
    except ImportError as error:
        msg = (
            f"bench: its photos come with scikit-image and scikit-learn; found no {error.name}; "
            "pip install 'dali-feed[bench]', or name images of your own"
        )
        raise MissingPackageError(msg, name=error.name) from None
    homes = {"skimage": skimage, "sklearn": sklearn}
    every = [(Path(str(homes[home].__file__)).parent / at, names) for (home, at), names in _PHOTOGRAPHS.items()]
    return [Image.open(folder / name).convert("RGB") for folder, names in every for name in names]


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
        file = io.BytesIO()
        image.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC, box=box).save(file, "JPEG", quality=QUALITY)
        yield file.getvalue()


def photos(count: int = 3000, *, seed: int = 0) -> Data:
    """Make them, or find them in the user's cache (~/.cache/dali_feed/bench, or under XDG_CACHE_HOME)."""

    def make(folder: Path) -> None:
        _write(folder, ((jpeg, k % CLASSES, "jpg") for k, jpeg in enumerate(_jpegs(count, seed))))

    root = cached(f"photos-v{VERSION}-{count}-{seed}", make)
    return _ready(root, f"{count:,} photos of {WIDTH}x{HEIGHT}", count)


def texture(seed: int) -> bytes:
    """A JPEG as costly to decode as a photograph, which needs no photograph: noise of every size, with a tint."""

    def clouds(step: int, channels: int = 1) -> NDArray[np.float32]:
        shape = (channels, -(-HEIGHT // step) + 2, -(-WIDTH // step) + 2)
        small = rng.standard_normal(shape, np.float32)
        large = [Image.fromarray(each).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC) for each in small]
        return np.stack([np.asarray(each) for each in large], axis=-1)

    rng, file = np.random.default_rng(seed), io.BytesIO()
    light = sum(clouds(step) * np.float32(step / 2) for step in (4, 8, 16, 32, 64, 128))
    pixels = 128 + light + 30 * clouds(125, 3) + 5 * rng.standard_normal((HEIGHT, WIDTH, 1), np.float32)
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=QUALITY)
    return file.getvalue()


def textures(count: int, threads: int) -> Data:
    """Images that are made without any package of photographs, or found where `photos` finds its own."""

    def make(folder: Path) -> None:
        with ThreadPoolExecutor(threads) as pool:
            _write(folder, ((jpeg, k % CLASSES, "jpg") for k, jpeg in enumerate(pool.map(texture, range(count)))))

    return _ready(cached(f"textures-v{VERSION}-{count}", make), f"{count:,} textures of {WIDTH}x{HEIGHT}", count)


def _ready(root: Path, name: str, count: int) -> Data:
    """What is cached there, read once."""
    size = sum(path.stat().st_size for path in root.glob("files/*/*.jpg"))
    data = _data(root, name, count, size, (HEIGHT, WIDTH))
    data.touch()
    return data


def own_images(records: Iterable[tuple[memoryview, int]], name: str, folder: Path, *, limit: int = MOST_BYTES) -> Data:
    """Copies of (payload, label) records in `folder`; of those that not every loader decodes the number is told.

    Raises SourceEmptyError where no image is left.
    """
    size, left_out, why, shapes, decoder = 0, 0, "", set[tuple[int, int]](), new_decoder()

    def images() -> Iterator[tuple[memoryview, int, str]]:
        nonlocal size, left_out, why
        for payload, label in records:
            try:
                header = header_of(payload)
                refused = None if header.format in SUFFIXES else f"{header.format.upper()} is not read by every loader"
            except UnusableError as error:
                refused = str(error)
            refused = refused or refusal(decoder, payload)
            if refused is not None:
                left_out, why = left_out + 1, refused
                continue
            size += len(payload)
            shapes.add((header.height, header.width))
            yield payload, label, SUFFIXES[header.format]
            if size > limit:
                return

    written = _write(folder, images())
    if not written:
        rest = f"; {left_out} were left out, the last because: {why}" if left_out else ""
        msg = f"{name}: a bench of loaders needs images that can be decoded; found none{rest}; give other data"
        raise SourceEmptyError(msg)
    rest = f", {left_out} left out ({why})" if left_out else ""
    shape = shapes.pop() if len(shapes) == 1 else (0, 0)
    return _data(folder, f"{written:,} images of {name}{rest}", written, size, shape)


def payloads_of(data: Data, limit: int = IN_MEMORY) -> list[bytes]:
    """Each image's file, spread evenly where they are more than `limit` bytes; the same bytes objects every time."""
    return _read(data.files, min(data.count, max(1, limit // max(1, data.mean_bytes))))


@functools.lru_cache(maxsize=1)
def _read(folder: Path, count: int) -> list[bytes]:
    paths = sorted(path for path in folder.glob("*/*") if path.is_file())
    return [paths[k].read_bytes() for k in np.linspace(0, len(paths) - 1, min(count, len(paths))).round().astype(int)]


@contextmanager
def topic_at(servers: str, records: Iterable[tuple[bytes, int]], *, timeout: float = 10.0) -> Iterator[Topic]:
    """A topic with a name of its own, deleted at the end. Raises what `Topics.create` and `publish` raise."""
    name, topics = f"dali-feed-bench-{uuid.uuid4().hex[:8]}", Topics(servers, timeout=timeout)
    topics.create(name, PARTITIONS)
    try:
        publish(servers, name, records)
        yield Topic(name, servers)
    finally:
        topics.delete(name)


@contextmanager
def topic_here(data: Data) -> Iterator[Topic]:
    """A topic of the images on a mock broker; what that costs of the CPU is this process's own."""
    with broker() as running:
        running.create("photos", max(PARTITIONS, -(-data.count * data.mean_bytes // MOCK_BYTES)))
        publish(running.servers, "photos", data.records())
        yield Topic("photos", running.servers)
