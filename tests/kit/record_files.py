"""Files of records as sources: TFRecord, MDS and RecordIO."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from kit.by_hand import mds, tfrecord, write_new
from kit.images import jpeg
from kit.written import example_bytes

from dali_feed.external_sources import MDS, RecordIO, TFRecords

__all__ = ["frame", "make", "mds", "packed", "recordio", "tfrecord"]

MAGIC = struct.pack("<I", 0xCED7230A)


def frame(part: int, data: bytes) -> bytes:
    """A frame of RecordIO."""
    return MAGIC + struct.pack("<I", part << 29 | len(data)) + data + bytes(-len(data) % 4)


def packed(image: bytes, label: float, number: int = 0) -> bytes:
    """An image with MXNet's header."""
    return struct.pack("<IfQQ", 0, label, number, 0) + image


def recordio(records: Iterable[bytes]) -> bytes:
    """A RecordIO file, of records that hold no mark of a frame."""
    return b"".join(frame(0, record) for record in records)


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
