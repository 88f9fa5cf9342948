"""An encoded image, decoded and transformed by the engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dali_feed.columns.kind import Kind, check_member

__all__ = ["Image"]


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
