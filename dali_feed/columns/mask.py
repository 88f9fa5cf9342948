"""Masks: an encoded image of classes, of its image's size, moved as its image is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.columns.follower import Follower, Moved
from dali_feed.columns.further import screened_views
from dali_feed.columns.kind import Faults, check_member
from dali_feed.errors import ConfigError
from dali_feed.screen.header import MIRRORED_X, MIRRORED_Y, SIDEWAYS
from dali_feed.screen.pillow import opened
from dali_feed.screen.screen import header_of

__all__ = ["Mask"]

_MODES = ("1", "L", "P", "I;16", "I")  # of Pillow: one number a pixel; a palette's indices, not its colours


@dataclass(frozen=True)
class Mask(Follower):
    """An encoded image of one number a pixel: gray, or a palette's indices. Gives (n, height, width) on the device.

    member  the member that it is made from; for "a;b" the first of these that a record has
    of     the image column that it belongs to, whose size it must have and with which it is moved; nearest pixels
    dtype  of NumPy's: uint8, int16, int32, int64
    """

    member: str
    of: str = "image"
    dtype: str = "uint8"

    def __post_init__(self) -> None:
        check_member("Mask", self.member)
        if self.dtype not in ("uint8", "int16", "int32", "int64"):
            msg = f"Mask({self.member!r}): dtype must be uint8, int16, int32 or int64; found {self.dtype!r}"
            raise ConfigError(msg)

    @property
    def boxes(self) -> bool:
        """It is moved pixel by pixel."""
        return False

    def read(self, values: Sequence[Any], faults: Faults) -> Sequence[Any]:
        """Views as they are, screened: nothing unscreened reaches a decoder."""
        screened_views(values, faults)
        return values

    def followed(self, value: Any, size: tuple[int, int], moved: Moved) -> Any:
        """Nearest pixels."""
        from torchvision.tv_tensors import Mask as Classes

        pixels = self._pixels(value)
        if pixels.shape != size:
            wide, high = size[1], size[0]
            msg = f"a mask must have the size of its image, {wide}x{high}; found {pixels.shape[1]}x{pixels.shape[0]}"
            raise ValueError(msg)
        most = np.iinfo(self.dtype).max
        if pixels.size and pixels.max() > most:
            msg = f"the classes of a mask must fit into {self.dtype}; found {pixels.max()}"
            raise ValueError(msg)
        return moved(Classes(pixels.astype(self.dtype)[None])).numpy()[0]

    def batch(self, values: list[Any]) -> NDArray[Any]:
        """One array."""
        return np.stack(values)

    def by_exif(self) -> Mask:
        """The same, turned by its own EXIF."""
        return _Turned(self.member, self.of, self.dtype)

    def _pixels(self, payload: Any) -> NDArray[Any]:
        return _decoded(payload)


class _Turned(Mask):
    """A mask that is turned as its own EXIF says, beside an image that is."""

    def _pixels(self, payload: Any) -> NDArray[Any]:
        way, pixels = header_of(payload).orientation, _decoded(payload)
        pixels = pixels[:: -1 if way in MIRRORED_Y else 1, :: -1 if way in MIRRORED_X else 1]
        return pixels.T if way in SIDEWAYS else pixels


def _decoded(payload: Any) -> NDArray[Any]:
    """Numbers (height, width). ValueError for an image of colours, and for what Pillow cannot decode."""
    try:
        with opened(payload) as image:
            if image.mode not in _MODES:
                msg = f"a mask must have one number for each pixel; found an image of mode {image.mode}"
                raise ValueError(msg)
            return np.array(image)
    except (OSError, SyntaxError, EOFError) as error:
        msg = f"a mask cannot be decoded: {error}"
        raise ValueError(msg) from error
