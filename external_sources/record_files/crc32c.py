"""CRC-32C (Castagnoli; RFC 3720, appendix B.4), which guards TFRecords."""

from __future__ import annotations

import functools
from collections.abc import Callable

from dali_feed.packages import needed

__all__ = ["crc32c", "masked"]


def masked(crc: int) -> int:
    """As TFRecords keep it: a text that holds its own CRC would have a CRC that says nothing."""
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def crc32c(data: bytes | memoryview) -> int:
    """The CRC of contiguous bytes. MissingPackageError where google-crc32c is not installed."""
    return _value()(bytes(data))  # it takes nothing else; a copy costs less than the CRC


@functools.cache
def _value() -> Callable[[bytes], int]:
    with needed():
        import google_crc32c
    value: Callable[[bytes], int] = google_crc32c.value
    return value
