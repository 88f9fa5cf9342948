"""Files whose parts contradict each other: refused with the part's name, before a decoder sees them."""

from __future__ import annotations

import io
import struct

import pytest
from PIL import Image
from zoo import chunk

from dali_feed.screen.header import UnusableError
from dali_feed.screen.pillow import decode
from dali_feed.screen.png import MAX_CHUNKS
from dali_feed.screen.screen import header_of

BEGIN = b"\x89PNG\r\n\x1a\n"
HEAD = chunk(b"IHDR", struct.pack(">IIBBBBB", 4, 4, 8, 0, 0, 0, 0))
INDEXED = chunk(b"IHDR", struct.pack(">IIBBBBB", 4, 4, 8, 3, 0, 0, 0))
PIXELS, END = chunk(b"IDAT", b"x"), chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (BEGIN + HEAD + HEAD + PIXELS + END, "PNG damaged: chunk b'IHDR' of length 13 at byte 33"),
        (BEGIN + INDEXED + chunk(b"PLTE", b"1234") + PIXELS + END, "PNG damaged: chunk b'PLTE' of length 4"),
        (BEGIN + HEAD + chunk(b"tEXt", b"") * MAX_CHUNKS + PIXELS + END, f"PNG with more than {MAX_CHUNKS} chunks"),
        (BEGIN + HEAD + END, "PNG damaged: no IDAT chunk"),
        (BEGIN + INDEXED + PIXELS + END, "PNG damaged: no PLTE chunk"),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(payload: bytes, said: str) -> None:
    """With what is wrong and where; the same file without it is taken."""
    with pytest.raises(UnusableError, match=said):
        header_of(memoryview(payload))
    for good in (INDEXED + chunk(b"PLTE", b"123"), HEAD + chunk(b"tEXt", b"") * 9):
        assert header_of(memoryview(BEGIN + good + PIXELS + END)).height == 4


def test_a_bmp_of_os2_has_its_size() -> None:
    """Its header is of 12 bytes, with a palette of three bytes a colour; Pillow sees the same size."""
    palette = bytes(range(6))
    start = 14 + 12 + len(palette)
    head = b"BM" + struct.pack("<IHHI", start + 4 * 5, 0, 0, start) + struct.pack("<IHHHH", 12, 9, 5, 1, 1)
    payload = head + palette + bytes(4 * 5)
    found = header_of(memoryview(payload))
    assert (found.format, found.width, found.height) == ("bmp", 9, 5)
    with Image.open(io.BytesIO(payload)) as image:
        assert image.size == (9, 5)
    with pytest.raises(UnusableError, match="truncated"):
        decode(memoryview(payload[:-4]))
