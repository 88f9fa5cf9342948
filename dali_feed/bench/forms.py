"""The same images as files and as tar shards, in one folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from dali_feed.bench.contract import Data
from dali_feed.testing.shards import write_shard

__all__ = ["SHARDS", "data_in", "file_of", "files_in", "linked_in", "shards_in", "touch", "write_forms"]

SHARDS = 4
LINKS = 12  # names per shard, so that an epoch is long and its end is not what is measured


def files_in(root: Path) -> Path:
    """A folder as torchvision's ImageFolder takes it."""
    return root / "files"


def shards_in(root: Path) -> list[Path]:
    """The tar files, each once."""
    return [root / f"train-{k}.tar" for k in range(SHARDS)]


def linked_in(root: Path) -> list[Path]:
    """The tar files under LINKS names each: as many times the samples in the same page cache."""
    return [root / f"link-{n:02d}-{k}.tar" for n in range(LINKS) for k in range(SHARDS)]


def file_of(root: Path, number: int, label: int, suffix: str) -> Path:
    """Where an image is as a file."""
    return files_in(root) / f"class-{label}" / f"{number:06d}.{suffix}"


def write_forms(root: Path, images: Iterable[tuple[bytes | memoryview, int, str]]) -> list[Path]:
    """Write (payload, label, suffix) of each image into `root`; the files, in order. It holds one image at a time."""
    paths: list[tuple[Path, int, str]] = []
    for number, (payload, label, suffix) in enumerate(images):
        path = file_of(root, number, label, suffix)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(payload)
        paths.append((path, label, suffix))
    shards = min(SHARDS, len(paths))
    for k, shard in enumerate(shards_in(root)[:shards]):
        first, stop = k * len(paths) // shards, (k + 1) * len(paths) // shards
        write_shard(shard, _members(paths[first:stop]), first=first)
        for link in linked_in(root)[k::SHARDS]:
            link.symlink_to(shard.name)
    return [path for path, _, _ in paths]


def _members(paths: Iterable[tuple[Path, int, str]]) -> Iterator[dict[str, bytes]]:
    for path, label, suffix in paths:
        yield {suffix: path.read_bytes(), "cls": b"%d" % label}


def data_in(root: Path, name: str, count: int, size: int, shape: tuple[int, int]) -> Data:
    """What a bench is told of `count` images of `size` bytes in all; `shape`: height and width, 0 where they differ."""
    shards = tuple(path for path in shards_in(root) if path.exists())
    linked = tuple(path for path in linked_in(root) if path.exists())
    return Data(name, files_in(root), shards, count, round(size / count), *shape, linked=linked)


def touch(data: Data) -> None:
    """Read everything once, so that it lies in the page cache."""
    for path in (*data.shards, *data.files.glob("*/*")):
        with path.open("rb") as file:
            while file.read(1 << 20):
                pass
