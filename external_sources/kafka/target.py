"""The topic that records go to: whether it is there, how many partitions it has, and the largest record it takes."""

from __future__ import annotations

from dataclasses import dataclass

from dali_feed.errors import SourceNotFoundError
from dali_feed.external_sources.kafka.identity import Asker
from dali_feed.external_sources.kafka.topics import Topics

__all__ = ["Target", "target_at"]


@dataclass(frozen=True, slots=True)
class Target:
    """A topic; `topic_id` is "" where brokers have none, `most` (bytes) None where it could not be had."""

    partitions: int
    topic_id: str
    most: int | None


def target_at(topics: Topics, topic: str) -> Target:
    """Ask for it. Raises what `Topics` does; SourceNotFoundError says how a topic is made."""
    with topics._at(topic) as at:
        try:
            found = at.cluster.metadata()
        except SourceNotFoundError as error:
            msg = f"{error}; `dali-feed topic create kafka://{at.options.servers}/{topic}` makes one"
            raise SourceNotFoundError(msg) from None
        answers = found.controller_id in found.brokers
        settings = at.settings()[0] if answers else {}
        most = settings.get("max.message.bytes", "")
        topic_id = (Asker(at.options).ask(topic) or "") if answers else ""
        return Target(len(found.topics[topic].partitions), topic_id, int(most) if most.isdecimal() else None)
