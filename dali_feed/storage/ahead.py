"""Reading ahead in a file whose every read costs a request."""

from __future__ import annotations

from dali_feed.storage.contract import Opened, piece

__all__ = ["Ahead"]

FIRST_BYTES = 64 << 10
AHEAD_BYTES = 8 << 20


class Ahead:
    """Pieces of a file, read in large blocks as long as they follow each other, and in small ones where they do not."""

    def __init__(self, file: Opened) -> None:
        self._file = file
        self._bytes, self._at = b"", 0

    def __call__(self, size: int, at: int) -> bytes:
        """`size` bytes from byte `at`; fewer where the file ends."""
        first = at - self._at
        if not 0 <= first <= len(self._bytes) - size:
            follows = self._bytes and 0 <= first <= len(self._bytes) + FIRST_BYTES
            block = AHEAD_BYTES if follows else FIRST_BYTES
            self._bytes, self._at, first = piece(self._file, max(size, block), at), at, 0
        return self._bytes[first : first + size]
