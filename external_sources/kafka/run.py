"""A run of offsets that is being read, and the two ways to read it: by message and by column.

Both give the same rows and the same errors. By column is the fast one; see `by_column.py` for when it can be had.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from confluent_kafka import KafkaError

from dali_feed.external_sources.kafka.filled import Filled
from dali_feed.external_sources.kafka.records import Takes

__all__ = ["Event", "Run", "Way"]


@dataclass(slots=True)
class Run:
    """The offsets want..stop-1 of a partition are still to come; a record's row is its offset + shift.

    rows      where they go
    filled    what C fills of these rows; None where they are read by message
    received  bytes of the records that came
    """

    partition: int
    want: int
    stop: int
    shift: int
    rows: Takes
    filled: Filled | None = None
    received: int = 0


class Event(NamedTuple):
    """What is no record: an error, or the end of a partition, and where."""

    error: KafkaError
    partition: int | None
    offset: int | None


class Way(Protocol):
    """How records come of a consumer that is assigned to one partition at a time."""

    def assign(self, partition: int, offset: int) -> None:
        """From now on records come from there; what came before is dropped."""
        ...

    def come(self, run: Run, most: int) -> bool:
        """Whether something is there, waiting for it for a slice of time. By column the rows that C fills are filled.

        `most` is how many records are best taken at once.
        """
        ...

    def look(self, run: Run) -> Event | None:
        """Deal with what is there and belongs to the run, up to an event, which stays there until `skip`."""
        ...

    def skip(self) -> None:
        """The event has been dealt with."""
        ...

    def drop(self) -> None:
        """What is there is not wanted."""
        ...

    def close(self) -> None:
        """Before the consumer is closed."""
        ...
