"""An encoded image, decoded and transformed by the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dali_feed.columns.column import Faults, Kind, check_member, missing
from dali_feed.errors import ConfigError
from dali_feed.options import Decode
from dali_feed.screen.screen import Screened, screen, turned

__all__ = ["Encoded", "FurtherImage", "Image", "drawn_as", "screened_views"]


@dataclass(frozen=True)
class Image(Kind):
    """An encoded image, which the screen and the engine take. Gives (n, 3, height, width) on the device.

    member     the member that it is made from; for "a;b" the first of these that a record has
    transform  as `DataLoader(transform=...)` takes it: torchvision's, a DALI graph function, or None; if there are
               several images, torchvision's or None
    draws      another image column, whose random numbers are taken: equal transforms then move images of one size
               equally. None: its own, which depend on its name; the first image column's are those of an image alone
    """

    member: str
    transform: Any = None
    draws: str | None = None

    def __post_init__(self) -> None:
        check_member("Image", self.member)


# Image columns behind the first: they are no payload, so they are screened where they are read.


class Encoded(NamedTuple):
    """A screened image, as a decoder gets it; its height and width, and where images are turned its orientation."""

    payload: memoryview
    size: tuple[int, ...]


@dataclass(frozen=True)
class FurtherImage(Kind):
    """What `Image` keeps of a record where another image is its payload: an `Encoded`."""

    member: str
    decode: Decode

    def read(self, values: Sequence[Any], faults: Faults) -> list[Encoded | None]:
        """Views with their sizes: nothing unscreened reaches a decoder."""
        there, views, found = screened_views(values, faults, self.decode)
        if self.decode.exif:
            found = turned(found, views)
        out: list[Encoded | None] = [None] * len(values)
        for k, (row, size) in enumerate(zip(there, found.sizes.tolist(), strict=True)):
            if k not in found.reasons:
                out[row] = Encoded(found.plain.get(k, views[k]), tuple(size))
        return out


def screened_views(
    values: Sequence[Any], faults: Faults, decode: Decode = Decode()
) -> tuple[list[int], list[memoryview], Screened]:
    """Rows with bytes, these, and what the screen found. What is missing, no bytes, or refused there is a fault."""
    missing(values, faults)
    for row, value in enumerate(values):
        if row not in faults and not isinstance(value, memoryview | bytes | bytearray):
            faults[row] = f"an encoded image must be bytes; found {type(value).__name__}"
    there = [row for row in range(len(values)) if row not in faults]
    views = [memoryview(values[row]) for row in there]
    found = screen(views, decode.max_pixels, decode.max_work)
    for k, reason in found.reasons.items():
        faults[there[k]] = reason
    return there, views, found


def drawn_as(images: Mapping[str, Image]) -> dict[str, str]:
    """For each image column the one whose random numbers it takes, itself unless told. ConfigError for none, a circle.

    Where one takes those of a column that takes another's, it takes the other's.
    """
    found = {}
    for name in images:
        last, at, seen = name, images[name].draws, {name}
        while at is not None:
            if at not in images or at in seen:
                others = ", ".join(repr(other) for other in images if other != last) or "none"
                circle = ", which takes its own from this one" if at in seen - {last} else ""
                rule = f"draws= of {last!r} must name the image column whose random numbers it takes, one of {others}"
                msg = f"columns: {rule}; found {at!r}{circle}. Correct draws="
                raise ConfigError(msg)
            last, at = at, images[at].draws
            seen.add(last)
        found[name] = last
    return found
