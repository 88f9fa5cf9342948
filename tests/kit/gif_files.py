"""GIF files for tests, of every kind that is taken."""

from __future__ import annotations

import functools
import io
import struct
from typing import Any

import numpy as np
from kit.images import pixels
from kit.kinds import saved
from numpy.typing import NDArray
from PIL import Image


def picture(n: int = 0, height: int = 31, width: int = 40) -> Image.Image:
    """A picture that tells n."""
    return Image.fromarray(pixels(n, height, width))


def opened(payload: bytes) -> NDArray[np.uint8]:
    """What ImageFolder gets: the first image in RGB."""
    with Image.open(io.BytesIO(payload)) as image:
        return np.array(image.convert("RGB"))


def gif(n: int = 0, height: int = 31, width: int = 40, **options: Any) -> bytes:
    """A GIF of 64 colours whose pixels tell n."""
    return saved(picture(n, height, width).quantize(64), "GIF", **options)


def on_canvas(file: bytes, height: int, width: int, y: int, x: int) -> bytes:
    """A GIF of one image without extensions, put at (y, x) of a larger canvas whose background is entry 5."""
    out = bytearray(file)
    at = 13 + (6 << (out[10] & 7))
    assert out[at] == 0x2C
    struct.pack_into("<HH", out, 6, width, height)
    struct.pack_into("<HH", out, at + 1, x, y)
    out[11] = 5
    return bytes(out)


@functools.cache
def gifs() -> dict[str, bytes]:
    """Good GIFs of every kind."""
    plain = gif(interlace=0)
    table = 6 << (plain[10] & 7)
    image = 13 + table  # where the image begins
    local = bytes([plain[image + 9] | 0x80 | plain[10] & 7])
    frames = [picture(n).quantize(64) for n in range(3)]
    return {
        "gif": plain,
        "gif interlaced": gif(interlace=1),
        "gif gray": saved(picture().convert("L"), "GIF"),
        "gif 1 bit": saved(picture().convert("1"), "GIF"),
        "gif transparent": gif(transparency=3, background=7),
        "gif comment": gif(comment=b"by hand " * 100),
        "gif looped": gif(loop=0, duration=40),
        "gif on a canvas": on_canvas(plain, 50, 60, 7, 9),
        "gif interlaced on a canvas": on_canvas(gif(interlace=1), 50, 60, 7, 9),
        "gif local palette": plain[:10]
        + bytes([plain[10] & 0x7F])
        + plain[11:13]
        + plain[image : image + 9]
        + local
        + plain[13:image]
        + plain[image + 10 :],
        "gif without palette": plain[:10] + bytes([plain[10] & 0x7F]) + plain[11:13] + plain[image:],
        "gif animated": saved(frames[0], "GIF", save_all=True, append_images=frames[1:], disposal=2, duration=30),
        "gif without end": plain[:-1],
        "gif 1x1": gif(0, 1, 1),
    }
