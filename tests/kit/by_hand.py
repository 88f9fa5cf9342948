"""Files of other people's formats, written by their own rules and by nothing of the product: frozen rows read them."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import struct
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

LONG = "folder/" * 30 + "x" * 120
FORMS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
_MAGIC = struct.pack("<I", 0xCED7230A)


def write_new(path: Path, data: bytes) -> None:
    """Write a file, unless it is there: one that is written again is another file."""
    if not path.exists() or path.read_bytes() != data:
        path.write_bytes(data)


def npy(array: Any) -> bytes:
    """A `.npy` file."""
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def tarred(samples: Iterable[tuple[str, Mapping[str, bytes]]]) -> bytes:
    """A tar file of samples: key, then suffix -> bytes. Nothing in it depends on the time or the user."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as file:
        for key, members in samples:
            for suffix, data in members.items():
                info = tarfile.TarInfo(f"{key}.{suffix}")
                info.size = len(data)
                file.addfile(info, io.BytesIO(data))
    return out.getvalue()


def tar(path: Path, samples: Iterable[tuple[str, Mapping[str, bytes]]]) -> None:
    """The same at a path."""
    path.write_bytes(tarred(samples))


def archive(path: Path, members: list[tuple[str, bytes]], form: int) -> None:
    """A tar file as the standard library writes it."""
    with tarfile.open(path, "w", format=form) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def tfrecord(records: Iterable[bytes]) -> bytes:
    """A TFRecord file."""
    out = []
    for record in records:
        size = struct.pack("<Q", len(record))
        out += [size, _masked(size), record, _masked(record)]
    return b"".join(out)


def example(features: Mapping[str, Any]) -> bytes:
    """A `tf.train.Example`: each value is bytes, an int, a list of ints or a list of floats."""
    entries = b""
    for name, value in features.items():
        if isinstance(value, bytes):
            feature = _part(1, _part(1, value))
        elif isinstance(value, int):
            feature = _part(3, _part(1, _varint(value)))
        elif isinstance(value[0], float):
            feature = _part(2, _part(1, struct.pack(f"<{len(value)}f", *value)))
        else:
            feature = _part(3, _part(1, b"".join(map(_varint, value))))
        entries += _part(1, _part(1, name.encode()) + _part(2, feature))
    return _part(1, entries)


def recordio(records: Iterable[tuple[bytes, float]]) -> bytes:
    """A RecordIO file of images with MXNet's header; no record may hold the mark of a frame."""
    out = []
    for number, (image, label) in enumerate(records):
        data = struct.pack("<IfQQ", 0, label, number, 0) + image
        out += [_MAGIC, struct.pack("<I", len(data)), data, bytes(-len(data) % 4)]
    return b"".join(out)


def mds(folder: Path, columns: Mapping[str, str], shards: Sequence[Sequence[Sequence[bytes]]]) -> Path:
    """A folder as MDSWriter leaves it, of samples whose columns are bytes as they are stored."""
    folder.mkdir(exist_ok=True)
    sizes = [{"int": 8, "float64": 8, "uint16": 2}.get(encoding) for encoding in columns.values()]
    entries = []
    for number, samples in enumerate(shards):
        rows = []
        for sample in samples:
            lengths = [len(value) for value, size in zip(sample, sizes, strict=True) if size is None]
            rows.append(np.array(lengths, "<u4").tobytes() + b"".join(sample))
        config = b"{}"
        first = 4 * (len(rows) + 2) + len(config)
        borders = np.cumsum([first, *map(len, rows)]).astype("<u4")
        data = np.array([len(rows)], "<u4").tobytes() + borders.tobytes() + config + b"".join(rows)
        name = f"shard.{number:05d}.mds"
        write_new(folder / name, data)
        whole = {"basename": name, "bytes": len(data), "hashes": {"sha1": hashlib.sha1(data).hexdigest()}}  # noqa: S324
        entries.append(
            {
                "column_encodings": list(columns.values()),
                "column_names": list(columns),
                "column_sizes": sizes,
                "compression": None,
                "format": "mds",
                "hashes": ["sha1"],
                "raw_data": whole,
                "samples": len(rows),
                "size_limit": 1 << 26,
                "version": 2,
                "zip_data": None,
            }
        )
    (folder / "index.json").write_text(json.dumps({"shards": entries, "version": 2}))
    return folder


def _crc32c_table() -> list[int]:
    table = []
    for value in range(256):
        crc = value
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


_TABLE = _crc32c_table()


@functools.lru_cache(4096)
def _masked(data: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 255] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _varint(value: int) -> bytes:
    out = []
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _part(field: int, data: bytes) -> bytes:
    """A field of protobuf's wire format whose value is bytes."""
    return _varint(field << 3 | 2) + _varint(len(data)) + data
