"""Kinds that are made late: of a record's bytes, by threads of the engine, when its batch is run."""

from __future__ import annotations

from typing import Any

from dali_feed.columns.kind import Kind

__all__ = ["Late"]


class Late(Kind):
    """A kind whose `read` keeps bytes, of which `made` makes a value. It follows no image, and is never `open`.

    A record that is in no batch, such as one that is read to stand in for others, costs no call.
    """

    @property
    def late(self) -> bool:
        """Whether anything is left to make."""
        return True

    def made(self, data: memoryview) -> Any:
        """The value, of bytes in memory of their own: it may be a view of them. Called by many threads at once.

        What it raises makes the record a bad one, but for errors that speak of no record (see `engines.late`).
        """
        raise NotImplementedError
