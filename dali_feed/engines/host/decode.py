"""Images decoded on the CPU: JPEG and PNG by nvImageCodec, all else by Pillow, as the first byte says.

JPEGs that stand beside each other are decoded by one call, then resized one after another: a core that goes from one
kind of work to the other at each image does both more slowly. How many is bounded by the memory of their pixels.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.screen import pillow
from dali_feed.screen.header import UnusableError
from dali_feed.screen.screen import header_of

# nvImageCodec, imported so that it prints nothing: what happens to a record is reported by us, with its coordinates.
#
# It and the OpenCV in it read from the environment, when they are loaded, how much to print, and print to the
# user's terminal. The user's own setting wins, and the environment is left as it was.

_SILENT = {"PYNVIMGCODEC_VERBOSITY": "0", "OPENCV_LOG_LEVEL": "SILENT"}


@contextmanager
def _silent() -> Iterator[None]:
    ours = {name: value for name, value in _SILENT.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            del os.environ[name]


with _silent():
    from nvidia import nvimgcodec

VERSION = str(nvimgcodec.__version__)  # another decoder may give other pixels


TOGETHER = 16 << 20  # bytes of pixels that one call decodes, and each thread then holds

_JPEG, _PNG = 0xFF, 0x89  # first bytes, of no other format that is let in
_REFUSED = "decoder: nvImageCodec cannot decode it"
_PARAMS = nvimgcodec.DecodeParams(apply_exif_orientation=False, color_spec=nvimgcodec.ColorSpec.SRGB)


def new_decoder(threads: int = 1) -> Any:
    """A decoder of so many threads, for one of ours."""
    return nvimgcodec.Decoder(
        device_id=nvimgcodec.NVIMGCODEC_DEVICE_CPU_ONLY,
        max_num_cpu_threads=threads,
        backends=[nvimgcodec.Backend(nvimgcodec.CPU_ONLY)],
        options=":fancy_upsampling=1",
    )


def decoded(decoder: Any, payload: memoryview, window: Sequence[int] | None) -> NDArray[np.uint8]:
    """The image, or its window (y, x, height, width), by whichever library knows its format. Raises UnusableError.

    It may be a view of the payload, where that is pixels: not to be written.
    """
    if payload and payload[0] not in (_JPEG, _PNG):
        raw = pillow.raw_pixels(payload, window)
        return pillow.decode(payload, window) if raw is None else raw
    stream = _stream(payload, window)
    image = decoder.decode(stream, params=_PARAMS)
    if image is None:
        raise UnusableError(_REFUSED)
    return np.asarray(image)


def jpegs(payloads: Sequence[memoryview], windows: Sequence[Sequence[int]] | None) -> list[Any]:
    """What `decoded_jpegs` takes for the JPEGs at the front of `payloads`, or for as many as one call decodes.

    It ends before what is no JPEG, or cannot be parsed; where that is the first, the list is empty. `windows` as
    `decoded` takes them.
    """
    streams, size = list[Any](), 0
    for k, payload in enumerate(payloads):
        if not payload or payload[0] != _JPEG:
            break
        try:
            stream = _stream(payload, None if windows is None else windows[k])
            height, width = (stream.height, stream.width) if windows is None else windows[k][2:]
        except (UnusableError, RuntimeError):  # RuntimeError: the header is read now, and has no size
            break
        size += height * width * 3
        if streams and size > TOGETHER:
            break
        streams.append(stream)
    return streams


def decoded_jpegs(decoder: Any, streams: list[Any]) -> list[NDArray[np.uint8] | str]:
    """Each image as `decoded` gives it, or why it cannot be decoded."""
    images = decoder.decode(streams, params=_PARAMS)
    return [_REFUSED if image is None else np.asarray(image) for image in images]


def _stream(payload: memoryview, window: Sequence[int] | None) -> Any:
    """What nvImageCodec decodes of a payload. Raises UnusableError."""
    try:
        stream = nvimgcodec.CodeStream(np.frombuffer(payload, np.uint8))
    except (RuntimeError, ValueError) as error:  # ValueError: no bytes at all
        raise UnusableError("decoder: nvImageCodec cannot parse it") from error
    if window is None:
        return stream
    y, x, h, w = window
    region = nvimgcodec.Region(y, x, y + h, x + w)
    return stream.get_sub_code_stream(nvimgcodec.CodeStreamView(region=region))


def turned(pixels: NDArray[np.uint8], way: Sequence[int]) -> NDArray[np.uint8]:
    """Stored pixels as the upright image has them; `way`: mirrored top to bottom, left to right, axes exchanged."""
    up_down, left_right, sideways = way
    if not (up_down or left_right or sideways):
        return pixels
    pixels = pixels[:: -1 if up_down else 1, :: -1 if left_right else 1]
    if not sideways:
        return np.ascontiguousarray(pixels)
    out = np.empty((pixels.shape[1], pixels.shape[0], 3), np.uint8)
    for channel in range(3):  # six times as fast as all at once, for NumPy then copies three bytes at a time
        out[..., channel] = pixels[..., channel].T
    return out


def refusal(decoder: Any, payload: memoryview) -> str | None:
    """Why a screened payload cannot be decoded by the host engine, or None."""
    try:
        plain = header_of(payload).plain
        decoded(decoder, payload if plain is None else memoryview(plain), None)
    except UnusableError as error:
        return str(error)
    return None


# Finds the payloads that a decoder refuses, one verdict per payload, without ending the process.
#
# nvImageCodec is DALI's own decoder; asked for a list, it gives None for each item that fails.


def undecodable(payloads: Sequence[Any], threads: int = 1, check: Callable[[], None] = lambda: None) -> dict[int, str]:
    """Index -> reason for every payload (bytes, uint8) that cannot be decoded on the CPU, by so many threads.

    `check` is called now and then; an exception of it ends the search.
    """
    bad: dict[int, str] = {}
    streams: list[Any] = []
    rows: list[int] = []
    for n, payload in enumerate(payloads):
        try:
            streams.append(nvimgcodec.CodeStream(np.asarray(payload)))
            rows.append(n)
        except RuntimeError:
            bad[n] = "decoder: nvImageCodec cannot parse it"
    decoder, some = new_decoder(threads), 4 * threads  # images held at a time: a batch of large ones fills gigabytes
    for first in range(0, len(streams), some):
        check()
        images = decoder.decode(streams[first : first + some])
        for n, image in zip(rows[first : first + some], images, strict=True):
            if image is None:
                bad[n] = "decoder: nvImageCodec cannot decode it"
    return bad
