"""A stream's lookout: a thread that asks every few seconds how many partitions there are and where they end.

Silence in a stream may be peace or an outage, and only a question tells which. It has a connection of its own, for one
that waits for records answers nothing else; one whose answers stop is made anew when half of the timeout is over.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from typing import Any

from confluent_kafka import Consumer, KafkaException

from dali_feed.errors import ClosedError, SourceError, SourceNotFoundError, SourceUnreachableError
from dali_feed.external_sources.kafka.cluster import Cluster
from dali_feed.external_sources.kafka.errors import LOG, Trouble, gone
from dali_feed.external_sources.kafka.options import KafkaOptions, connect

__all__ = ["Look", "Watch"]

LOOK_SECONDS = 2.0
LEAST_SECONDS = 0.2  # between two, whatever is said
ASK_SECONDS = 2.0
GONE_SECONDS = 2.0  # a restarted broker may say 'unknown' for a moment
JOIN_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Look:
    """An answer.

    asked   when the question was begun, time.monotonic seconds
    count   partitions that the topic has
    ends    last stable offset of each of ours that has a leader
    headless  the others, with the time since when they have none, time.monotonic seconds
    """

    asked: float
    count: int
    ends: dict[int, int]
    headless: dict[int, float]


class Watch:
    """Looks at the partitions of a rank, from the first `begin` on.

    look     the last answer
    failed   what ends the reading: no rights, or the topic is gone
    trouble  what was said instead of an answer
    """

    def __init__(self, options: KafkaOptions, rank: int, world_size: int) -> None:
        self._options = replace(options, timeout=min(ASK_SECONDS, options.timeout))
        self._half = options.timeout / 2
        self._rank, self._world_size = rank, world_size
        self.look: Look | None = None
        self.failed: SourceError | None = None
        self.trouble = ""
        self._since: float | None = None  # the first question that was not answered since the last that was
        self._until = 0.0
        self._stop, self._now = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._client: Consumer | None = None

    def begin(self) -> None:
        """Start the thread, where that is not done."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="dali_feed-kafka-watch", daemon=True)
            self._thread.start()

    def ask(self) -> None:
        """Look now."""
        self._now.set()

    def unanswered(self) -> tuple[float, float]:
        """Since when nothing is answered, time.monotonic seconds, and for how many seconds that is known; (0, 0)."""
        since = self._since
        return (0.0, 0.0) if since is None else (since, self._until - since)

    def close(self) -> None:
        """End the thread; one that is at a question ends after it, within two seconds."""
        self._stop.set()
        self._now.set()
        if self._thread is not None:
            self._thread.join(JOIN_SECONDS)

    def clients(self) -> tuple[Any, ...]:
        """What must not be destroyed in a child."""
        return (self._client,)

    def _run(self) -> None:
        absent = renewed = 0.0
        try:
            while not self._stop.is_set():
                begun = time.monotonic()
                try:
                    self.look = self._asked(begun)
                except SourceUnreachableError as error:
                    self._unanswered(begun, str(error))
                    if self._until - max(begun if self._since is None else self._since, renewed) >= self._half:
                        renewed = self._until
                        self._hang_up()
                    continue
                except SourceNotFoundError as error:
                    absent = absent or begun
                    if time.monotonic() - absent > GONE_SECONDS:
                        self.failed = gone(self._options.topic, self._options.servers, str(error))
                        return
                    self._stop.wait(0.1)
                    continue
                absent, self._since, self.trouble = 0.0, None, ""
                self._stop.wait(LEAST_SECONDS)
                self._now.wait(LOOK_SECONDS - LEAST_SECONDS)
                self._now.clear()
        except ClosedError:
            return
        except SourceError as error:
            self.failed = error
        except Exception as error:  # noqa: BLE001  whatever ends the lookout, its reader must hear of it
            self.failed = SourceError(f"{self._options.topic}: {type(error).__name__}: {error}")
        finally:
            self._hang_up()

    def _asked(self, begun: float) -> Look:
        trouble = Trouble()
        if self._client is None:
            self._client = connect(self._options, trouble)
        try:
            asked = Cluster(self._options, self._client, trouble, self._stop, probe=False)
            found = asked.metadata().topics[self._options.topic].partitions
            mine = range(self._rank, len(found), self._world_size)
            led = [p for p in mine if found[p].leader >= 0]
            before = {} if self.look is None else self.look.headless
            headless = {p: before.get(p, begun) for p in mine if found[p].leader < 0}
            return Look(begun, len(found), dict(zip(led, asked.ends(led).tolist(), strict=True)), headless)
        except KafkaException as error:
            raise SourceUnreachableError(error.args[0].str()) from error

    def _unanswered(self, begun: float, said: str) -> None:
        self.trouble = said
        if self._since is None:
            self._since = begun
        self._until = time.monotonic()
        LOG.debug("%s: no answer: %s", self._options.topic, said)

    def _hang_up(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()
