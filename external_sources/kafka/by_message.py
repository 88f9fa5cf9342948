"""Records as confluent_kafka gives them: a `Message` each. For every kind of rows and every client."""

from __future__ import annotations

from confluent_kafka import Consumer, Message, TopicPartition

from dali_feed.external_sources.kafka.options import SLICE_SECONDS
from dali_feed.external_sources.kafka.run import Event, Run

__all__ = ["ByMessage"]


class ByMessage:
    """See `Way`."""

    def __init__(self, consumer: Consumer, topic: str) -> None:
        self._consumer, self._topic = consumer, topic
        self._left: list[Message] = []
        self._at = 0  # the first of them that nobody has had

    def assign(self, partition: int, offset: int) -> None:
        """See `Way`."""
        self.drop()
        self._consumer.assign([TopicPartition(self._topic, partition, offset)])

    def come(self, run: Run, most: int) -> bool:
        """What is there already; where nothing is, what comes next within a slice of time."""
        del run
        if self._at < len(self._left):
            return True
        batch = self._consumer.consume(most, 0)
        if not batch and (message := self._consumer.poll(SLICE_SECONDS)) is not None:
            batch = [message]
        self._left, self._at = batch, 0
        return bool(batch)

    def look(self, run: Run) -> Event | None:
        """See `Way`."""
        left, take = self._left, run.rows.take
        if run.filled is not None:  # meant for C, whose client could not be had
            run.filled.leave_out(slice(0))
        partition, want, stop, shift, received = run.partition, run.want, run.stop, run.shift, 0
        event = None
        for n in range(self._at, len(left)):
            message = left[n]
            if (error := message.error()) is not None:
                event = Event(error, message.partition(), message.offset())
                break
            offset = message.offset()
            if offset is not None and offset >= want and message.partition() == partition:  # else an older assignment's
                if offset >= stop:
                    want = stop
                    break
                received += len(message)
                take(offset + shift, message)
                want = offset + 1
                if want == stop:
                    n += 1  # noqa: PLW2901  this one is done
                    break
        else:
            n = len(left)
        self._at, run.want = n, want
        run.received += received
        return event

    def skip(self) -> None:
        """See `Way`."""
        self._at += 1

    def drop(self) -> None:
        """See `Way`."""
        self._left, self._at = [], 0

    def close(self) -> None:
        """See `Way`."""
        self.drop()
