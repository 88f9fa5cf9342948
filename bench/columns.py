"""Records of any shape beside plain reads of the same bytes: from tar, one .npy file, Kafka; pairs beside images.

    python bench/columns.py [large features rows arrays kafka pairs]

large     100 KB and a label from tar shards in the page cache, as arrays and as bytes, in order and shuffled record by
          record. In order they stand beside `straight`, which reads the same files by one thread, 8 MiB at a time;
          shuffled beside `preads`, which reads the records alone, at the same places, one by one. And WebDataset.
features  2048 float32 (8 KB) the same way; rows: of one .npy file, given by its path
arrays    32x32x3 uint8, and `windows`: shuffled in windows of 32 extents of 256
kafka     the arrays in a topic: our loader with and without labels, `straight`: our reader alone, and `plain`
pairs     500x375 JPEGs: the image with its caption, mask or boxes beside the image alone, and image and label with
          columns= beside image and label without
"""

from __future__ import annotations

import io
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from _common import Heat, Options, broker, main, new_topic, once
from PIL import Image as Picture

from dali_feed import Shuffle
from dali_feed.bench.data import SHARDS, Topic, cached, photos
from dali_feed.bench.kafka import TopicReading, extents_of, plain
from dali_feed.bench.ours import loader, ours, transform
from dali_feed.bench.peers import worker_loader
from dali_feed.bench.runner import Called, Contestant, Opens, Steps, installed
from dali_feed.columns import Array, Boxes, Bytes, Column, Image, Mask, Number, Text
from dali_feed.external_sources import Arrays, KafkaTopic, ShardSet
from dali_feed.external_sources.tar import build
from dali_feed.packing.sinks import write_shard
from dali_feed.testing import publish

READ, CLASSES = 8 << 20, 1000
WINDOWS = Shuffle(extent=256, window=32)
# Suffix in a tar or of the file, type, shape, and as many as make an epoch of 2 GB, but of the smallest.
KINDS: dict[str, tuple[str, str, tuple[int, ...], int]] = {
    "large": ("bin", "uint8", (100_000,), 20_000),
    "features": ("f32", "float32", (2048,), 250_000),
    "rows": ("npy", "float32", (2048,), 250_000),
    "arrays": ("bin", "uint8", (32, 32, 3), 60_000),
}


@dataclass(frozen=True)
class Records:
    """Records of one array, and in tar shards a label, `cls`."""

    paths: tuple[str, ...]
    count: int
    suffix: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes of an array."""
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize

    def some(self, first: int = 0, stop: int | None = None) -> Iterator[tuple[bytes, int]]:
        """(array, label) of each."""
        data = np.random.default_rng(0).bytes(self.size + 4096)
        for k in range(first, self.count if stop is None else stop):
            yield data[k % 1024 * 4 :][: self.size], k % CLASSES

    def source(self) -> Any:
        """What reads them."""
        return Arrays(self.paths[0]) if self.suffix == "npy" else ShardSet(self.paths)

    def column(self) -> Column:
        """The array's."""
        return Array("row" if self.suffix == "npy" else self.suffix, self.dtype, self.shape)

    def places(self) -> Iterator[tuple[int, int]]:
        """File and first byte of each."""
        for n, path in enumerate(self.paths):
            if self.suffix == "npy":
                yield from ((n, Path(path).stat().st_size - (k + 1) * self.size) for k in range(self.count))
            else:
                index = build(path)
                yield from ((n, at) for at in index.offset[index.length == self.size].tolist())


def records(options: Options, name: str) -> Records:
    """Those of a kind, made once, in the page cache."""
    suffix, dtype, shape, count = KINDS[name]
    which = Records((), max(600, int(options.scale * count)), suffix, dtype, shape)

    def make(folder: Path) -> None:
        if suffix == "npy":
            rows = np.lib.format.open_memmap(folder / "rows.npy", "w+", dtype, (which.count, *shape))
            for k, (data, _) in enumerate(which.some()):
                rows[k] = np.frombuffer(data, dtype).reshape(shape)
            return
        for k in range(SHARDS):
            some = which.some(k * which.count // SHARDS, (k + 1) * which.count // SHARDS)
            write_shard(folder / f"{k}.tar", ({suffix: data, "cls": b"%d" % label} for data, label in some))

    root = cached(f"columns-v3-{name}-{which.count}", make)
    paths = tuple(sorted(str(path) for path in root.iterdir() if path.suffix in (".tar", ".npy")))
    for path in paths:
        Path(path).read_bytes()
    return replace(which, paths=paths)


def straight(which: Records) -> Opens:
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


def preads(which: Records) -> Opens:
    """Records alone, in a random order, by one thread, into memory that is used again."""
    line = itertools.cycle(np.random.default_rng(0).permutation(list(which.places())).tolist())

    @contextmanager
    def opens(_: str) -> Iterator[Steps]:
        with ExitStack() as stack:
            files = [stack.enter_context(Path(path).open("rb", buffering=0)).fileno() for path in which.paths]
            into = memoryview(bytearray(which.size))

            def batch() -> int:
                return sum(os.preadv(files[n], (into,), at) for n, at in itertools.islice(line, 256)) // which.size

            yield Called(batch)

    return opens


def webdataset(which: Records, *, shuffled: bool) -> Contestant:
    """Its samples as they are, 64 at a time, in this process or by workers."""

    @contextmanager
    def opens(way: str) -> Iterator[Steps]:
        import webdataset as wds  # type: ignore[import-untyped]

        dataset: Any = wds.WebDataset(list(which.paths), resampled=shuffled, shardshuffle=False, empty_check=False)
        dataset = (dataset.shuffle(1000) if shuffled else dataset).to_tuple(which.suffix)
        dataset = dataset.batched(64, collation_fn=list, partial=False)
        with worker_loader(dataset, int(way[1:]), lambda batch: batch, batch_size=None) as steps:
            yield steps

    unable = None if find_spec("webdataset") else "no webdataset; pip install 'dali-feed[peers]'"
    name = f"webdataset, {'shuffled' if shuffled else 'in order'}"
    return Contestant(name, opens, ("x0", "x2"), unable=unable, version=installed("webdataset"))


def of_source(source: Callable[[], Any], batch: int, **options: Any) -> Opens:
    """Our loader."""
    return ours(lambda: loader(source(), batch, **options))


def files(options: Options, name: str) -> Iterator[Heat]:
    """Ours in order and shuffled, what bounds them, and a peer where records are large."""
    which, peers = records(options, name), list[Contestant]()
    ends: dict[str, Column] = {"": which.column()}
    chosen = [Contestant("straight", straight(which), role="top"), Contestant("preads", preads(which), role="top")]
    if name == "large":
        ends[", bytes"] = Bytes(which.suffix)
        peers = [webdataset(which, shuffled=shuffled) for shuffled in (False, True)]
    orders: dict[str, tuple[Any, str]] = {"in order": (False, "straight"), "ours": (True, "preads")}
    orders |= {"windows": (WINDOWS, "straight")} if name == "arrays" else {}
    label: dict[str, Column] = {} if name == "rows" else {"y": Number("cls")}
    for (who, (shuffle, other)), (end, column) in itertools.product(orders.items(), ends.items()):
        opens = of_source(which.source, 64 if name == "large" else 256, columns={"x": column, **label}, shuffle=shuffle)
        chosen.append(Contestant(f"{who}{end}", opens, role="ours", beside=other))
    yield Heat(f"{name}, {'npy' if name == 'rows' else 'tar'}", chosen + peers, "records", options.seconds)


def kafka(options: Options) -> Iterator[Heat]:
    """Whole passes over a topic, from making the readers on."""
    which = records(options, "arrays")
    with broker() as cluster, new_topic(cluster) as name:
        publish(cluster.servers, name, which.some())
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
        images = []
        for jpeg, label in data.records():
            gray, file = np.asarray(Picture.open(io.BytesIO(jpeg)).convert("L")), io.BytesIO()
            Picture.fromarray((gray > gray.mean()).astype(np.uint8)).save(file, "PNG")
            boxes = b"[[10, 20, 110, 220], [200, 50, 400, 300], [0, 0, 50, 50]]"
            texts = {"txt": b"a photograph of class %d" % label, "cls": b"%d" % label}
            images.append({"jpg": jpeg, **texts, "seg.png": file.getvalue(), "boxes.json": boxes})
        write_shard(folder / "0.tar", images)
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


CASES: dict[str, Any] = {name: partial(files, name=name) for name in KINDS} | {"kafka": kafka, "pairs": pairs}
if __name__ == "__main__":
    sys.exit(main(__doc__, "columns", CASES, ["feed us"]))
