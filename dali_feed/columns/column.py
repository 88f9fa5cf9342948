"""Kind: how a column is made from a member.

The law: what a value needs to be is known when its record is read, so a member that is missing or malformed makes a bad
record, and its slot goes to another. Nothing is copied before a batch is made, where the kind can help it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np

from dali_feed.errors import ConfigError
from dali_feed.records.pieces import Pieces

__all__ = ["Faults", "Follower", "Kind", "Moved", "check_member", "missing"]


Faults = dict[int, str]  # row -> why its record cannot be used


class Kind:
    """What a column takes and gives: a base for frozen dataclasses with a field `member`. Used by many threads at once.

    A user's own kind has `read`; it has `batch` if a batch is not what `read` kept, and `open` and `settled` if the
    first record can tell what the user did not.
    """

    member: str  # that it is made from, or several, "jpg;png", of which the first one counts

    @property
    def open(self) -> bool:
        """Whether something is left to the first record: then `settled` is called with its value."""
        return False

    def settled(self, first: Any) -> Self:
        """This kind, with what the first record tells; None: none of the first few has a value.

        ConfigError if it tells too little. It is called only if the kind is `open`.
        """
        return self

    def read(self, values: Any, faults: Faults) -> Any:
        """What is kept of a read's values until they stand in a batch, row for row: an array, a list, or `Pieces`.

        Called by the threads that read. `values` is a sequence: a value is a view of bytes, or what the source has;
        None means that there is none. Where it is a `dali_feed.records.pieces.Pieces`, all views can be asked about at
        once, and it can be kept as it is. Rows with a fault, now or before, may be given any value.
        """
        raise NotImplementedError

    def batch(self, values: Any) -> Any:
        """The column of a batch, from rows of what `read` kept, while the memory of its views is still there."""
        return values

    def of_lanes(self, values: Any, lanes: int) -> Any:
        """The same, from rows of so many lanes, equally many each, one lane after the other.

        For a kind that makes something of several records together: what it makes of one lane must not depend on the
        other lanes, because a rank has more or fewer lanes at another world size.
        """
        return self.batch(values)


def check_member(kind: str, member: object) -> None:
    """A member's name; ConfigError otherwise."""
    if not isinstance(member, str) or not member.strip(" ;."):
        msg = f"{kind}: member must be a name such as 'txt', or several such as 'jpg;png'; found {member!r}"
        raise ConfigError(msg)


def missing(values: Sequence[Any], faults: Faults) -> None:
    """Rows without a value are faults."""
    if isinstance(values, Pieces):
        rows = np.flatnonzero(values.missing).tolist()
    else:
        rows = [row for row, value in enumerate(values) if value is None]
    for row in rows:
        faults.setdefault(row, "the record has no such member")


# Kinds that follow the image they belong to: what is kept of a record, and what becomes of it in a slot.


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
