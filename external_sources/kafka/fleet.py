"""A fleet: workers that share a stream's partitions, dealt to them by the broker.

The law: at least once. The group's offsets are the fleet's only position; a worker commits what its loop has finished,
and goes on from what was committed. Who has which partition shows nowhere but in who has its records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dali_feed.errors import ConfigError, StateError

__all__ = ["Fleet", "fleet_of"]

PROTOCOLS = ("classic", "consumer")
MOST_SESSION = 3600.0  # librdkafka's
_HEARTBEATS = 10  # within a session, unless they would be rarer than one a second
_POLLS = 300.0  # seconds; librdkafka's own, raised where a drain takes longer
_MARGIN = 60.0  # seconds to commit in, after a drain
_OTHERS = ("partition.assignment.strategy", "group.protocol.type", "group.remote.assignor")
_POLL_OPTION = "max.poll.interval.ms"


@dataclass(frozen=True, slots=True)
class Fleet:
    """Workers that share a stream's partitions: each record goes to one of them, and after a crash perhaps to another
    too.

    A record counts as done when the loop asks for the next batch, or calls `loader.commit()`. It is committed by
    `loader.commit()`, and when its partition goes to another worker or the loader is closed. After a crash another
    worker continues from the last commit: the records after it come again, and none is lost.

    group     the consumer group's name
    protocol  "classic": a member of the group assigns the partitions (cooperative-sticky, so that only partitions that
              move stop); works with any broker. "consumer": the broker assigns them (KIP-848); Kafka 4.0 and newer
    instance  this worker's own name, which it has again after a restart (static membership): its partitions wait for
              it, up to `session`. Two workers must not have the same name. With several ranks each adds its number
    session   seconds without a heartbeat after which a worker's partitions go to other workers; None: 45, and with
              "consumer" the broker's value, which cannot be set here
    drain     seconds that the loop has to finish its records of partitions that move to another worker. What it has not
              finished by then comes again at that worker

    Raises:
        ConfigError: a value that is not allowed.
    """

    group: str
    protocol: Literal["classic", "consumer"] = "classic"
    instance: str | None = None
    session: float | None = None
    drain: float = 30.0

    def __post_init__(self) -> None:
        for name, text in (("group", self.group), ("instance", self.instance)):
            if (name == "group" or text is not None) and (not isinstance(text, str) or not text):
                msg = f"Fleet({name}=): a name is needed; found {text!r}"
                raise ConfigError(msg)
        if self.protocol not in PROTOCOLS:
            msg = f'Fleet(protocol=): must be "classic" or "consumer"; found {self.protocol!r}'
            raise ConfigError(msg)
        if self.session is not None:
            if self.protocol == "consumer":
                msg = (
                    f'Fleet(session=): with protocol="consumer" the broker sets it; found {self.session!r}; set '
                    "consumer.session.timeout.ms of the group there, and leave session= out"
                )
                raise ConfigError(msg)
            if not 0 < self.session <= MOST_SESSION:
                msg = (
                    f"Fleet(session=): must be seconds, above 0 and at most {MOST_SESSION:.0f}; found {self.session!r}"
                )
                raise ConfigError(msg)
        if not 0 <= self.drain <= MOST_SESSION:
            msg = f"Fleet(drain=): must be seconds, 0 to {MOST_SESSION:.0f}; found {self.drain!r}"
            raise ConfigError(msg)

    def settings(self, rank: int = 0, world_size: int = 1) -> dict[str, Any]:
        """The options of librdkafka that make a member."""
        found: dict[str, Any] = {"group.id": self.group, "group.protocol": self.protocol}
        if self.instance is not None:
            found["group.instance.id"] = self.instance if world_size == 1 else f"{self.instance}-{rank}"
        if self.protocol == "classic":
            found["partition.assignment.strategy"] = "cooperative-sticky"
            if self.session is not None:
                found["session.timeout.ms"] = round(1000 * self.session)
        return found

    def tuning(self) -> dict[str, Any]:
        """Options of librdkafka that a user may set in `config`."""
        # A partition that came later is seen when the member that deals asks for the topic's again: 5 minutes.
        found: dict[str, Any] = {"topic.metadata.refresh.interval.ms": 10_000}
        polls = max(_POLLS, self.drain + _MARGIN, self.session or 0.0)
        found[_POLL_OPTION] = round(1000 * polls)
        if self.protocol == "classic":
            found["heartbeat.interval.ms"] = round(min(1000.0, 1000 * (self.session or _POLLS) / _HEARTBEATS))
        return found

    def mark(self, topic: str) -> dict[str, Any]:
        """What a state holds of a fleet's stream: the group that has the position, and no position."""
        return {"topic": topic, "fleet": self.group}

    def check_mark(self, topic: str, told: Mapping[str, Any]) -> None:
        """Raise StateError if a mark is not this fleet's: only the group may have a position."""
        if (found := dict(told)) != self.mark(topic):
            msg = (
                f"{topic}: a worker of the fleet {self.group!r} continues at the offsets of the group, so its "
                f"state must be the fleet's; found {found}; leave the state out, or read without fleet="
            )
            raise StateError(msg)

    def check(self, topic: str, config: Mapping[str, Any], group: str | None, start: Any) -> None:
        """Raise ConfigError where an option of `config`, or another argument of the stream, contradicts this."""
        if group is not None:
            msg = (
                f"{topic}: fleet= names the group to join, and group= names a group that is not joined; give only "
                f"one of the two: leave out {group!r}"
            )
            raise ConfigError(msg)
        if isinstance(start, Mapping | list | tuple):
            msg = f"{topic}: start= of a fleet cannot be a state, because the group has the position; leave it out"
            raise ConfigError(msg)
        ours = {*_OTHERS, "session.timeout.ms"}
        if taken := sorted(ours.intersection(config)):
            msg = (
                f"{topic}: config= must not set how a fleet assigns its partitions; found {', '.join(taken)}; "
                "Fleet(protocol=, session=) says it"
            )
            raise ConfigError(msg)
        polls = str(config.get(_POLL_OPTION, ""))
        if polls.isdecimal() and int(polls) <= 1000 * self.drain:
            msg = (
                f"{topic}: {_POLL_OPTION} in config= must be above Fleet(drain=), or the group removes the "
                f"worker while its loop finishes; found {polls} ms and {self.drain:g} s"
            )
            raise ConfigError(msg)


def fleet_of(told: Fleet | str) -> Fleet:
    """A fleet, or one of the group of that name. Raises ConfigError for anything else."""
    if isinstance(told, Fleet):
        return told
    if isinstance(told, str):
        return Fleet(told)
    msg = f"fleet: must be a consumer group's name or a Fleet; found {told!r}"
    raise ConfigError(msg)
