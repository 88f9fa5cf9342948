"""TIFF through Pillow: the first image, turned by its orientation, with the pixels that `ImageFolder` gets.

They are those of `Image.open(file).convert("RGB")` but where that would not be the picture: Pillow cuts gray of 16 bits
off at 255, and takes numbers of 32 bits and floats for levels of 0..255 whatever they are. Of 12 and 16 bits the upper
eight are taken here, as of a PNG, and what leaves 0..255 is refused.
"""

from __future__ import annotations

import functools
import io
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.screen.header import UnusableError

if TYPE_CHECKING:
    from PIL.TiffImagePlugin import TiffImageFile

__all__ = ["tiff_pixels"]

_BITS, _COMPRESSION, _PHOTOMETRIC, _PLANAR, _EXTRA, _FORMAT = 258, 259, 262, 284, 338, 339
_RAW, _WHITE_IS_ZERO, _SIGNED, _PLANES = 1, 0, 2, 2


@functools.cache
def _still() -> type[TiffImageFile]:
    from PIL import Image
    from PIL.TiffImagePlugin import TiffImageFile

    class Still(TiffImageFile):
        """Its memory is made here, as Pillow would check its own bound on pixels first."""

        def load_prepare(self) -> None:
            if getattr(self, "_im", None) is None:
                size = getattr(self, "_tile_size", self.size)
                self.im = Image.core.new(self.mode, size)  # type: ignore[attr-defined]
            super().load_prepare()

    return Still


def tiff_pixels(payload: memoryview) -> NDArray[np.uint8]:
    """Pixels (height, width, 3) of a TIFF.

    Raises:
        UnusableError: its samples are no levels of brightness; Pillow raises other errors too.
    """
    try:
        image = _still()(io.BytesIO(payload))
    except SyntaxError as error:
        msg = f"decoder: Pillow cannot decode it: {error} ({_told(payload)})"
        raise UnusableError(msg) from error
    with image:
        tags: Any = image.tag_v2
        bits, white_is_zero = _first(tags, _BITS, 1), tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO
        if bits > 8 and tags.get(_PLANAR) == _PLANES and tags.get(_COMPRESSION, _RAW) == _RAW:
            what = f"TIFF with uncompressed planes of {bits} bits"
            msg = f"decoder: {what}, which Pillow reads as 8 bits; save it compressed"
            raise UnusableError(msg)
        signed = _first(tags, _FORMAT, 1) == _SIGNED
        image.load()
        if image.mode.startswith("I;16"):
            levels = (np.asarray(image) >> (bits - 8)).astype(np.uint8)
            return _rgb(~levels if white_is_zero else levels)
        if image.mode in ("I", "F"):
            _check_levels(np.asarray(image), bits)
        elif signed:
            _check_levels(np.asarray(image).view(np.int8), bits)
        return np.asarray(image.convert("RGB"))


def _first(tags: Any, tag: int, default: int) -> int:
    value = tags.get(tag, default)
    return int(value[0] if isinstance(value, tuple) else value)


def _rgb(levels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.broadcast_to(levels[..., None], (*levels.shape, 3))


def _check_levels(values: NDArray[Any], bits: int) -> None:
    """Check that numbers of 32 bits and floats are levels of brightness, 0..255."""
    low, high = values.min(), values.max()
    fraction = values.dtype.kind == "f" and 0 < high <= 1
    if not (low >= 0 and high <= 255) or fraction:  # also refuses NaN
        kind = "floats" if values.dtype.kind == "f" else "signed or wide integers"
        msg = (
            f"decoder: TIFF with {kind} of {bits} bits from {low:g} to {high:g}, where levels of 0..255 are needed;"
            " save it with 8 or 16 unsigned bits"
        )
        raise UnusableError(msg)


def _told(payload: memoryview) -> str:
    """What the file says of its samples, for the text of a reason."""
    from PIL.TiffImagePlugin import ImageFileDirectory_v2

    file = io.BytesIO(payload)
    tags: Any = ImageFileDirectory_v2(file.read(8))
    file.seek(tags.next)
    tags.load(file)
    names = {"photometric": _PHOTOMETRIC, "bits": _BITS, "extra samples": _EXTRA, "compression": _COMPRESSION}
    return ", ".join(f"{name} {tags[tag]}" for name, tag in names.items() if tag in tags)
