"""A member of a record as a file in a tar: its suffix, and its bytes.

The law: bytes stay as they are. A number becomes decimal text, a text UTF-8, a list or an array `.npy`, anything else
JSON; equal values make equal bytes.
"""

from __future__ import annotations

import io
import json
import re
from typing import Any

import numpy as np

from dali_feed.errors import FormatError
from dali_feed.records.source import LABEL

__all__ = ["CLASS", "IMAGES", "as_file", "ending_of", "plain_suffix"]

CLASS = "cls"  # where webdataset's users, and ShardSet, look for a label
IMAGES = ("jpg", "jpeg", "png", "webp", "bmp", "tif", "tiff", "gif", "avif", "ppm", "pgm")
_MAGIC = (
    (b"\xff\xd8\xff", "jpg"),
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"GIF8", "gif"),
    (b"II*\0", "tif"),
    (b"MM\0*", "tif"),
    (b"\x93NUMPY", "npy"),
)
_SHORT = ((b"BM", "bmp"), (b"P6", "ppm"), (b"P5", "pgm"))  # two letters: a text may begin with them
_MAIN = frozenset(("image", "img", "picture", "value", "bytes", "payload", LABEL))
_ODD = re.compile(r"[^A-Za-z0-9_.-]+")


def ending_of(data: bytes | memoryview, *, main: bool = True) -> str | None:
    """The suffix of what bytes begin with; None where they say nothing. Of a payload (`main`) two letters do."""
    head = bytes(data[:16])
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "webp"
    if head[4:12] in (b"ftypavif", b"ftypavis"):
        return "avif"
    known = _MAGIC + _SHORT if main else _MAGIC
    return next((ending for magic, ending in known if head.startswith(magic)), None)


def plain_suffix(name: str) -> str:
    """A member's name as a suffix: no slash, no blank, no dot at its ends."""
    return _ODD.sub("_", name).strip(".") or "_"


def as_file(name: str, value: Any, suffix: str | None, main: bool, fallback: str) -> tuple[str, bytes | memoryview]:
    """(suffix, bytes) of a member's value; `suffix` where it is given, else by what it is.

    main      it is the record's payload, whose suffix is its kind alone; another's is `name.kind`
    fallback  suffix of a payload whose first bytes say nothing

    Raises FormatError for a value that no file can hold.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value) if isinstance(value, bytearray) else value
        return suffix or _suffix(name, data, main or name in _MAIN, fallback), data
    if isinstance(value, np.generic):
        value = value.item()
    stem = plain_suffix(name)
    if isinstance(value, bool | int | float):
        text = str(int(value)) if isinstance(value, bool | int) else repr(value)
        return suffix or (CLASS if name == LABEL else f"{stem}.txt"), text.encode()
    if isinstance(value, str):
        return suffix or (stem if stem in ("txt", "text") else f"{stem}.txt"), value.encode("utf-8", "surrogateescape")
    if isinstance(value, list | tuple | np.ndarray):
        array = np.asarray(value)
        if array.dtype.kind in "biuf":
            return suffix or f"{stem}.npy", _npy(array)
        value = array.tolist()
    try:
        return suffix or f"{stem}.json", json.dumps(value, sort_keys=True, ensure_ascii=False).encode()
    except (TypeError, ValueError) as error:
        msg = f"member {name!r}: {error}"
        raise FormatError(msg) from error


def _suffix(name: str, data: bytes | memoryview, main: bool, fallback: str) -> str:
    ending = ending_of(data, main=main)
    if main:
        return (CLASS if name == LABEL else fallback) if ending is None else ending
    stem = plain_suffix(name)
    return stem if ending is None or stem.lower().rpartition(".")[2] == ending else f"{stem}.{ending}"


def _npy(array: np.ndarray[Any, Any]) -> bytes:
    out = io.BytesIO()
    np.save(out, np.ascontiguousarray(array), allow_pickle=False)
    return out.getvalue()
