"""What a member seems to be, by its first bytes and its name, and the column that would be made of it."""

from __future__ import annotations

import base64
import binascii
import json
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from dali_feed.errors import FormatError
from dali_feed.formats.npy import MAGIC
from dali_feed.formats.npy import header_of as npy_header
from dali_feed.screen.screen import UnusableError, header_of

__all__ = ["Guess", "guess"]

_CLASSES = re.compile(r"mask|seg|classes", re.IGNORECASE)
_RAW = re.compile(r"(f|fp|float|i|int|u|uint)(16|32|64)")  # a suffix that says what raw bytes are
_LETTERS = {"f": "f", "fp": "f", "float": "f", "i": "i", "int": "i", "u": "u", "uint": "u"}
_HEAD = 4096  # bytes that are looked at where a text is long


@dataclass(frozen=True, slots=True)
class Guess:
    """What a member seems to be.

    text    for people: "jpeg image", "int, as text", "float32 (2048,)"
    kind    of `dali_feed.columns`; "" where none suggests itself
    more    of its arguments, behind the member
    base64  it is bytes in a text, which a format can unwrap
    """

    text: str
    kind: str
    more: str = ""
    base64: bool = False


def guess(name: str, value: Any) -> Guess:
    """Of one record's member, bytes or a value."""
    if isinstance(value, bytes | memoryview):
        return _of_bytes(name, value)
    if isinstance(value, bool | np.bool_):
        return Guess("bool", "Number", ', "bool"')
    if isinstance(value, int | np.integer):
        return Guess("int", "Number")
    if isinstance(value, float | np.floating):
        return Guess("float", "Number", ', "float32"')
    if isinstance(value, str):
        return _wrapped(name, value) or Guess("text", "Text")
    if isinstance(value, np.ndarray | list):
        return _of_numbers(value)
    return Guess(type(value).__name__, "Json" if isinstance(value, dict) else "")


def _of_bytes(name: str, value: bytes | memoryview) -> Guess:
    try:
        header = header_of(value)
    except UnusableError:
        pass
    else:
        classes = header.components == 1 and _CLASSES.search(name)
        return Guess(f"{header.format} image", "Mask" if classes else "Image")
    if value[: len(MAGIC)] == MAGIC:
        try:
            _, dtype, shape, _ = npy_header(value)
        except FormatError:
            return Guess("npy, cut off", "Bytes")
        return Guess(f"npy {dtype.name} {shape}", "Array", f', "{dtype.name}", {shape}')
    named = _RAW.fullmatch(name.rpartition(".")[2].lower())
    if named is not None:
        dtype = np.dtype(f"{_LETTERS[named[1]]}{int(named[2]) // 8}")
        if len(value) and len(value) % dtype.itemsize == 0:
            count = len(value) // dtype.itemsize
            return Guess(f"{dtype.name} ({count},)", "Array", f', "{dtype.name}", ({count},)')
    return _of_text(value)


def _of_text(value: bytes | memoryview) -> Guess:
    head = bytes(value[:_HEAD])
    try:
        text = head.decode()
    except UnicodeDecodeError as error:
        if error.start < _HEAD - 4 or len(value) <= _HEAD:
            return Guess("bytes", "Bytes")
        text = head[: error.start].decode()
    if "\0" in text or not text:
        return Guess("bytes" if text else "nothing", "Bytes")
    if text.lstrip()[:1] in ("{", "["):
        try:
            json.loads(bytes(value))
        except (ValueError, RecursionError):
            return Guess("text", "Text")
        return Guess("json", "Json")
    if re.fullmatch(r"\s*[+-]?[0-9]{1,18}\s*", text):
        return Guess("int, as text", "Number")
    if re.fullmatch(r"\s*[+-]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*", text):
        return Guess("float, as text", "Number", ', "float32"')
    return Guess("text", "Text")


def _wrapped(name: str, text: str) -> Guess | None:
    """Of a text that is an image in base64."""
    body = text.partition(",")[2] if text.startswith("data:") else text
    if len(body) < 32:
        return None
    try:
        inside = _of_bytes(name, base64.b64decode(body, validate=True))
    except (binascii.Error, ValueError):
        return None
    if inside.kind not in ("Image", "Mask", "Array"):
        return None
    return Guess(f"{inside.text}, in base64", inside.kind, inside.more, base64=True)


def _of_numbers(value: Any) -> Guess:
    try:
        array = np.asarray(value)
    except ValueError:  # rows of several lengths
        return Guess("list", "Json")
    if array.dtype.kind not in "biuf":
        return Guess("list", "Json")
    given = array.dtype.name if isinstance(value, np.ndarray) or array.dtype.kind != "f" else "float32"
    if isinstance(value, list) and array.ndim == 2 and array.shape[1] == 4:
        return Guess("rows of 4", "Boxes")
    return Guess(f"{given} {array.shape}", "Array", f', "{given}", {array.shape}')
