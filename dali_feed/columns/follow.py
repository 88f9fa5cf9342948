"""What is moved as its image is: masks, which are encoded images of classes, boxes and points."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from dali_feed.checks import number, whole
from dali_feed.columns.array import end_to_end
from dali_feed.columns.column import Column, Faults
from dali_feed.columns.image import EncodedColumn
from dali_feed.errors import ConfigError, FormatError
from dali_feed.formats.json_text import loads
from dali_feed.screen.header import MIRRORED_X, MIRRORED_Y, SIDEWAYS
from dali_feed.screen.pillow import opened
from dali_feed.screen.screen import header_of

_MODES = ("1", "L", "P", "I;16", "I")  # of Pillow: one number a pixel; a palette's indices, not its colours


Moved = Callable[[Any], Any]  # a tv_tensor, as its image's transforms move it


class Follower(Column):
    """A column whose values are finished by threads, slot by slot, with the draws of the image in the slot."""

    of: str  # the image column that it follows

    @property
    def boxes(self) -> bool:
        """Whether it is moved by arithmetic, not pixel by pixel."""
        return True

    has_boxes: ClassVar[bool] = False  # whether there is `as_boxes`

    def as_boxes(self, value: Any, size: tuple[int, int]) -> Any:
        """A value as torchvision's BoundingBoxes of an image (height, width)."""
        raise NotImplementedError

    def followed(self, value: Any, size: tuple[int, int], moved: Moved) -> Any:
        """The value of one slot; `size` (height, width) is that of the image before any transform.

        A ValueError says why the record cannot be used. Torch is loaded where this is called.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Mask(EncodedColumn, Follower):
    """An encoded image of one number a pixel: gray, or a palette's indices. Gives (n, height, width) on the device.

    member   the member that it is made from; for "a;b" the first of these that a record has
    of       the image column that it belongs to, whose size it must have and with which it is moved; nearest pixels
    dtype    of NumPy's: uint8, int16, int32, int64
    default  the bytes of a mask that stands for a record without one
    """

    member: str
    of: str = "image"
    dtype: str = "uint8"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dtype not in ("uint8", "int16", "int32", "int64"):
            raise ConfigError(f"{self.title}: dtype must be uint8, int16, int32 or int64; found {self.dtype!r}")

    @property
    def boxes(self) -> bool:
        """It is moved pixel by pixel."""
        return False

    def read(self, values: Any, faults: Faults) -> list[Any]:
        """Views as they are, screened: nothing unscreened reaches a decoder."""
        views, _ = self.screened(values, faults)
        return views

    def followed(self, value: Any, size: tuple[int, int], moved: Moved) -> Any:
        """Nearest pixels."""
        from torchvision.tv_tensors import Mask as Classes

        pixels = self._pixels(value)
        if pixels.shape != size:
            wide, high = size[1], size[0]
            msg = f"a mask must have the size of its image, {wide}x{high}; found {pixels.shape[1]}x{pixels.shape[0]}"
            raise ValueError(msg)
        if not np.can_cast(pixels.dtype, self.dtype):
            ends, least, most = np.iinfo(self.dtype), pixels.min(), pixels.max()
            if least < ends.min or most > ends.max:
                odd = least if least < ends.min else most
                raise ValueError(f"the classes of a mask must fit into {self.dtype}; found {odd}")
        return moved(Classes(pixels.astype(self.dtype)[None])).numpy()[0]

    def batch(self, values: list[Any]) -> NDArray[Any]:
        """One array."""
        return np.stack(values)

    def _pixels(self, payload: Any) -> NDArray[Any]:
        """Beside an image that is turned by its EXIF, a mask is turned by its own."""
        pixels = _decoded(payload)
        if not self._decode.exif:
            return pixels
        way = header_of(payload).orientation
        pixels = pixels[:: -1 if way in MIRRORED_Y else 1, :: -1 if way in MIRRORED_X else 1]
        return pixels.T if way in SIDEWAYS else pixels


def _decoded(payload: Any) -> NDArray[Any]:
    """Numbers (height, width). ValueError for an image of colours, and for what Pillow cannot decode."""
    try:
        with opened(payload) as image:
            if image.mode not in _MODES:
                raise ValueError(f"a mask must have one number for each pixel; found an image of mode {image.mode}")
            return np.array(image)
    except (OSError, SyntaxError, EOFError) as error:
        raise ValueError(f"a mask cannot be decoded: {error}") from error


# Boxes and keypoints: rows of numbers that are moved as their image is, with torchvision's meaning for tv_tensors.


class _Rows(Follower):
    """Rows of at least `width` numbers: JSON text [[...], ...], or what a source has as an array or as lists."""

    width: ClassVar[int]
    more: int
    most: int | None

    def __post_init__(self) -> None:
        super().__post_init__()
        whole(f"{self.title}: more", self.more, 0)
        if self.most is not None:
            whole(f"{self.title}: most, where it is not None,", self.most, 1)

    def read(self, values: Any, faults: Faults) -> list[Any]:
        """float32 (k, width + more) of each record."""
        out: list[Any] = [None] * len(values)
        with np.errstate(over="ignore"):  # what float32 cannot hold is infinite there, and refused for that
            for row, value in enumerate(values):
                try:
                    out[row] = self._rows(value)
                except (FormatError, ValueError, TypeError, OverflowError) as error:
                    faults[row] = f"rows of {self.width + self.more} numbers are needed; {error}"
        return out

    def _rows(self, value: Any) -> NDArray[np.float32]:
        if isinstance(value, memoryview | bytes | str):
            value = loads(value)
        columns = self.width + self.more
        rows = np.asarray(value, np.float32) if len(value) else np.zeros((0, columns), np.float32)
        if rows.ndim != 2 or rows.shape[1] != columns:
            raise ValueError(f"found an array of shape {rows.shape}")
        if not np.isfinite(rows).all():
            raise ValueError("found a number that is infinite or NaN")
        if self.most is not None and len(rows) > self.most:
            raise ValueError(f"at most {self.most} rows (most=) are allowed; found {len(rows)}")
        return rows

    def batch(self, values: list[Any]) -> Any:
        """A list, or one array with a count."""
        if self.most is None:
            return values
        return end_to_end(values, np.dtype(np.float32), (self.width + self.more,)).padded(self.most)


@dataclass(frozen=True)
class Boxes(_Rows):
    """k rows of four numbers. Gives a list of n arrays float32 (k, 4 + more), or a `Counted` where `most` is given.

    member    the member that it is made from; for "a;b" the first of these that a record has
    of        the image column with which they are moved
    format    "xyxy", "xywh" or "cxcywh" in pixels of the image before any transform (turned, where the loader turns
              by EXIF); what comes out is of the same format
    more      numbers after the four, such as a class, which stay with their box
    most      at most so many a record: rows come in one array (n, most, 4 + more), with a count
    min_size  as torchvision's SanitizeBoundingBoxes: after the transforms, boxes with an edge below it, or that leave
              the image, are dropped; None keeps all
    default   the rows of a record without any, such as []
    """

    member: str
    of: str = "image"
    format: Literal["xyxy", "xywh", "cxcywh"] = "xyxy"
    more: int = 0
    most: int | None = None
    min_size: float | None = None

    width: ClassVar[int] = 4
    has_boxes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.format not in ("xyxy", "xywh", "cxcywh"):
            raise ConfigError(f'{self.title}: format must be "xyxy", "xywh" or "cxcywh"; found {self.format!r}')
        if self.min_size is not None:
            rule = "a number above 0, or None"
            number(f"{self.title}: min_size", self.min_size, rule, lambda value: 0 < value < math.inf)

    def as_boxes(self, value: Any, size: tuple[int, int]) -> Any:
        """Of its four numbers alone."""
        import torch
        from torchvision.tv_tensors import BoundingBoxes

        return BoundingBoxes(torch.from_numpy(value[:, :4].copy()), format=self.format.upper(), canvas_size=size)

    def followed(self, value: Any, size: tuple[int, int], moved: Moved) -> Any:
        """By torchvision's functions for its tv_tensors."""
        from torchvision.transforms.v2 import functional

        boxes = moved(self.as_boxes(value, size))
        rows = np.concatenate([boxes.numpy(), value[:, 4:]], axis=1)
        if self.min_size is None:
            return rows
        corners = functional.convert_bounding_box_format(boxes, new_format="XYXY").numpy()
        high, wide = boxes.canvas_size
        edges = corners[:, 2:] - corners[:, :2]
        kept = (edges >= self.min_size).all(axis=1) & (corners >= 0).all(axis=1)
        return rows[kept & (corners[:, [0, 2]] <= wide).all(axis=1) & (corners[:, [1, 3]] <= high).all(axis=1)]


@dataclass(frozen=True)
class Keypoints(_Rows):
    """k rows of x and y. Gives a list of n arrays float32 (k, 2 + more), or a `Counted` where `most` is given.

    member   the member that it is made from; for "a;b" the first of these that a record has
    of       the image column with which they are moved
    more     numbers after the two, such as visibility, which stay with their point
    most     at most so many a record: rows come in one array (n, most, 2 + more), with a count
    default  the rows of a record without any, such as []
    """

    member: str
    of: str = "image"
    more: int = 0
    most: int | None = None

    width: ClassVar[int] = 2

    def followed(self, value: Any, size: tuple[int, int], moved: Moved) -> Any:
        """By torchvision's functions for its tv_tensors."""
        import torch
        from torchvision import tv_tensors

        if not hasattr(tv_tensors, "KeyPoints"):
            msg = "Keypoints: torchvision 0.23 or newer is needed, as older ones cannot move points; update torchvision"
            raise ConfigError(msg)
        points = moved(tv_tensors.KeyPoints(torch.from_numpy(value[:, :2].copy()), canvas_size=size))
        return np.concatenate([points.numpy(), value[:, 2:]], axis=1)
