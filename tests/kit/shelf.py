"""The data that frozen rows read: records that never change, and a source of each kind that holds them.

Pictures lie in contract/golden/payloads.json, because an encoder of another version would write other bytes. PNGs hold
their own coordinates in red and green, so that what is cut out of them says which random numbers were drawn, and no
version of a decoder can change that.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import io
import json
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from kit import api, by_hand
from PIL import Image

from dali_feed import packing
from dali_feed.testing import Broker, Message, ScriptedSource, ScriptedStream, broker, publish
from dali_feed.testing.scripted import Corrupt, Gap

__all__ = ["BAD", "CUTS", "GOLDEN", "RECORDS", "Shelf", "boxes", "classes", "payload", "points", "record"]

GOLDEN = Path(__file__).parents[1] / "contract" / "golden"
RECORDS = 41
CUTS = (0, 17, 22, RECORDS)  # where files and partitions begin: unequal ones
BAD = {3: "text", 4: "broken png", 17: "cut png", 18: "text", 25: "broken png", 40: "text"}  # record -> its payload


@functools.cache
def _payloads() -> dict[str, list[bytes]]:
    text = json.loads((GOLDEN / "payloads.json").read_text())
    return {kind: [base64.b64decode(each) for each in entries] for kind, entries in text.items()}


def payload(n: int, kind: str = "png") -> bytes:
    """The n-th picture of a kind, counted round; a damaged one by what is wrong with it."""
    entries = _payloads()[kind]
    return entries[n % len(entries)]


def record(n: int, kind: str = "png", bad: bool = False) -> dict[str, bytes]:
    """The members of record n by suffix."""
    image = payload(n, BAD[n]) if bad and n in BAD else payload(n, kind)
    return {
        "png" if kind == "png" else "jpg": image,
        "cls": b"%d" % n,
        "txt": f"record {n} of {RECORDS} é".encode(),
        "json": json.dumps({"n": n, "half": n / 2, "list": [n, n + 1], "name": f"n{n}"}).encode(),
        "f32": np.arange(n, n + 6, dtype="<f4").tobytes(),
        "npy": by_hand.npy(np.arange(n, n + 4, dtype="<i2").reshape(2, 2)),
    }


def classes(n: int, size: tuple[int, int]) -> Any:
    """A mask of regions for a picture of (width, height): uint8 (height, width)."""
    wide, high = size
    regions = np.random.default_rng(n).integers(0, 9, (high // 8 + 1, wide // 8 + 1), np.uint8)
    return regions.repeat(8, 0).repeat(8, 1)[:high, :wide]


def boxes(n: int) -> list[list[float]]:
    """N % 4 boxes as x, y, x, y and a class."""
    return [[2.0 + k, 3.0, 11.0 + k, 14.5, float(k)] for k in range(n % 4)]


def points(n: int) -> list[list[float]]:
    """N % 3 points as x, y and whether they are seen."""
    return [[3.0 + 4 * k, 5.0 + k, 1.0] for k in range(n % 3)]


class Shelf(contextlib.ExitStack):
    """Sources of every kind in one folder, each made once, with an embedded broker where one is asked for."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder, self._kept = folder, dict[Any, Any]()

    def source(self, kind: str, *, bad: bool = False, payloads: str = "png") -> Any:
        """A source of that kind; with `bad`, some of its records cannot be used."""
        key = kind, bad, payloads
        if key not in self._kept:
            self._kept[key] = SOURCES[kind](self, bad, payloads)
        return self._kept[key]

    def room(self, name: str) -> Path:
        """A new folder."""
        for number in range(1000):
            path = self.folder / f"{name}-{number}"
            if not path.exists():
                path.mkdir(parents=True)
                return path
        raise AssertionError(name)

    @functools.cached_property
    def kafka(self) -> Broker:
        """An embedded broker."""
        return self.enter_context(broker())

    @property
    def servers(self) -> str:
        """Its address."""
        return self.kafka.servers


def _records(bad: bool, payloads: str) -> list[dict[str, bytes]]:
    return [record(n, payloads, bad) for n in range(RECORDS)]


def _image(members: dict[str, bytes]) -> bytes:
    return next(iter(members.values()))


def _parts(rows: Sequence[Any]) -> Iterator[tuple[int, Sequence[Any]]]:
    for part in range(len(CUTS) - 1):
        yield part, rows[CUTS[part] : CUTS[part + 1]]


def _tar(shelf: Shelf, bad: bool, payloads: str) -> Any:
    folder = shelf.room("tar")
    for part, rows in _parts(_records(bad, payloads)):
        by_hand.tar(folder / f"{part}.tar", ((f"{CUTS[part] + k:05d}", row) for k, row in enumerate(rows)))
    return api.made("ShardSet", str(folder / "*.tar"), index_dir=folder)


def _set(shelf: Shelf, bad: bool, payloads: str) -> Any:
    out = shelf.room("set") / "frozen.dfset"
    packing.pack(_tar(shelf, bad, payloads), out, shard_bytes=40_000)
    return api.made("ShardSet", str(out))


def _striped(shelf: Shelf, bad: bool, payloads: str) -> Any:
    folder = shelf.room("striped")
    for name in ("x", "y"):
        (folder / name).mkdir()
    packing.pack(_tar(shelf, bad, payloads), folder / "s.dfset", layout=packing.Layout(("x", "y"), 2, 4096))
    return api.made("ShardSet", str(folder / "s.dfset"))


def _files(shelf: Shelf, bad: bool, payloads: str) -> Any:
    folder = shelf.room("files")
    paths = [folder / f"{n:03d}.img" for n in range(RECORDS)]
    for path, members in zip(paths, _records(bad, payloads), strict=True):
        path.write_bytes(_image(members))
    return api.made("FileList", [str(path) for path in paths], [n * 3 for n in range(RECORDS)])


def _folder(shelf: Shelf, bad: bool, payloads: str) -> Any:
    folder = shelf.room("folder")
    for n, members in enumerate(_records(bad, payloads)):
        (folder / "abc"[n % 3]).mkdir(exist_ok=True)
        (folder / "abc"[n % 3] / f"{n:03d}.png").write_bytes(_image(members))
    return api.from_folder(folder)


def _columns(bad: bool, payloads: str) -> dict[str, list[Any]]:
    rows = _records(bad, payloads)
    return {
        "image": [_image(row) for row in rows],
        "label": list(range(RECORDS)),
        "score": [n / 8 for n in range(RECORDS)],
        "text": [f"row {n}" for n in range(RECORDS)],
        "list": [[n, n + 1, n + 2] for n in range(RECORDS)],
    }


def _arrow(shelf: Shelf, bad: bool, payloads: str) -> Any:
    import pyarrow as pa

    columns = _columns(bad, payloads)
    del columns["list"]
    return api.made("ArrowRows", pa.table(columns))


def _parquet(shelf: Shelf, bad: bool, payloads: str) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = shelf.room("parquet")
    table = pa.table(_columns(bad, payloads))
    for part in range(len(CUTS) - 1):
        rows = table.slice(CUTS[part], CUTS[part + 1] - CUTS[part])
        pq.write_table(rows, folder / f"{part}.parquet", row_group_size=6)
    return api.made("ParquetRows", str(folder / "*.parquet"))


def _arrow_files(shelf: Shelf, bad: bool, payloads: str) -> Any:
    import pyarrow as pa

    folder = shelf.room("arrows")
    table = pa.table(_columns(bad, payloads))
    for part in range(len(CUTS) - 1):
        with pa.OSFile(str(folder / f"{part}.arrow"), "wb") as to, pa.ipc.new_file(to, table.schema) as file:
            file.write_table(table.slice(CUTS[part], CUTS[part + 1] - CUTS[part]), max_chunksize=6)
    return api.made("ArrowFiles", str(folder / "*.arrow"))


def _arrays(shelf: Shelf, bad: bool, payloads: str) -> Any:
    folder = shelf.room("arrays")
    rows: Any = np.arange(RECORDS * 6, dtype=np.float32).reshape(RECORDS, 2, 3)
    for part, some in _parts(rows):
        np.save(folder / f"{part}.npy", some)
    return api.made("ArrayShards", str(folder / "*.npy"), label=np.arange(RECORDS) * 2)


def _array_images(shelf: Shelf, bad: bool, payloads: str) -> Any:
    rows = np.random.default_rng(5).integers(0, 256, (RECORDS, 20, 18, 3), np.uint8)
    return api.made("ArrayShards", [rows[: CUTS[1]], rows[CUTS[1] :]], label=np.arange(RECORDS))


def _tfrecords(shelf: Shelf, bad: bool, payloads: str) -> Any:
    folder = shelf.room("tfrecords")
    for part, rows in _parts(list(enumerate(_records(bad, payloads)))):
        examples = [
            by_hand.example(
                {"image/encoded": _image(row), "image/class/label": n, "text": row["txt"], "score": [n / 4, n / 2]}
            )
            for n, row in rows
        ]
        (folder / f"{part}.tfrecord").write_bytes(by_hand.tfrecord(examples))
    return api.made("TFRecords", str(folder / "*.tfrecord"), index_dir=folder / "index")


def _mds(shelf: Shelf, bad: bool, payloads: str) -> Any:
    columns = {"image": "bytes", "label": "int", "text": "str"}
    shards = [
        [(_image(row), struct.pack("<q", n), row["txt"]) for n, row in rows]
        for _, rows in _parts(list(enumerate(_records(bad, payloads))))
    ]
    return api.made("MDS", by_hand.mds(shelf.room("mds") / "set", columns, shards))


def _recordio(shelf: Shelf, bad: bool, payloads: str) -> Any:
    folder = shelf.room("recordio")
    for part, rows in _parts(list(enumerate(_records(bad, payloads)))):
        (folder / f"{part}.rec").write_bytes(by_hand.recordio((_image(row), n) for n, row in rows))
    return api.made("RecordIO", str(folder / "*.rec"), index_dir=folder / "index")


def _items(bad: bool, payloads: str, count: int = RECORDS) -> list[Any]:
    items: list[Any] = [(_image(record(n, payloads, bad)), n) for n in range(count)]
    if bad:
        items[7], items[8], items[20], items[21] = Gap(), Corrupt("torn"), Corrupt(), Gap()
    return items


def _followed(shelf: Shelf, bad: bool, payloads: str) -> Any:
    """Pictures with a mask, boxes and points each, and a second picture."""
    folder = shelf.room("followed")
    samples = []
    for n in range(16):
        image = payload(n, payloads)
        size = Image.open(io.BytesIO(image)).size
        mask = io.BytesIO()
        Image.fromarray(classes(n, size)).save(mask, "PPM")  # written without a library's choices
        members = {"jpg": image, "seg.pgm": mask.getvalue(), "cls": b"%d" % n, "second.png": payload(n + 1)}
        members |= {"boxes.json": json.dumps(boxes(n)).encode(), "points.json": json.dumps(points(n)).encode()}
        samples.append((f"{n:03d}", members))
    by_hand.tar(folder / "f.tar", samples)
    return api.made("ShardSet", str(folder / "f.tar"), index_dir=folder)


def _scripted(**options: Any) -> Callable[[Shelf, bool, str], Any]:
    return lambda shelf, bad, payloads: ScriptedSource(_items(bad, payloads), **options)


def _concat(*kinds: str) -> Callable[[Shelf, bool, str], Any]:
    return lambda shelf, bad, payloads: api.made("Concat", [shelf.source(k, bad=bad, payloads=payloads) for k in kinds])


def _mix(weights: Any, *kinds: str, **options: Any) -> Callable[[Shelf, bool, str], Any]:
    return lambda shelf, bad, payloads: api.made(
        "Mix", [shelf.source(k, bad=bad, payloads=payloads) for k in kinds], weights, **options
    )


def _messages(bad: bool, payloads: str, partitions: int) -> list[Message]:
    messages = []
    for n in range(RECORDS):
        row = record(n, payloads, bad)
        label = b"no number" if bad and n == 30 else b"%d" % n
        headers = (("label", label), ("meta", row["json"]))
        value = None if bad and n == 31 else _image(row)
        messages.append(Message(value, b"key %d" % n, headers, n * n % partitions))
    return messages


def _topic(cut: int = 0, **options: Any) -> Callable[[Shelf, bool, str], Any]:
    def make(shelf: Shelf, bad: bool, payloads: str) -> Any:
        name = f"topic-{cut}-{bad}-{payloads}"
        publish(shelf.servers, name, _messages(bad, payloads, 3), partitions=3)
        if cut:
            shelf.kafka.delete_records(name, 0, cut)
        return api.made("KafkaTopic", name, shelf.servers, **options)

    return make


def _json_topic(shelf: Shelf, bad: bool, payloads: str) -> Any:
    values = [{"n": n, "body": {"list": [n, n / 2], "text": f"t{n}"}} for n in range(RECORDS)]
    messages = [Message(json.dumps(value).encode(), partition=n % 2) for n, value in enumerate(values)]
    if bad:
        messages[9] = Message(b"{no json", partition=1)
    publish(shelf.servers, f"json-{bad}", messages, partitions=2)
    return api.made("KafkaTopic", f"json-{bad}", shelf.servers, label=None, format="json")


def _values(format_: str, value: Callable[[int], bytes], given: Any = None) -> Callable[[Shelf, bool, str], Any]:
    def make(shelf: Shelf, bad: bool, payloads: str) -> Any:
        name = f"{format_}-{bad}"
        messages = [Message(value(n), partition=n % 2) for n in range(RECORDS)]
        if bad:
            messages[9] = Message(b"\xc1 no value", partition=1)
        publish(shelf.servers, name, messages, partitions=2)
        return api.made("KafkaTopic", name, shelf.servers, label=None, format=given() if given else format_)

    return make


def _msgpack(n: int) -> bytes:
    import msgpack

    packed: bytes = msgpack.packb({"n": n, "body": {"text": f"t{n}", "raw": payload(n)}})
    return packed


AVRO = {
    "type": "record",
    "name": "Row",
    "fields": [{"name": "n", "type": "long"}, {"name": "text", "type": ["null", "string"]}],
}


def _avro(n: int) -> bytes:
    import fastavro

    out = io.BytesIO()
    fastavro.schemaless_writer(out, AVRO, {"n": n, "text": f"t{n}" if n % 3 else None})
    return out.getvalue()


def _protobuf(n: int) -> bytes:
    from google.protobuf import timestamp_pb2

    message: bytes = timestamp_pb2.Timestamp(seconds=n * 1000, nanos=n + 1).SerializeToString()
    return message


def _datasets(kind: str) -> Callable[[Shelf, bool, str], Any]:
    """Datasets of others, with transforms of their own."""

    def make(shelf: Shelf, bad: bool, payloads: str) -> Any:
        import torch
        from torchvision.datasets import ImageFolder
        from torchvision.transforms import v2

        cut = v2.Compose([v2.RandomCrop(16), v2.RandomHorizontalFlip(), v2.ToImage()])
        if kind == "hugging face":
            import datasets

            images = [{"bytes": payload(n, payloads), "path": None} for n in range(RECORDS)]
            table = datasets.Dataset.from_dict({"image": images, "label": list(range(RECORDS))})
            return table.cast_column("image", datasets.Image())
        root = Path(shelf.source("folder", bad=bad, payloads=payloads).paths[0]).parents[1]
        folder = ImageFolder(str(root), cut)
        return folder if kind == "image folder" else torch.utils.data.Subset(folder, list(range(40, 0, -2)))

    return make


def _topic_set(shelf: Shelf, bad: bool, payloads: str) -> Any:
    out = shelf.room("of-topic") / "t.dfset"
    packing.pack(shelf.source("topic", bad=bad, payloads=payloads), out, shard_bytes=20_000)
    return api.made("ShardSet", str(out))


def _kafka_stream(shelf: Shelf, bad: bool, payloads: str) -> Any:
    partitions = 1  # of several the order of arrival would be the network's
    messages = [Message(m.value, m.key, m.headers, 0) for m in _messages(bad, payloads, partitions)]
    publish(shelf.servers, f"stream-{bad}-{payloads}", messages, partitions=partitions)
    return api.made("KafkaStream", f"stream-{bad}-{payloads}", shelf.servers, start="earliest")


def _scripted_stream(*, several: bool) -> Callable[[Shelf, bool, str], Any]:
    def make(shelf: Shelf, bad: bool, payloads: str) -> Any:
        items = _items(bad, payloads)
        return ScriptedStream(items[:20], items[20:]) if several else ScriptedStream(items)

    return make


SOURCES: dict[str, Callable[[Shelf, bool, str], Any]] = {
    "tar": _tar,
    "set": _set,
    "striped set": _striped,
    "set of a topic": _topic_set,
    "files": _files,
    "folder": _folder,
    "arrow": _arrow,
    "parquet": _parquet,
    "arrow files": _arrow_files,
    "arrays": _arrays,
    "array images": _array_images,
    "tfrecords": _tfrecords,
    "mds": _mds,
    "recordio": _recordio,
    "followed": _followed,
    "scripted": _scripted(partitions=3),
    "one partition": _scripted(extent=3),
    "no random access": _scripted(partitions=2, extent=3, random_access=False),
    "interleaved": _scripted(partitions=3, extent=2, random_access=False, interleaved=True, first=100),
    "concat": _concat("tar", "scripted"),
    "concat of topics": _concat("topic", "no random access"),
    "mix": _mix([3, 1], "tar", "scripted"),
    "mix of three": _mix([0.5, 0.3, 0.2], "scripted", "files", "one partition"),
    "mix to all": _mix([1, 2], "scripted", "one partition", stop="all"),
    "mix of samples": _mix([5, 2], "scripted", "no random access", samples=50),
    "mix by schedule": _mix({0: [1, 0], 1: [1, 1], 3: [0, 1]}, "scripted", "one partition"),
    "mix linear": _mix({0: [1, 0], 2: [0.5, 0.5]}, "scripted", "one partition", linear=True),
    "topic": _topic(),
    "cut topic": _topic(cut=4),
    "json topic": _json_topic,
    "msgpack topic": _values("msgpack", _msgpack),
    "npy topic": _values("npy", lambda n: by_hand.npy(np.arange(n, n + 6, dtype="<f8").reshape(2, 3))),
    "avro topic": _values("avro", _avro, lambda: api.avro(AVRO)),
    "protobuf topic": _values("protobuf", _protobuf, api.protobuf_timestamp),
    "image folder": _datasets("image folder"),
    "subset": _datasets("subset"),
    "hugging face": _datasets("hugging face"),
    "stream": _kafka_stream,
    "scripted stream": _scripted_stream(several=False),
    "streams": _scripted_stream(several=True),
}
