"""Records of any shape: small arrays from tar and from Kafka beside straight reads; pairs beside images.

    python bench/columns.py [arrays features kafka pairs]

arrays    32x32x3 uint8 and a label from tar shards in the page cache. `straight` reads the same files in order by one
          thread, 4 MiB at a time. `ours` reads shuffled record by record, `windows` in windows of 32 extents of 256,
          `in order` not shuffled.
features  2048 float32 (8 KB) and a label
kafka     the arrays in a topic: our loader with and without labels, `straight`: our reader alone, and `plain`
pairs     500x375 JPEGs: the image with its caption, mask or boxes beside the image alone, and image and label with
          columns= beside image and label without
"""

from __future__ import annotations

import io
import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from _common import Heat, Options, broker, main, new_topic, once
from PIL import Image as Picture

from dali_feed import Shuffle
from dali_feed.bench.data import SHARDS, Topic, cached, photos
from dali_feed.bench.kafka import TopicReading, extents_of, plain
from dali_feed.bench.ours import loader, ours, transform
from dali_feed.bench.runner import Called, Contestant, Opens, Steps
from dali_feed.columns import Array, Boxes, Column, Image, Mask, Number, Text
from dali_feed.external_sources import KafkaTopic, ShardSet
from dali_feed.testing import publish
from dali_feed.testing.shards import write_shard

READ, CLASSES = 4 << 20, 1000
WINDOWS = Shuffle(extent=256, window=32)


@dataclass(frozen=True)
class Small:
    """Records of one array and a label: `suffix` and `cls` in tar shards."""

    paths: tuple[str, ...]
    count: int
    suffix: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes of an array."""
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize

    def records(self) -> Iterator[tuple[bytes, int]]:
        """(array, label) of each."""
        rng = np.random.default_rng(0)
        for k in range(self.count):
            yield rng.bytes(self.size), k % CLASSES


def small(options: Options, name: str) -> Small:
    """The arrays or the features, made once, in the page cache."""
    suffix, dtype, shape = ("bin", "uint8", (32, 32, 3)) if name == "arrays" else ("f32", "float32", (2048,))
    which = Small((), max(600, int(options.scale * (60_000 if name == "arrays" else 20_000))), suffix, dtype, shape)

    def make(folder: Path) -> None:
        records = [{suffix: data, "cls": b"%d" % label} for data, label in which.records()]
        for k in range(SHARDS):
            write_shard(folder / f"{k}.tar", records[k::SHARDS])

    root = cached(f"columns-v2-{suffix}-{which.count}", make)
    for path in root.iterdir():
        path.read_bytes()
    return replace(which, paths=tuple(sorted(map(str, root.glob("*.tar")))))


def straight(which: Small) -> Opens:
    """A plain sequential read of the files, by one thread, into memory that is used again."""
    per_byte = which.count / sum(Path(path).stat().st_size for path in which.paths)

    @contextmanager
    def opens(_: str) -> Iterator[Steps]:
        def sizes() -> Iterator[int]:
            into = memoryview(bytearray(READ))
            for path in itertools.cycle(which.paths):
                with Path(path).open("rb", buffering=0) as file:
                    while size := file.readinto(into):
                        yield size

        read = sizes()
        yield Called(lambda: next(read) * per_byte)

    return opens


def of_source(source: Callable[[], Any], batch: int, **options: Any) -> Opens:
    """Our loader."""
    return ours(lambda: loader(source(), batch, **options))


def tars(options: Options, name: str) -> Iterator[Heat]:
    """Ours, the straight read, and peers, over tar shards."""
    which = small(options, name)
    kinds: dict[str, Column] = {"x": Array(which.suffix, which.dtype, which.shape), "y": Number("cls")}
    chosen = [Contestant("straight", straight(which), role="top")]
    for who, shuffle in (("ours", True), ("windows", WINDOWS), ("in order", False)):
        opens = of_source(lambda: ShardSet(which.paths), 256, columns=kinds, shuffle=shuffle)
        chosen.append(Contestant(who, opens, role="ours", beside="straight"))
    yield Heat(f"{name}, tar", chosen, "records", options.seconds)


def kafka(options: Options) -> Iterator[Heat]:
    """Whole passes over a topic, from making the readers on."""
    which = small(options, "arrays")
    with broker() as cluster, new_topic(cluster) as name:
        publish(cluster.servers, name, which.records())
        source = KafkaTopic(name, cluster.servers)

        def alone() -> int:
            with closing(TopicReading(source, extents_of(source, shuffled=False), 2)) as sizes:
                return sum(count for count, _ in sizes)

        def plainly() -> int:
            return sum(count for count, _ in plain(Topic(name, cluster.servers), {}, count=which.count))

        def loaded(kinds: dict[str, Column]) -> int:
            topic = KafkaTopic(name, cluster.servers, label=None)
            with loader(topic, 256, columns=kinds, shuffle=False, drop_last=False) as feeding:
                return sum(len(item["x"]) for item in feeding)

        array: dict[str, Column] = {"x": Array("value", which.dtype, which.shape)}
        chosen = [Contestant("straight", once(alone), role="top"), Contestant("plain", once(plainly), role="top")]
        for who, kinds in (("ours", array | {"y": Number("label")}), ("ours, no label", array)):
            chosen.append(Contestant(who, once(partial(loaded, kinds)), role="ours", beside="straight"))
        yield Heat("arrays, kafka", chosen, "records", server=getattr(cluster, "pid", None))


def pairs(options: Options) -> Iterator[Heat]:
    """Images with what belongs to them."""
    data = photos(max(64, int(options.scale * 600)))

    def make(folder: Path) -> None:
        records = []
        for jpeg, label in data.records():
            gray, file = np.asarray(Picture.open(io.BytesIO(jpeg)).convert("L")), io.BytesIO()
            Picture.fromarray((gray > gray.mean()).astype(np.uint8)).save(file, "PNG")
            boxes = b"[[10, 20, 110, 220], [200, 50, 400, 300], [0, 0, 50, 50]]"
            texts = {"txt": b"a photograph of class %d" % label, "cls": b"%d" % label}
            records.append({"jpg": jpeg, **texts, "seg.png": file.getvalue(), "boxes.json": boxes})
        write_shard(folder / "0.tar", records)
        for n in range(12):
            (folder / f"link-{n:02d}.tar").symlink_to("0.tar")

    root, image = cached(f"columns-v2-pairs-{data.count}", make), Image("jpg", transform())
    more: dict[str, Column] = {"text": Text("txt"), "mask": Mask("seg.png"), "boxes": Boxes("boxes.json", more=0)}
    cases: dict[str, tuple[dict[str, Any], str]] = {"image alone": ({"columns": {"image": image}}, "")}
    for name, kind in more.items():
        cases[f"image and {name}"] = {"columns": {"image": image, name: kind}}, "image alone"
    cases["no columns"] = {"transform": transform()}, ""
    cases["image and label"] = {"columns": {"image": image, "label": Number("cls")}}, "no columns"
    chosen = []
    for who, (how, other) in cases.items():
        opens = of_source(lambda: ShardSet(f"{root}/link-*.tar"), 64, **how)
        chosen.append(Contestant(who, opens, role="ours", beside=other))
    yield Heat("pairs, tar", chosen, "images", options.seconds)


CASES: dict[str, Any] = {"arrays": partial(tars, name="arrays"), "features": partial(tars, name="features")}
CASES |= {"kafka": kafka, "pairs": pairs}
if __name__ == "__main__":
    sys.exit(main(__doc__, "columns", CASES, ["feed us"]))
