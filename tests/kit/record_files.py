"""Writers of TFRecord, MDS and RecordIO files, a few lines each."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from kit.images import jpeg
from kit.member_shards import write_new
from kit.tf_example import example_bytes

from dali_feed.external_sources import MDS, RecordIO, TFRecords
from dali_feed.external_sources.tfrecord import crc32c, masked

__all__ = ["frame", "make", "mds", "packed", "recordio", "tfrecord"]

MAGIC = struct.pack("<I", 0xCED7230A)


def tfrecord(records: Iterable[bytes]) -> bytes:
    """A TFRecord file."""
    out = []
    for record in records:
        size = struct.pack("<Q", len(record))
        crc, end = (struct.pack("<I", masked(crc32c(part))) for part in (size, record))
        out += [size, crc, record, end]
    return b"".join(out)


def frame(part: int, data: bytes) -> bytes:
    """A frame of RecordIO."""
    return MAGIC + struct.pack("<I", part << 29 | len(data)) + data + bytes(-len(data) % 4)


def packed(image: bytes, label: float, number: int = 0) -> bytes:
    """An image with MXNet's header."""
    return struct.pack("<IfQQ", 0, label, number, 0) + image


def recordio(records: Iterable[bytes]) -> bytes:
    """A RecordIO file, of records that hold no mark of a frame."""
    return b"".join(frame(0, record) for record in records)


def mds(folder: Path, columns: Mapping[str, str], shards: Sequence[Sequence[Sequence[bytes]]]) -> Path:
    """A set of MDS shards with a hash each, of samples whose columns are as they are stored."""
    folder.mkdir(exist_ok=True)
    widths = {"int": 8, "uint16": 2, "float64": 8}
    sizes = [widths.get(encoding) for encoding in columns.values()]
    entries = []
    for number, samples in enumerate(shards):
        rows = []
        for sample in samples:
            told = [len(value) for value, size in zip(sample, sizes, strict=True) if size is None]
            rows.append(np.array(told, "<u4").tobytes() + b"".join(sample))
        config = b"{}"
        first = 4 * (len(rows) + 2) + len(config)
        borders = np.cumsum([first, *map(len, rows)]).astype("<u4")
        data = np.array([len(rows)], "<u4").tobytes() + borders.tobytes() + config + b"".join(rows)
        name = f"shard.{number:05d}.mds"
        write_new(folder / name, data)
        entries.append(
            {
                "column_encodings": list(columns.values()),
                "column_names": list(columns),
                "column_sizes": sizes,
                "compression": None,
                "format": "mds",
                "hashes": ["sha1"],
                "raw_data": {
                    "basename": name,
                    "bytes": len(data),
                    "hashes": {"sha1": hashlib.sha1(data).hexdigest()},  # noqa: S324  what their writer does
                },
                "samples": len(rows),
                "size_limit": 1 << 26,
                "version": 2,
                "zip_data": None,
            }
        )
    (folder / "index.json").write_text(json.dumps({"shards": entries, "version": 2}))
    return folder


def make(kind: str, folder: Path, images: Sequence[bytes] | None = None, cut: int = 15) -> Any:
    """A source of that kind, of two files: these images with labels 0, 1, ..., the first `cut` in the first file."""
    images = [jpeg(n % 16, 16 + n % 3 * 4) for n in range(22)] if images is None else images
    rows = list(enumerate(images))
    halves = rows[:cut], rows[cut:]
    if kind == "mds":
        columns = {"image": "jpeg", "label": "int"}
        return MDS(
            mds(folder / "mds", columns, [[(image, struct.pack("<q", n)) for n, image in half] for half in halves])
        )
    for number, half in enumerate(halves):
        if kind == "recordio":
            data, ending = recordio(packed(image, n) for n, image in half), "rec"
        else:
            records = ({"image/encoded": image, "image/class/label": n} for n, image in half)
            data, ending = tfrecord(map(example_bytes, records)), "tfrecord"
        write_new(folder / f"s-{number}.{ending}", data)
    return (RecordIO if kind == "recordio" else TFRecords)(str(folder / f"s-*.{ending}"), index_dir=folder / "index")
