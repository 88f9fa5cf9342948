"""A topic's pin: what a snapshot holds, in plain JSON, and whether the cluster still has it.

The map of the offsets that hold a record is in the pin itself, and so in a state, and not in a file beside it: a run
may be resumed on another machine, and compaction may since have taken records, so that nobody could learn it again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dali_feed.errors import DataLostError, SourceChangedError, StateError
from dali_feed.external_sources.kafka.errors import remade
from dali_feed.records.present import Present, packed, unpacked
from dali_feed.records.source import Int64s, Snapshot

__all__ = ["Pin", "pin_of"]


@dataclass(frozen=True, slots=True)
class Pin:
    """What a snapshot is made of; ends and starts are int64 (partitions,)."""

    topic: str
    topic_id: str
    starts: Int64s
    ends: Int64s
    extent: int
    record_bytes: int
    present: Present | None
    absent: float

    def snapshot(self, servers: str) -> Snapshot:
        """The snapshot. Its fingerprint is of the offsets that it deals, and of which topic's they are."""
        topic, pin = self.topic, self.told()
        held: list[Any] = [topic, self.topic_id, pin["starts"], pin["ends"]]
        if self.present is not None:
            held.append(self.present.digest())
        return Snapshot(
            source=f"kafka topic {topic} at {servers}",
            names=tuple(f"{topic}[{p}]" for p in range(len(self.starts))),
            starts=self.starts,
            stops=self.ends,
            extent=self.extent,
            record_bytes=self.record_bytes,
            random_access=False,
            interleaved=True,
            fingerprint=hashlib.blake2b(json.dumps(held).encode(), digest_size=16).hexdigest(),
            pin=pin,
            present=self.present,
            absent=self.absent,
        )

    def told(self) -> dict[str, Any]:
        """The pin as plain JSON."""
        pin = {
            "topic": self.topic,
            "id": self.topic_id,
            "starts": self.starts.tolist(),
            "ends": self.ends.tolist(),
            "extent": self.extent,
            "record_bytes": self.record_bytes,
            "absent": self.absent,
        }
        return pin if self.present is None else pin | {"present": packed(self.present, self.starts)}

    def check(self, where: Callable[[int, int], str], lows: Int64s, highs: Int64s, topic_id: str) -> None:
        """Check that every record of it is still there; partitions that came later do not matter."""
        topic, n = self.topic, len(self.starts)
        if "" not in (self.topic_id, topic_id) and self.topic_id != topic_id:
            raise remade(topic, self.topic_id, topic_id)
        if len(lows) < n:
            msg = (
                f"{topic}: the snapshot has {n} partitions and the topic now {len(lows)}: it was deleted and made again"
            )
            raise SourceChangedError(msg)
        held = self.ends > self.starts
        lost = np.flatnonzero(held & (lows[:n] > self.starts))
        if len(lost):
            which = "; ".join(
                f"{where(p, int(self.starts[p]))}: offsets {self.starts[p]}.."
                f"{min(lows[p], self.ends[p]) - 1} are gone (the broker holds {lows[p]}..{highs[p] - 1})"
                for p in lost[:5].tolist()
            )
            msg = (
                f"{which}{f'; and {len(lost) - 5} more partitions' if len(lost) > 5 else ''}: the snapshot has "
                "them, but retention or deletion removed them; take a new snapshot, and give the topic a longer "
                "retention"
            )
            raise DataLostError(msg)
        cut = np.flatnonzero(held & (highs[:n] < self.ends))
        if len(cut):
            p = int(cut[0])
            msg = (
                f"{topic}[{p}]: the snapshot ends at offset {self.ends[p]} and the partition now at "
                f"{highs[p]}{f', and {len(cut) - 1} more are shorter' if len(cut) > 1 else ''}: the topic was "
                "truncated or made again; take a new snapshot"
            )
            raise SourceChangedError(msg)


def pin_of(topic: str, told: Mapping[str, Any]) -> Pin:
    """A pin read back from JSON. Raises StateError where it is not a pin of this topic."""
    try:
        starts = np.array([int(v) for v in told["starts"]], np.int64)
        ends = np.array([int(v) for v in told["ends"]], np.int64)
        of, topic_id = str(told["topic"]), str(told.get("id", ""))
        extent, record_bytes = int(told["extent"]), int(told["record_bytes"])
        absent = float(told.get("absent", 0.0))
        fits = len(starts) == len(ends) and extent >= 1 and not (ends < starts).any()
        present = unpacked(told["present"], starts, ends) if fits and "present" in told else None
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        msg = f"{topic}: a pin must be what a snapshot of a Kafka topic gave; {type(error).__name__}: {error}"
        raise StateError(msg) from error
    if not fits:
        msg = (
            f"{topic}: a pin must be what a snapshot of a Kafka topic gave; its starts, ends and extent do not fit "
            "together"
        )
        raise StateError(msg)
    if of != topic:
        msg = f"{topic}: the pin must be of the same topic; it is of {of}"
        raise StateError(msg)
    return Pin(topic, topic_id, starts, ends, extent, record_bytes, present, absent)
