"""Sets of Mosaic Streaming's MDS shards, read where they lie."""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.checks import path_of
from dali_feed.errors import ConfigError, DataLostError, FormatError, SourceError, SourceNotFoundError
from dali_feed.external_sources.file_source import RecordFiles, images_and_labels
from dali_feed.external_sources.index import RecordIndex
from dali_feed.packages import needed
from dali_feed.records.gauges import StorageMeter
from dali_feed.records.pieces import ArrayPieces, Pieces
from dali_feed.records.source import Block, Fault, Snapshot
from dali_feed.storage.paths import named_twice
from dali_feed.storage.sets import store_for
from dali_feed.storage.store import LOCAL, File, FileReads, Stamp, Store, read_at

# The `index.json` of a set in Mosaic's MDS format, and what each of its shard files must be.
#
# The law: nothing in it is believed that a file could not be: names stay in their folder, sizes and counts are what the
# files have, and all shards have the same columns. What is not understood is refused with the cure, never guessed.


INDEX = "index.json"
LARGEST = 1 << 32  # bytes of a shard: its table of samples has four bytes for each place
_LARGEST_INDEX = 1 << 30
_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class MdsFile:
    """A file as index.json has it: its path, its bytes, and its hashes by their algorithms."""

    path: str
    bytes: int
    hashes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class MdsShard:
    """A shard, its samples, and the file that Zstandard made of it where that alone is there."""

    raw: MdsFile
    samples: int
    packed: MdsFile | None = None


@dataclass(frozen=True, slots=True)
class MdsSet:
    """A set: its shards in order, and the names, encodings and fixed sizes (None: varies) of the columns of all."""

    shards: tuple[MdsShard, ...]
    names: tuple[str, ...]
    encodings: tuple[str, ...]
    sizes: tuple[int | None, ...]


def is_mds(folder: str, store: Store = LOCAL) -> bool:
    """Whether a folder holds an index.json that speaks of MDS shards."""
    try:
        return any(shard.get("format") == "mds" for shard in _described(f"{folder}/{INDEX}", store)["shards"])
    except (SourceError, LookupError, TypeError, AttributeError):
        return False


def read_set(folder: str, store: Store) -> MdsSet:
    """What the index.json of a folder says. SourceError where it is none, or shards are packed by others."""
    path = f"{folder}/{INDEX}"
    described = _described(path, store)
    try:
        shards = [_shard(folder, each, store) for each in described["shards"]]
        columns = [_columns(each) for each in described["shards"]]
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        msg = f"{path}: must describe MDS shards of version 2; found {type(error).__name__}: {error}; copy it again"
        raise SourceError(msg) from error
    if not shards:
        msg = f"{path}: must name at least one shard; found none; copy it again"
        raise SourceError(msg)
    other = next((k for k, each in enumerate(columns) if each != columns[0]), None)
    if other is not None:
        msg = (
            f"{path}: all shards must have the same columns; found {columns[0][0]} in shard 0 and "
            f"{columns[other][0]}, or other encodings, in shard {other}; read the two as separate sets"
        )
        raise SourceError(msg)
    return MdsSet(tuple(shards), *columns[0])


def _described(path: str, store: Store) -> dict[str, Any]:
    try:
        file = store.open(path)
    except SourceNotFoundError as error:
        msg = f"{path}: no such file; a folder of MDS shards has one, and MDSWriter writes it last; finish or copy it"
        raise SourceNotFoundError(msg) from error
    try:
        text = read_at(file, min(file.stamp().size, _LARGEST_INDEX), 0)
        described = json.loads(text)
        if not isinstance(described, dict) or not isinstance(described["shards"], list):
            raise TypeError("an object with a list of shards is needed")
        return described
    except (ValueError, LookupError, TypeError, RecursionError, OSError) as error:
        msg = f"{path}: must be the JSON that MDSWriter writes; found {error}; copy it again"
        raise SourceError(msg) from error
    finally:
        file.close()


def _shard(folder: str, described: dict[str, Any], store: Store) -> MdsShard:
    if (described["format"], described["version"]) != ("mds", 2):
        msg = f"format {described['format']!r}, version {described['version']!r}"
        raise ValueError(msg)
    raw, samples = _file(folder, described["raw_data"]), _whole_number(described["samples"])
    packed = _file(folder, described["zip_data"]) if described.get("zip_data") else None
    if not described.get("compression") or _is_there(raw.path, store):
        return MdsShard(raw, samples)
    how = str(described["compression"]).partition(":")[0]
    if how != "zstd" or packed is None:
        msg = (
            f"{raw.path}: must be uncompressed, or compressed with zstd; found it compressed with {how}; unpack all "
            "files"
        )
        raise SourceError(msg)
    if raw.bytes > LARGEST:
        msg = f"{raw.bytes} bytes of {raw.path}, and an MDS shard has at most {LARGEST}"
        raise ValueError(msg)
    try:
        with needed():
            import zstandard  # noqa: F401
    except ImportError as error:
        msg = f"{packed.path}: {error}; or unpack all: zstd -d --rm {folder}/*.zstd"
        raise type(error)(msg, name="zstandard") from None
    return MdsShard(raw, samples, packed)


def _file(folder: str, described: dict[str, Any]) -> MdsFile:
    name = described["basename"]
    if not isinstance(name, str) or "/" in name or "\\" in name or "\0" in name or name in {"", ".", ".."}:
        msg = f"a shard's name must be that of a file in the folder; it is {name!r}"
        raise ValueError(msg)
    hashes = (described.get("hashes") or {}).items()
    return MdsFile(f"{folder}/{name}", _whole_number(described["bytes"]), {str(k): str(v) for k, v in hashes})


def _is_there(path: str, store: Store) -> bool:
    try:
        store.stamp(path)
    except SourceNotFoundError:
        return False
    return True


def _columns(described: dict[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...], tuple[int | None, ...]]:
    names, encodings, sizes = (tuple(described[f"column_{what}"]) for what in ("names", "encodings", "sizes"))
    if len({len(names), len(encodings), len(sizes)}) > 1 or len(set(names)) < len(names):
        msg = f"columns {names} of encodings {encodings} and sizes {sizes}"
        raise ValueError(msg)
    if not all(isinstance(text, str) for text in (*names, *encodings)):
        msg = f"columns {names} of encodings {encodings}"
        raise TypeError(msg)
    return names, encodings, tuple(_whole_number(size) or None if size is not None else None for size in sizes)


def _whole_number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 40:
        msg = f"a count or a size of {value!r}"
        raise ValueError(msg)
    return value


def shard_index(shard: MdsShard, store: Store, columns: bytes) -> RecordIndex:
    """Where the samples of a shard lie: uint32 how many, uint32 where each begins and where the last ends.

    Its digest is made of the columns and the hashes too. DataLostError where it is not what index.json says.
    """
    with closing(store.open(shard.raw.path)) as file:
        try:
            stamp = file.stamp()
            if stamp.size != shard.raw.bytes:
                raise _lost(shard.raw, f"{stamp.size} bytes, but {INDEX} says {shard.raw.bytes}")
            head = np.frombuffer(read_at(file, 4 * (shard.samples + 2), 0), "<u4").astype(np.int64)
            if len(head) < shard.samples + 2 or head[0] != shard.samples:
                raise _lost(shard.raw, f"{head[0] if len(head) else 'no'} samples, but {INDEX} says {shard.samples}")
            borders = head[1:]
            if borders[0] < 4 * len(head) or borders[-1] != stamp.size or (np.diff(borders) < 0).any():
                raise _lost(shard.raw, "a table of samples that does not fit the file")
        except OSError as error:
            msg = f"{shard.raw.path}: a shard must be readable; found {error.strerror}; check the disk"
            raise SourceError(msg) from error
    described = columns + json.dumps(shard.raw.hashes, sort_keys=True).encode()
    return RecordIndex(stamp, borders[:-1], np.diff(borders), described)


def _lost(file: MdsFile, what: str) -> DataLostError:
    return DataLostError(f"{file.path}: a shard must be whole; found {what}; copy the shard again")


def has_right_hashes(shard: MdsShard, store: Store) -> bool:
    """Read the whole shard and hold it against its hashes; whether it has one that can be computed here.

    A packed one is unpacked, which holds it against the hash of the packed file. DataLostError if one is wrong.
    """
    raw = shard.raw
    if not any(map(_maker, (*raw.hashes, *(shard.packed.hashes if shard.packed else ())))):
        return False
    with closing(store.open(raw.path)) as file:
        parts = (read_at(file, min(_PIECE, raw.bytes - at), at) for at in range(0, raw.bytes, _PIECE))
        if wrong := _wrong_hash(raw.hashes, parts):
            raise _lost(raw, wrong)
    return True


def _wrong_hash(hashes: Mapping[str, str], parts: Iterable[bytes | memoryview]) -> str:
    """The first hash of these bytes that is another than was given; "" where none is, of those to compute here."""
    hashing = {name: maker() for name in hashes if (maker := _maker(name)) is not None}
    for part in parts:
        for each in hashing.values():
            each.update(part)
    for name, each in hashing.items():
        if each.hexdigest() != hashes[name]:
            return f"{name} {each.hexdigest()}, but {INDEX} says {hashes[name]}"
    return ""


def _maker(name: str) -> Callable[[], Any] | None:
    """What computes a hash; None where nothing here does."""
    if name in hashlib.algorithms_available and not name.startswith("shake"):
        return lambda: hashlib.new(name, usedforsecurity=False)
    if not name.startswith("xxh"):
        return None
    try:
        return getattr(importlib.import_module("xxhash"), name, None)  # no need of ours: some sets have such hashes
    except ImportError:
        return None


# Shards that are there only as Zstandard packed them: read whole, unpacked in memory, forgotten.
#
# The law: what is given are the bytes of the shard as it was before it was packed. A packed file is held against its
# hash in index.json before a byte of it is unpacked, and never unpacks to more than index.json says. Nothing is
# written.


_HEAD = 256 << 10  # packed bytes from which a block of 128 KiB can be unpacked, and what stands around it


class PackedFile:
    """A shard, whose bytes are unpacked when any but its foremost are asked for, and kept until it is closed."""

    def __init__(self, below: File, raw: MdsFile, packed: MdsFile) -> None:
        self._below, self._raw, self._packed = below, raw, packed
        self._whole: memoryview | None = None

    @property
    def kept(self) -> int:
        """The unpacked bytes, from the beginning on: any read but that of an index unpacks all."""
        return self._raw.bytes

    def stamp(self) -> Stamp:
        """The packed file's, with the bytes that it unpacks to. DataLostError where it has other bytes."""
        return _stamp(self._raw, self._packed, self._below.stamp())

    def read(self, view: memoryview, at: int) -> int:
        """See `storage.store.File`. DataLostError where the packed file is not what it was."""
        if self._whole is None and at == 0 and len(view) <= self._raw.bytes // 8:  # the table of samples, in an index
            head = read_at(self._below, min(self._packed.bytes, len(view) + _HEAD), 0)
            if self._unpack(head, view) == len(view):
                return len(view)
        if self._whole is None:
            self._whole = self._unpacked()
        part = self._whole[at : at + len(view)]
        view[: len(part)] = part
        return len(part)

    def close(self) -> None:
        """Forget the bytes. Safe to call twice."""
        self._whole = None
        self._below.close()

    def _unpacked(self) -> memoryview:
        raw, packed = self._raw, self._packed
        data = memoryview(bytearray(packed.bytes))
        if (got := self._below.read(data, 0)) < len(data):
            raise _lost(packed, f"{got} bytes, but {INDEX} says {len(data)}")
        if wrong := _wrong_hash(packed.hashes, (data,)):
            raise _lost(packed, wrong)
        whole = memoryview(bytearray(raw.bytes + 1))  # a byte more, to see that there is none
        if (got := self._unpack(data, whole)) != raw.bytes:
            raise _lost(packed, f"{'more' if got > raw.bytes else got} bytes in it, but {INDEX} says {raw.bytes}")
        return whole[:-1]

    def _unpack(self, data: bytes | memoryview, room: memoryview) -> int:
        """Fill `room` from packed bytes; how many there were."""
        import zstandard

        at = 0
        try:
            with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True) as stream:
                while at < len(room) and (got := stream.readinto(room[at:])):
                    at += got
        except zstandard.ZstdError as error:
            raise _lost(self._packed, f"{error}, after {at} unpacked bytes") from None
        return at


def _stamp(raw: MdsFile, packed: MdsFile, now: Stamp) -> Stamp:
    """Of what a packed file unpacks to."""
    if now.size != packed.bytes:
        raise _lost(packed, f"{now.size} bytes, but {INDEX} says {packed.bytes}")
    return now._replace(size=raw.bytes)


class PackedStore:
    """`below`, with the packed shards at the paths of what they unpack to; other paths are as they are. Can be pickled.

    packed  by its path each shard, and the file that it was packed into
    """

    random_access = False  # a shard is unpacked whole for any of its records
    most_open = 1  # of a reader: as much as it keeps in memory

    def __init__(self, below: Store, packed: Mapping[str, tuple[MdsFile, MdsFile]]) -> None:
        self._below, self._packed = below, packed

    @property
    def meter(self) -> StorageMeter | None:
        """See `storage.store.Store`."""
        return self._below.meter

    def metered(self) -> PackedStore:
        """See `storage.store.Store`."""
        return PackedStore(self._below.metered(), self._packed)

    def matches(self, pattern: str, subject: str = "MDS") -> list[str]:
        """As the store beneath does."""
        return self._below.matches(pattern, subject)

    def stamp(self, path: str) -> Stamp:
        """Of a packed shard as of what it unpacks to."""
        if path not in self._packed:
            return self._below.stamp(path)
        raw, packed = self._packed[path]
        return _stamp(raw, packed, self._below.stamp(packed.path))

    def open(self, path: str, stop: threading.Event | None = None) -> File:
        """See `storage.store.Store`."""
        if path not in self._packed:
            return self._below.open(path, stop)
        raw, packed = self._packed[path]
        return PackedFile(self._below.open(packed.path, stop), raw, packed)

    def fill(self, reads: FileReads) -> list[int]:
        """One file after the other, each unpacked once however often it stands there."""
        counts = [-1] * len(reads.views)
        for k in sorted(range(len(counts)), key=lambda k: reads.files[k]):
            if reads.stop.is_set():
                break
            with suppress(OSError):  # said by the careful way
                counts[k] = reads.file_of(reads.files[k]).read(reads.views[k], reads.at[k])
        return counts


# A sample of an MDS shard: uint32 the size of each column that has no fixed one, then the columns.
#
# The law: sizes fill the sample to its last byte, values have the size of their encoding, and nothing is unpickled.


Decode = Callable[[Pieces, dict[int, str]], Any]  # a column of samples -> its values, and why a row has none

_AS_STORED = ("bytes", "jpeg", "png", "str", "json", "str_decimal")  # bytes and texts: views
_SCALARS = {"int": "<i8"} | {
    f"{kind}{8 * n}": f"<{letter}{n}"
    for kind, letter, sizes in (("int", "i", (1, 2, 4, 8)), ("uint", "u", (1, 2, 4, 8)), ("float", "f", (2, 4, 8)))
    for n in sizes
}
INTEGERS = (*(name for name in _SCALARS if "int" in name), "str_int")
_TEXTS: dict[str, Callable[[str], Any]] = {"str_int": int, "str_float": float}
_DTYPES = {name: dtype for name, dtype in _SCALARS.items() if name != "int"}
_CODES = {8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32", 33: "int32", 34: "float32",
          64: "uint64", 65: "int64", 66: "float64"}  # fmt: skip
_ARRAY = re.compile(r"ndarray(?::(?P<dtype>[a-z0-9]+)(?::(?P<shape>[0-9]+(?:,[0-9]+)*))?)?")
_LONGEST = 40  # letters of a number


def columns_of(samples: Pieces, sizes: Sequence[int | None], reasons: dict[int, str]) -> list[Pieces]:
    """Each column of some samples, none of them missing; `sizes` are those of columns, None for one that varies.

    A sample that its columns do not fill has none of them, and a reason.
    """
    varying = sizes.count(None)
    head = samples.padded(4 * varying).view("<u4").astype(np.int64).reshape(len(samples), varying)
    every, place = np.empty((len(samples), len(sizes)), np.int64), 0
    for k, size in enumerate(sizes):
        every[:, k] = head[:, place] if size is None else size
        place += size is None
    edges = np.cumsum(np.concatenate([np.full((len(samples), 1), 4 * varying), every], axis=1), axis=1)
    bad = (samples.size < 4 * varying) | (edges[:, -1] != samples.size)
    for row in np.flatnonzero(bad).tolist():
        size = int(samples.size[row])
        reasons[row] = (
            f"mds: the sizes of {varying} columns take {4 * varying} bytes; found {size}"
            if size < 4 * varying
            else f"mds: a sample's columns must fill its {size} bytes; found sizes for {int(edges[row, -1])}"
        )
    of = np.where(bad, -1, samples.of)
    return [Pieces(samples.memories, of, samples.at + edges[:, k], every[:, k]) for k in range(len(sizes))]


def decoder(encoding: str) -> Decode | None:
    """What makes values of a column's bytes; None for an encoding that is not read."""
    if encoding in _AS_STORED:
        return lambda column, _: column
    if encoding in _SCALARS:
        return partial(_numbers, encoding)
    if encoding in _TEXTS:
        return partial(_each, partial(_number, kind=_TEXTS[encoding]))
    form = _ARRAY.fullmatch(encoding)
    if form is None or form["dtype"] not in {None, *_DTYPES}:
        return None
    shape = None if form["shape"] is None else tuple(map(int, form["shape"].split(",")))
    if form["dtype"] is not None and shape is not None:
        return partial(_alike, form["dtype"], shape)
    return partial(_each, partial(_array, name=form["dtype"], shape=shape))


def _fitting(column: Pieces, size: int, what: str, reasons: dict[int, str]) -> NDArray[np.bool_]:
    """Rows whose values have so many bytes, bool (n,); a reason for each that has others."""
    good: NDArray[np.bool_] = (column.of >= 0) & (column.size == size)
    for row in np.flatnonzero((column.of >= 0) & ~good).tolist():
        reasons.setdefault(row, f"mds: {what} must have {size} bytes; found {int(column.size[row])}")
    return good


def _numbers(encoding: str, column: Pieces, reasons: dict[int, str]) -> NDArray[Any]:
    """One number per row: int64, uint64 or a float."""
    dtype = np.dtype(_SCALARS[encoding])
    good = _fitting(column, dtype.itemsize, encoding, reasons)
    out = np.zeros(len(column), dtype)
    out[good] = column[good].together(dtype.itemsize).view(dtype).reshape(-1)
    return out.astype(np.int64) if dtype.kind in "iu" and encoding != "uint64" else out


def _alike(name: str, shape: tuple[int, ...], column: Pieces, reasons: dict[int, str]) -> ArrayPieces:
    """Arrays of one dtype and shape: views."""
    dtype = np.dtype(_DTYPES[name])
    good = _fitting(column, math.prod(shape) * dtype.itemsize, f"{name} {shape}", reasons)
    return ArrayPieces(Pieces(column.memories, np.where(good, column.of, -1), column.at, column.size), dtype, shape)


def _each(value_of: Callable[[memoryview], Any], column: Pieces, reasons: dict[int, str]) -> list[Any]:
    """Values one by one."""
    out: list[Any] = [None] * len(column)
    for row, view in enumerate(column.views()):
        try:
            out[row] = None if view is None else value_of(view)
        except FormatError as error:
            reasons.setdefault(row, str(error))
    return out


def _number(value: memoryview, kind: Callable[[str], Any]) -> Any:
    text = bytes(value[:_LONGEST]).decode("ascii", "replace")
    try:
        if len(value) >= _LONGEST or "_" in text:  # to Python 1_0 is a number too
            raise ValueError
        return kind(text)
    except ValueError:
        msg = f"mds: must be a number in decimal text; found {text!r}"
        raise FormatError(msg) from None


def _array(value: memoryview, name: str | None, shape: tuple[int, ...] | None) -> Any:
    """An array; dtype and shape stand before its bytes where the encoding does not say them."""
    at = 0
    if name is None:
        name = _CODES.get(value[0]) if len(value) else None
        at = 1
    if shape is None and len(value) > at:
        dimensions, width = value[at] >> 2, 1 << (value[at] & 3)
        at += 1
        sides = value[at : at + dimensions * width]
        if len(sides) == dimensions * width and dimensions <= 32:  # more than NumPy had for long
            shape = tuple(np.frombuffer(sides, f"<u{width}").tolist())
            at += len(sides)
    if name is None or shape is None:
        msg = f"mds: an array must begin with its dtype and its shape; found {bytes(value[:12])!r}"
        raise FormatError(msg)
    dtype = np.dtype(_DTYPES[name])
    if math.prod(shape) * dtype.itemsize != len(value) - at:
        msg = f"mds: {name} {shape} must have {math.prod(shape) * dtype.itemsize} bytes; found {len(value) - at}"
        raise FormatError(msg)
    return np.frombuffer(value[at:], dtype).reshape(shape)


AUTO = "auto"
IMAGES = ("image", "jpg", "jpeg", "png", "img")  # what people call them, the foremost counts
LABELS = ("label", "class", "cls", "target", "y")


class MDS(RecordFiles):
    """Samples of a folder that MDSWriter wrote: index.json and the shards that it names, in its order.

    folder  of one split, with index.json in it
    image   the column that is the image, of encoding jpeg, png or bytes; "auto": the first of jpeg or png, else one of
            bytes that is called `image` or the like; None: there is none, and samples are read with `columns=`
    label   the column of integers that is the label; "auto": one that is called `label` or the like, else none; None

    Members are the columns. Bytes, images, texts and JSON are views, numbers and arrays are what they are. Pickles
    (`pkl`) are never read. Shards that Zstandard packed (`MDSWriter(compression="zstd")`) are unpacked in memory, one
    at a time for each reader, and nothing is written: so a shuffle moves whole shards, and mixes those of a window.

    Raises:
        ConfigError: an argument has a value that is not allowed.
        SourceNotFoundError: no index.json in the folder.
        SourceError: it is damaged, of another version, or its shards are compressed, and not by Zstandard.
        MissingPackageError: they are, and `zstandard` is not installed.
    """

    kind = "MDS"

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        image: str | None = AUTO,
        label: str | None = AUTO,
    ) -> None:
        named = path_of("MDS: folder", folder)
        root = named.rstrip("/") or "/"
        root = root if "://" in root else os.path.expanduser(root)
        store = store_for([root])
        self._set = read_set(root, store)
        paths = tuple(shard.raw.path for shard in self._set.shards)
        if twice := named_twice(paths):
            msg = f"MDS({named}): each shard may be named once; found {twice} twice in index.json; copy it again"
            raise ConfigError(msg)
        packed = {shard.raw.path: (shard.raw, shard.packed) for shard in self._set.shards if shard.packed is not None}
        super().__init__(f"MDS({named})", paths, PackedStore(store, packed) if packed else store)
        self._shards = {shard.raw.path: shard for shard in self._set.shards}
        # Of each shard's digest; it reads as it did when fingerprints of sets were first made.
        columns = f"names={self._set.names!r}, encodings={self._set.encodings!r}, sizes={self._set.sizes!r}"
        self._columns = f"MdsSample({columns})".encode()
        encodings = dict(zip(self._set.names, self._set.encodings, strict=True))
        for name, known in ((image, ("jpeg", "png", "bytes")), (label, INTEGERS)):
            if name not in (None, AUTO) and encodings.get(name) not in known:
                what = f"{encodings[name]!r}" if name in encodings else f"the columns {', '.join(encodings)}"
                msg = f"MDS({named}): {name!r} must be a column of encoding {', '.join(known)}; found {what}"
                raise ConfigError(msg)
        self._image = _image(encodings) if image == AUTO else image
        self._label, self._wanted = _named(encodings, LABELS, INTEGERS) if label == AUTO else label, label

    def snapshot(self, pin: Mapping[str, Any] | None = None) -> Snapshot:
        """All samples; see `FileSource.snapshot`. Of packed shards each is an extent, which is unpacked once."""
        snapshot, packed = super().snapshot(pin), isinstance(self._store, PackedStore)
        return replace(snapshot, extent=max(snapshot.extent, int(snapshot.stops.max()))) if packed else snapshot

    def check_hashes(self) -> int:
        """Read all shards whole and hold them against their hashes in index.json; how many have none to compute here.

        Raises DataLostError where one is another.
        """
        return self._each(lambda shard: has_right_hashes(shard, self._store), self._set.shards).count(False)

    @property
    def preset(self) -> Mapping[str, Any]:
        """`image`, and `label` where there is one. ConfigError where there is no column of images."""
        return images_and_labels(self._title, self._image, self._label, self._wanted)

    def can_have(self, member: str) -> bool:
        """Whether it is a column, of whatever encoding."""
        return member in self._set.names

    def check_members(self, members: Sequence[str]) -> None:
        """Raise ConfigError for what is no column, or one of an encoding that is not read: pickles are not, ever."""
        super().check_members(members)
        for name in members:
            encoding = self._set.encodings[self._set.names.index(name)]
            if decoder(encoding) is None:
                why = "runs code, and is never unpickled" if encoding == "pkl" else "is not read"
                msg = f"member {name!r}: its encoding {encoding!r} {why}; write it as jpeg, png, bytes, json or ndarray"
                raise ConfigError(msg)

    def readable(self) -> Sequence[str]:
        """The columns of encodings that are read."""
        return [name for name, encoding in zip(self._set.names, self._set.encodings, strict=True) if decoder(encoding)]

    def index(self, path: str) -> RecordIndex:
        """See `shard_index`."""
        return shard_index(self._shards[path], self._store, self._columns)

    def finish(self, block: Block, read: list[Pieces], members: tuple[str, ...]) -> None:
        """Columns of the samples, all samples at once."""
        reasons: dict[int, str] = {}
        columns = columns_of(read[0], self._set.sizes, reasons)
        block.values = {}
        for name in members:
            place = self._set.names.index(name)
            decode = decoder(self._set.encodings[place])
            if decode is not None:
                block.values[name] = decode(columns[place], reasons)
        block.faults.update((row, Fault("source", reason)) for row, reason in reasons.items())


def _image(encodings: dict[str, str]) -> str | None:
    pictures = [name for name, encoding in encodings.items() if encoding in {"jpeg", "png"}]
    return pictures[0] if pictures else _named(encodings, IMAGES, ("bytes",))


def _named(encodings: dict[str, str], names: tuple[str, ...], known: Any) -> str | None:
    return next((name for name in names if encodings.get(name) in known), None)
