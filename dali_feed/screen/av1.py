"""AV1 data as far as they say how large their frames are (the law of `header.py`).

A sequence header bounds the frames behind it. A frame may override it, up to what libavif itself lets pass:
16384x16384 pixels.
"""

from __future__ import annotations

from collections.abc import Iterator

from dali_feed.screen.header import UnusableError

__all__ = ["frame_sizes"]

_HEADER_BYTES = 512  # what a sequence header with 32 operating points takes at most, and more
_SEQUENCE = 1


class _Bits:
    """Bits one after the other, the highest first. Past the end it raises IndexError."""

    def __init__(self, data: memoryview) -> None:
        self._bits = int.from_bytes(data, "big")
        self._left = 8 * len(data)

    def take(self, count: int) -> int:
        self._left -= count
        if self._left < 0:
            raise IndexError
        return self._bits >> self._left & ((1 << count) - 1)


def frame_sizes(data: memoryview, units: Iterator[int]) -> Iterator[tuple[int, int]]:
    """The largest width and height of each sequence header in an item's data. `units` bounds the walk."""
    at, found = 0, False
    while at < len(data):
        if next(units, None) is None:
            msg = "AVIF with too many units of AV1 data"
            raise UnusableError(msg)
        head = data[at]
        at += 2 if head & 4 else 1
        size = len(data) - at
        if head & 2:
            size, at = _length(data, at)
        if head & 0x80 or size < 0 or at + size > len(data):
            msg = f"AVIF damaged: an AV1 unit of {size} bytes ends at {at + size} of {len(data)}"
            raise UnusableError(msg)
        if head >> 3 & 15 == _SEQUENCE:
            found = True
            yield _largest(_Bits(data[at : at + min(size, _HEADER_BYTES)]))
        at += size
    if not found:
        msg = "AVIF damaged: AV1 data without a sequence header"
        raise UnusableError(msg)


def _length(data: memoryview, at: int) -> tuple[int, int]:
    """A unit's size, seven bits to a byte, the lowest first; and where the unit begins."""
    size = 0
    for n in range(8):
        byte = data[at + n]
        size |= (byte & 0x7F) << 7 * n
        if byte < 0x80:
            return size, at + n + 1
    msg = "AVIF damaged: an AV1 unit whose size takes more than 8 bytes"
    raise UnusableError(msg)


def _largest(bits: _Bits) -> tuple[int, int]:
    """max_frame_width and max_frame_height of a sequence header."""
    bits.take(4)  # profile, still_picture
    if bits.take(1):  # reduced
        bits.take(5)
    else:
        _operating_points(bits)
    wide, high = bits.take(4) + 1, bits.take(4) + 1
    return bits.take(wide) + 1, bits.take(high) + 1


def _operating_points(bits: _Bits) -> None:
    """What stands before the sizes where the sequence is no reduced still picture."""
    delay = None  # bits of a buffer delay, where there is a decoder model
    if bits.take(1):  # timing
        bits.take(64)
        if bits.take(1):  # an equal interval, in Golomb code
            zeros = 0
            while not bits.take(1):
                zeros += 1
            bits.take(zeros)
        if bits.take(1):
            delay = bits.take(5) + 1
            bits.take(42)
    initial = bits.take(1)
    for _ in range(bits.take(5) + 1):
        bits.take(12)
        if bits.take(5) > 7:  # level
            bits.take(1)
        if delay is not None and bits.take(1):
            bits.take(2 * delay + 1)
        if initial and bits.take(1):
            bits.take(4)
