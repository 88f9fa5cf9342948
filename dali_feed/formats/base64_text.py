"""Base64, strictly: by pybase64 where it is installed, which is a hundred times as fast, else by the standard library.

Both take and refuse the same texts.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable

__all__ = ["decoder", "plain"]


def decoder() -> Callable[[str], bytes]:
    """What gives the bytes of a text. It raises ValueError where the text is no base64 to the last letter."""
    try:
        import pybase64
    except ImportError:
        return plain

    fast = pybase64.b64decode

    def decode(text: str) -> bytes:
        found: bytes = fast(text, validate=True)
        return found

    return decode


def plain(text: str) -> bytes:
    """The same by the standard library, which by itself lets more padding pass than there may be."""
    if len(text) % 4 or text.endswith("==="):
        msg = "incorrect padding"
        raise ValueError(msg)
    return binascii.a2b_base64(text, strict_mode=True)
