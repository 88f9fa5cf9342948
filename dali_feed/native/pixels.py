"""One image of bytes into its place in a batch, in one pass of C over memory: see `pixels.c`.

The law: what the C is told lies inside the two tensors, because it is made of their own addresses, shapes and strides.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.native.library import library

FAR = 1 << 17  # bytes of an image in the batch; from here on past the caches, which a batch of such images fills

_CHANNELS_LAST, _PAST_CACHES = 1, 2  # of pixels.c

_ARGUMENTS = (
    *(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_ssize_t, ctypes.c_ssize_t),  # the image
    *(ctypes.c_size_t, ctypes.c_size_t),
    *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int),
)


class PixelWriter:
    """Writes images. Used by many threads at once.

    table          what each of 256 levels becomes, (3, 256) of values of 1, 2 or 4 bytes; None: what it was
    steps          a scale, three means and three divisors that make the floats of the table, if any do: `steps_of`
    channels_last  a place is (height, width, 3), and (3, height, width) otherwise
    """

    def __init__(
        self,
        loaded: ctypes.CDLL,
        table: NDArray[Any] | None,
        *,
        steps: NDArray[np.float32] | None = None,
        channels_last: bool,
    ) -> None:
        function = loaded.dali_feed_pixels
        function.argtypes, function.restype = _ARGUMENTS, None
        self._function = function
        self._table = None if table is None else np.ascontiguousarray(table)  # kept: the C is told its address
        self._size = 1 if self._table is None else self._table.itemsize
        self._address = None if self._table is None else self._table.ctypes.data
        self._steps = None if steps is None else np.ascontiguousarray(steps, np.float32)
        self._steps_address = None if self._steps is None else self._steps.ctypes.data
        self._last = channels_last
        if self._steps is not None and self._steps.shape != (7,):
            raise ValueError(f"Pixels: steps must be (7,); found {self._steps.shape}")
        if self._table is not None and (self._table.shape != (3, 256) or self._size not in (1, 2, 4)):
            msg = f"Pixels: table must be (3, 256) of 1, 2 or 4 bytes; found {self._table.shape} of {self._size}"
            raise ValueError(msg)

    def write(self, image: Any, out: Any, *, mirrored: bool = False, upside_down: bool = False) -> bool:
        """`image` (3 or 1, height, width) into `out`; False, and nothing done, where shapes or strides are others.

        Both are tensors in this machine's memory: uint8 of any strides, and values of the table's size.
        """
        if image.dim() != 3:
            return False
        channels, height, width = image.shape
        wanted = (height, width, 3) if self._last else (3, height, width)
        if out.shape != wanted or channels not in (1, 3) or not out.is_contiguous() or out.itemsize != self._size:
            return False
        channel, row, pixel = image.stride()
        first = image.data_ptr()
        if channels == 1:
            channel = 0
        if mirrored:
            first, pixel = first + (width - 1) * pixel, -pixel
        if upside_down:
            first, row = first + (height - 1) * row, -row
        how = _CHANNELS_LAST if self._last else 0
        if height * width * 3 * self._size >= FAR:
            how |= _PAST_CACHES
        to, table, steps = out.data_ptr(), self._address, self._steps_address
        self._function(first, row, pixel, channel, height, width, to, table, steps, self._size, how)
        return True


def steps_of(scale: float, mean: tuple[float, ...], std: tuple[float, ...], table: NDArray[Any]) -> Any:
    """`steps` of `PixelWriter`, where (level * scale - mean) / std in float32 has the bits of the table; else None."""
    steps = np.array([scale, *np.broadcast_to(mean, 3), *np.broadcast_to(std, 3)], np.float32)
    with np.errstate(all="ignore"):
        floats = (np.arange(256, dtype=np.float32) * steps[0] - steps[1:4, None]) / steps[4:, None]
    return steps if np.array_equal(floats.view(np.int32), table) else None


def writer(
    table: NDArray[Any] | None, *, steps: NDArray[np.float32] | None = None, channels_last: bool
) -> PixelWriter | None:
    """What writes by that table; None where there is no library."""
    loaded = library()
    return None if loaded is None else PixelWriter(loaded, table, steps=steps, channels_last=channels_last)
