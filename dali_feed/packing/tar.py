"""Bytes of a tar file, sample by sample, and where each member lies in it.

The law: equal samples make equal bytes. A header has no time, owner or anything else of the machine that wrote it. It
is plain ustar; a name that is long or not ASCII, or a member of 8 GiB, gets a pax header before it, as POSIX has it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable

import numpy as np

from dali_feed.external_sources.index_bytes import Columns, Indexed

__all__ = ["TarWriter"]

BLOCK = 512
FLUSH_BYTES = 1 << 20
COPIED_BYTES = 64 << 10  # larger views are written at once, smaller ones wait for more
MOST_OCTAL = 8**11
_ZEROS = bytes(BLOCK)
_MODE = b"0000644\0" + b"0000000\0" * 2
_TIME = b"00000000000\0"
_TAIL = bytes(100) + b"ustar\x0000" + bytes(BLOCK - 265)
_SUM = sum(_MODE + _TIME + b" " * 8 + _TAIL)  # of all that is the same in every header
_REGULAR, _PAX = b"0", b"x"


class TarWriter:
    """Gives `write` the archive in pieces of about 1 MiB, and keeps the columns of its index. For one thread."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._parts: list[bytes | memoryview] = []
        self._held = 0
        self.size = 0
        self._first: list[int] = []
        self._offset: list[int] = []
        self._length: list[int] = []
        self._suffix: list[int] = []
        self._crc: list[int] = []
        self._codes: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._first)

    def add(self, key: str, members: Iterable[tuple[str, bytes | memoryview]]) -> None:
        """A sample: its key, and its members as (suffix, bytes), in this order. Views are used before this returns."""
        self._first.append(len(self._offset))
        views = False
        for suffix, data in members:
            size = len(data)
            if data.__class__ is not bytes:
                views |= size >= COPIED_BYTES
                data = data if size >= COPIED_BYTES else bytes(data)  # noqa: PLW2901
            self._put(_header(f"{key}.{suffix}", size))
            self._offset.append(self.size)
            self._length.append(size)
            self._suffix.append(self._codes.setdefault(suffix.lower(), len(self._codes)))
            self._crc.append(zlib.crc32(data))
            self._put(data)
            if rest := -size % BLOCK:
                self._put(_ZEROS[:rest])
        if views or self._held >= FLUSH_BYTES:
            self._flush()

    def finish(self) -> Indexed:
        """Write the end; what the archive's index is made of."""
        self._put(_ZEROS * 2)
        self._flush()
        columns: Columns = (
            np.array([*self._first, len(self._offset)], "<i8"),
            np.array(self._offset, "<i8"),
            np.array(self._length, "<i8"),
            np.array(self._suffix, "<i4"),
        )
        suffixes = tuple(suffix.encode() for suffix in self._codes)
        return Indexed(self.size, 0, 0, columns, suffixes, np.array(self._crc, "<u4"))

    def _put(self, data: bytes | memoryview) -> None:
        self._parts.append(data)
        self._held += len(data)
        self.size += len(data)

    def _flush(self) -> None:
        self._write(b"".join(self._parts))
        self._parts.clear()
        self._held = 0


def _header(name: str, size: int) -> bytes:
    """The header of a regular file, with a pax header before it where ustar cannot hold its name or size."""
    encoded = name.encode("utf-8", "surrogateescape")
    if len(encoded) <= 100 and size < MOST_OCTAL and encoded.isascii():
        return _block(encoded, size, _REGULAR)
    records = b""
    if len(encoded) > 100 or not encoded.isascii():
        records += _record(b"path", encoded)
    if size >= MOST_OCTAL:
        records += _record(b"size", b"%d" % size)
    short = encoded.decode("ascii", "replace").replace("�", "_").encode()[:100]
    padded = records + bytes(-len(records) % BLOCK)
    return _block(b"pax_header", len(records), _PAX) + padded + _block(short, min(size, MOST_OCTAL - 1), _REGULAR)


def _record(key: bytes, value: bytes) -> bytes:
    """LENGTH, a blank, KEY=VALUE and a newline; the length counts its own digits."""
    rest = len(key) + len(value) + 3
    length = rest + len(str(rest))
    length = rest + len(str(length))
    return b"%d %s=%s\n" % (length, key, value)


def _block(name: bytes, size: int, kind: bytes) -> bytes:
    digits = b"%011o" % size
    total = _SUM + sum(name) + sum(digits) + kind[0]
    return b"".join((name.ljust(100, b"\0"), _MODE, digits, b"\0", _TIME, b"%06o\0 " % total, kind, _TAIL))
