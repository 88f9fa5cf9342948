"""One image decoded on the CPU: by nvImageCodec, or in `pillow.py`, as the first byte says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.engines.codec import nvimgcodec
from dali_feed.engines.host import pillow
from dali_feed.engines.host.raw import raw_pixels
from dali_feed.screen.screen import UnusableError, header_of

__all__ = ["Trial", "decoded", "new_decoder", "turned"]

_PARAMS = nvimgcodec.DecodeParams(apply_exif_orientation=False, color_spec=nvimgcodec.ColorSpec.SRGB)


def new_decoder() -> Any:
    """A decoder for one thread."""
    return nvimgcodec.Decoder(
        device_id=nvimgcodec.NVIMGCODEC_DEVICE_CPU_ONLY,
        max_num_cpu_threads=1,
        backends=[nvimgcodec.Backend(nvimgcodec.CPU_ONLY)],
        options=":fancy_upsampling=1",
    )


def decoded(decoder: Any, payload: memoryview, window: Sequence[int] | None) -> NDArray[np.uint8]:
    """The image, or its window (y, x, height, width), by whichever library knows its format. Raises UnusableError.

    It may be a view of the payload, where that is pixels: not to be written.
    """
    if payload and payload[0] in pillow.FIRST_BYTES:
        raw = raw_pixels(payload, window)
        return pillow.decode(payload, window) if raw is None else raw
    try:
        stream = nvimgcodec.CodeStream(np.frombuffer(payload, np.uint8))
    except (RuntimeError, ValueError) as error:  # ValueError: no bytes at all
        msg = "decoder: nvImageCodec cannot parse it"
        raise UnusableError(msg) from error
    if window is not None:
        y, x, h, w = window
        region = nvimgcodec.Region(y, x, y + h, x + w)
        stream = stream.get_sub_code_stream(nvimgcodec.CodeStreamView(region=region))
    image = decoder.decode(stream, params=_PARAMS)
    if image is None:
        msg = "decoder: nvImageCodec cannot decode it"
        raise UnusableError(msg)
    return np.asarray(image)


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


class Trial:
    """Decodes payloads whole and throws the pixels away, to learn whether the host engine can. For one thread."""

    def __init__(self) -> None:
        self._decoder = new_decoder()

    def refusal(self, payload: memoryview) -> str | None:
        """Why a screened payload cannot be decoded, or None."""
        try:
            plain = header_of(payload).plain
            decoded(self._decoder, payload if plain is None else memoryview(plain), None)
        except UnusableError as error:
            return str(error)
        return None
