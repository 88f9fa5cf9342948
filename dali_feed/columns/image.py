"""An encoded image, decoded and transformed by the engine.

The law: nothing unscreened reaches a decoder. An image is screened where it is read, by the reader's thread, with the
bounds that the loader was given; what the screen refuses keeps its bytes for a dead letter, and makes its record bad.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Self, overload

import numpy as np
from numpy.typing import NDArray

from dali_feed.columns.column import Column, Faults
from dali_feed.errors import ConfigError
from dali_feed.options import Decode
from dali_feed.records.extents import Int64s
from dali_feed.records.pieces import OwnValues, Pieces
from dali_feed.records.source import Stage
from dali_feed.screen.screen import Screened, screen, turned


class Encoded(NamedTuple):
    """A screened image, as a decoder gets it; its height and width, and where images are turned its orientation."""

    payload: memoryview
    size: tuple[int, ...]


class Images(OwnValues):
    """What is kept of images until they are decoded: row by row `Encoded`.

    payloads  views of the images as they were read; None in rows that have none
    sizes     int32 (n, 2): height and width as decoded, 0 where a decoder must not see the image; where images are
              turned (n, 3): height and width once turned, and the orientation 1..8
    plain     row -> what a decoder must be given in place of the payload
    """

    __slots__ = ("payloads", "plain", "sizes")

    def __init__(
        self, payloads: list[memoryview | None], sizes: NDArray[np.int32], plain: dict[int, memoryview]
    ) -> None:
        self.payloads, self.sizes, self.plain = payloads, sizes, plain

    @classmethod
    def joined(cls, parts: Sequence[Images]) -> Images:
        """Parts end to end."""
        payloads, plain = list[memoryview | None](), dict[int, memoryview]()
        for part in parts:
            plain |= {len(payloads) + row: view for row, view in part.plain.items()}
            payloads += part.payloads
        return cls(payloads, np.concatenate([part.sizes for part in parts]), plain)

    def __len__(self) -> int:
        return len(self.payloads)

    def __iter__(self) -> Iterator[Encoded]:
        return map(Encoded, self.decodable(), map(tuple, self.sizes.tolist()))

    @overload
    def __getitem__(self, rows: int) -> Encoded: ...

    @overload
    def __getitem__(self, rows: slice | NDArray[Any]) -> Images: ...

    def __getitem__(self, rows: int | slice | NDArray[Any]) -> Encoded | Images:
        if not isinstance(rows, slice | np.ndarray):
            payload: Any = self.plain.get(rows, self.payloads[rows])
            return Encoded(payload, tuple(self.sizes[rows].tolist()))
        if isinstance(rows, slice):
            if not self.plain:
                return Images(self.payloads[rows], self.sizes[rows], {})
            rows = np.arange(*rows.indices(len(self)))
        numbers = rows.tolist()
        plain = {k: self.plain[row] for k, row in enumerate(numbers) if row in self.plain} if self.plain else {}
        return Images([self.payloads[row] for row in numbers], self.sizes[rows], plain)

    def decodable(self) -> list[Any]:
        """The bytes of each row as a decoder gets them, which must have passed the screen."""
        if not self.plain:
            return self.payloads
        return [self.plain.get(row, payload) for row, payload in enumerate(self.payloads)]

    @property
    def nbytes(self) -> int:
        """Bytes of the payloads."""
        return sum(map(len, filter(None, self.payloads)))

    def room(self, rows: int) -> Images:
        """So many rows that have nothing yet."""
        return Images([None] * rows, np.zeros((rows, self.sizes.shape[1]), np.int32), {})

    def __setitem__(self, rows: slice | int | Int64s, values: Any) -> None:
        """Those rows become those of other images, or one the row of an `Encoded`."""
        if isinstance(values, Encoded):
            values = Images([values.payload], np.array([values.size], np.int32), {})
            rows = slice(rows, rows + 1) if isinstance(rows, int) else rows
        numbers: Any = range(len(self))[rows] if isinstance(rows, slice) else np.atleast_1d(rows).tolist()
        if isinstance(rows, slice):
            self.payloads[rows] = values.payloads
        else:
            for row, payload in zip(numbers, values.payloads, strict=True):
                self.payloads[row] = payload
        self.sizes[rows] = values.sizes
        if self.plain:
            self.plain = {row: view for row, view in self.plain.items() if row not in set(numbers)}
        self.plain |= {numbers[k]: view for k, view in values.plain.items()}

    def copy(self) -> Images:
        """The same rows, whose places can be taken by others."""
        return Images(list(self.payloads), self.sizes.copy(), dict(self.plain))


@dataclass(frozen=True)
class EncodedColumn(Column):
    """A column of encoded images: they are screened as they are read, with the loader's bounds."""

    stage: ClassVar[Stage] = "screen"
    _decode: Decode = field(default=Decode(), init=False, repr=False, compare=False)

    def decoding(self, decode: Decode) -> Self:
        """With the loader's bounds."""
        bounded = copy.copy(self)
        object.__setattr__(bounded, "_decode", decode)
        return bounded

    def screened(self, values: Any, faults: Faults) -> tuple[list[memoryview | None], Screened]:
        """Views of bytes, and what the screen says of them: what is no bytes, or refused there, is a fault."""
        views: list[Any] = values.views() if isinstance(values, Pieces) else list(values)
        if not set(map(type, views)) <= {memoryview}:
            for row, value in enumerate(views):
                if isinstance(value, bytes | bytearray):
                    views[row] = memoryview(value)
                elif not isinstance(value, memoryview):
                    cure = "; where it is base64, give the source format=Json(base64=(...,))" * isinstance(value, str)
                    faults[row] = f"an encoded image must be bytes; found {type(value).__name__}{cure}"
                    views[row] = None
        verdict = screen(views, self._decode.max_pixels, self._decode.max_work)
        faults.update(verdict.reasons)
        return views, verdict


@dataclass(frozen=True)
class Image(EncodedColumn):
    """An encoded image, which the screen and the engine take. Gives (n, 3, height, width) on the device.

    member     the member that it is made from; for "a;b" the first of these that a record has
    transform  as `DataLoader(transform=...)` takes it: torchvision's, a DALI graph function, or None; if there are
               several images, torchvision's or None
    draws      another image column, whose random numbers are taken: equal transforms then move images of one size
               equally. None: its own, which depend on its name; the first image column's are those of an image alone
    default    the bytes of an image that stands for a record without one
    """

    member: str
    transform: Any = None
    draws: str | None = None

    def read(self, values: Any, faults: Faults) -> Images:
        """Views with their sizes; what is no bytes, or refused by the screen, is a fault."""
        views, verdict = self.screened(values, faults)
        if self._decode.exif:
            verdict = turned(verdict, views)
        return Images(views, verdict.sizes, verdict.plain)


def drawn_as(images: Mapping[str, Image]) -> dict[str, str]:
    """For each image column the one whose random numbers it takes, itself unless told. ConfigError for none, a circle.

    Where one takes those of a column that takes another's, it takes the other's.
    """
    drawn = {}
    for name in images:
        last, at, seen = name, images[name].draws, {name}
        while at is not None:
            if at not in images or at in seen:
                others = ", ".join(repr(other) for other in images if other != last) or "none"
                circle = ", which takes its own from this one" if at in seen - {last} else ""
                rule = f"draws= of {last!r} must name the image column whose random numbers it takes, one of {others}"
                raise ConfigError(f"columns: {rule}; found {at!r}{circle}. Correct draws=")
            last, at = at, images[at].draws
            seen.add(last)
        drawn[name] = last
    return drawn
