"""An encoded image, decoded and transformed by the engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dali_feed.columns.kind import Kind, check_member

__all__ = ["Image"]


@dataclass(frozen=True)
class Image(Kind):
    """An encoded image: the payload, which the screen and the engine take. Gives (n, 3, height, width) on the device.

    member     the member that it is made from; of "a;b" the foremost that a record has
    transform  as `DataLoader(transform=...)` takes it: torchvision's, a DALI graph function, or None
    """

    member: str
    transform: Any = None

    def __post_init__(self) -> None:
        check_member("Image", self.member)
