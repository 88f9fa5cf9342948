"""What a kind of file with records one behind the other is: how its records are framed, and what is inside a frame."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dali_feed.records.source import Int64s

__all__ = ["BrokenError", "Frames", "Framing", "Pread", "Window"]

Pread = Callable[[int, int], bytes]  # so many bytes, from a byte on; fewer where the file ends
Frames = tuple[Int64s, Int64s]

_LEAST, _MOST = 4096, 1 << 20
_MANY = 16  # questions that one read answered, from which the next is worth twice as much


class BrokenError(Exception):
    """What is wrong at which byte, in the frame of which record."""

    def __init__(self, record: int, byte: int, what: str) -> None:
        super().__init__(what)
        self.record, self.byte, self.what = record, byte, what


@dataclass(frozen=True, slots=True)
class Framing:
    """A kind of file.

    name    for messages, and what marks an index of its files
    frames  where each record lies, with what of its frame is needed to check it: byte and size, int64 (records,) each,
            of a file that is read by a `Pread` and has so many bytes. It may raise a BrokenError
    other   of a file that begins with these bytes and is broken at once: what it is instead, and the cure; "" where
            that cannot be said
    value   what such a piece holds; a text that says why it cannot be used
    """

    name: str
    frames: Callable[[Pread, int], Frames]
    other: Callable[[bytes, str], str]
    value: Callable[[memoryview], memoryview | str]


class Window:
    """Reads ahead where records are small, and little more than was asked for where they are large."""

    def __init__(self, pread: Pread) -> None:
        self._pread, self._size, self._answered = pread, _LEAST, 0
        self._bytes, self._at = b"", 0

    def piece(self, at: int, size: int) -> bytes:
        """Bytes from `at`; fewer than `size` at the end of the file."""
        first = at - self._at
        if not 0 <= first <= len(self._bytes) - size:
            self._size = min(2 * self._size, _MOST) if self._answered >= _MANY else _LEAST
            self._bytes, self._at, first, self._answered = self._pread(max(size, self._size), at), at, 0, 0
        self._answered += 1
        return self._bytes[first : first + size]
