"""Kinds that are made late: of a record's bytes, by threads of the engine, when its batch is run."""

from __future__ import annotations

from typing import Any

from dali_feed.columns.kind import Kind
from dali_feed.errors import BadRecordError, DaliFeedError, FormatError

__all__ = ["Late", "attempt"]


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

        What it raises makes the record a bad one, but for errors that speak of no record (see `attempt`).
        """
        raise NotImplementedError


def attempt(kind: Late, data: memoryview) -> tuple[Any, str]:
    """What is made of a record's bytes; or None, and why its record is a bad one.

    Errors of ours that speak of no record go on, and so does what is no Exception, such as KeyboardInterrupt.
    """
    try:
        return kind.made(data), ""
    except Exception as error:
        if isinstance(error, DaliFeedError) and not isinstance(error, BadRecordError | FormatError):
            raise
        return None, f"{type(error).__name__}: {error}"
