"""Payloads for tests: small real images, and the ways in which a record can be broken."""

from __future__ import annotations

import functools
import io
import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dali_feed.feed import Batch
from dali_feed.options import Tuning
from dali_feed.testing.scripted import Item

QUICK = Tuning(threads=1, readers=1, next_epoch=False)  # a pass that is over has read what it needs, no more
Seen = tuple[list[int], list[int], list[bool], bytes]


def pixels(n: int, height: int = 16, width: int = 16) -> NDArray[np.uint8]:
    """A smooth picture that differs for every n: uint8 (height, width, 3)."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    phase = np.array([0.7, 1.3, 2.1]) * (n + 1)
    waves = np.sin(x[..., None] / 5 + phase) + np.cos(y[..., None] / 7 - phase / 3)
    out: NDArray[np.uint8] = np.clip(128 + 60 * waves, 0, 255).astype(np.uint8)
    return out


def encoded(array: Any, kind: str = "PNG", *, palette: bool = False, **options: Any) -> bytes:
    """A file of these pixels, uint8 (height, width) or (height, width, 3); `palette`: they are numbers of colours."""
    out = io.BytesIO()
    image = Image.fromarray(array)
    if palette:
        image.putpalette(list(range(256)) * 3)  # a grey image becomes one with a palette, its numbers as they are
    image.save(out, kind, **options)
    return out.getvalue()


@functools.lru_cache(4096)
def _saved(n: int, height: int, width: int, kind: str, **options: Any) -> bytes:
    return encoded(pixels(n, height, width), kind, **options)


def jpeg(n: int, height: int = 16, width: int = 16) -> bytes:
    """A JPEG whose pixels tell n."""
    return _saved(n, height, width, "JPEG", quality=90)


def png(n: int, height: int = 16, width: int = 16) -> bytes:
    """A PNG whose pixels tell n."""
    return _saved(n, height, width, "PNG")


def labelled(count: int, *, sizes: bool = False) -> list[Item]:
    """`count` JPEGs with their number as the label; with `sizes` of many sizes from 16x16 to 40x48."""
    if not sizes:
        return [(jpeg(n), n) for n in range(count)]
    return [(jpeg(n, 16 + n % 4 * 8, 16 + n % 5 * 8), n) for n in range(count)]


def broken_png(n: int = 0) -> bytes:
    """Its chunks and checksums are whole, so that it passes the screen; its zlib stream is not."""
    whole = png(n)
    at = whole.index(b"IDAT")
    length = int.from_bytes(whole[at - 4 : at], "big")
    body = b"IDAT" + whole[at + 4 : at + 6] + b"\xff" * (length - 2)
    return whole[:at] + body + struct.pack(">I", zlib.crc32(body)) + whole[at + 4 + length + 4 :]


def cut_jpeg(n: int = 0) -> bytes:
    """The first eighth of a JPEG's body and an end marker: decoders fill up the rest, as torchvision's does."""
    whole = _saved(n, 48, 40, "JPEG", quality=95)
    body = whole.index(b"\xff\xda") + 14
    return whole[: body + (len(whole) - body) // 8] + b"\xff\xd9"


def bad_tables(n: int = 0) -> bytes:
    """A progressive JPEG with impossible Huffman tables between two scans: it passes the screen, and no decoder."""
    whole = _saved(n, 16, 16, "JPEG", quality=90, progressive=True)
    at = whole.index(b"\xff\xc4", whole.index(b"\xff\xda"))
    return whole[:at] + b"\xff\xc4\x00\x13\x00" + b"\xff" * 16 + whole[at:]


def truncated_jpeg(n: int = 0) -> bytes:
    """A JPEG without its last bytes."""
    return jpeg(n)[:-40]


def huge_jpeg() -> bytes:
    """A JPEG whose header announces 60000x60000 pixels."""
    whole = bytearray(jpeg(0))
    at = whole.index(b"\xff\xc0")
    whole[at + 5 : at + 9] = struct.pack(">HH", 60000, 60000)
    return bytes(whole)


def text() -> bytes:
    """What a web server sends when it cannot find a picture."""
    return b"<html><body>404 not found</body></html>"


def padded(payload: bytes, size: int) -> bytes:
    """A JPEG of exactly `size` bytes: zeros and a second end marker behind the first."""
    return payload + b"\0" * (size - len(payload) - 2) + b"\xff\xd9"


def seen(batch: Batch) -> Seen:
    """All that a trainer can see of a batch: ids, labels, ok, pixel bytes."""
    labels = np.asarray(batch.fields.get("label", []))
    return batch.ids.tolist(), labels.tolist(), batch.ok.tolist(), np.asarray(batch.images).tobytes()
