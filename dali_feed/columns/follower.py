"""Kinds that follow the image they belong to: what is kept of a record, and what becomes of it in a slot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dali_feed.columns.kind import Kind

__all__ = ["Follower", "Moved"]

Moved = Callable[[Any], Any]  # a tv_tensor, as its image's transforms move it


class Follower(Kind):
    """A kind whose values are finished by threads, slot by slot, with the draws of the image in the slot."""

    of: str  # the image column that it follows

    @property
    def boxes(self) -> bool:
        """Whether it is moved by arithmetic, not pixel by pixel."""
        return True

    def by_exif(self) -> Follower:
        """This kind where images are turned by EXIF: what is itself an image is turned by its own."""
        return self

    def followed(self, value: Any, size: tuple[int, int], moved: Moved) -> Any:
        """The value of one slot; `size` (height, width) is that of the image before any transform.

        A ValueError says why the record cannot be used. Torch is loaded where this is called.
        """
        raise NotImplementedError
