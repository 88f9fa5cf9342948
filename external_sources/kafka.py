"""A Kafka topic as a bounded source.

The law of this file: a snapshot's starts and ends are captured once and never looked up again. What a later run
is given is the pin, and a pin whose records are gone is an error, not a smaller snapshot.
"""

from __future__ import annotations

import hashlib
import json
import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dali_feed.errors import ConfigError, DataLostError, SourceChangedError, SourceEmptyError, StateError
from dali_feed.external_sources.kafka_cluster import Cluster
from dali_feed.external_sources.kafka_commit import commit_offsets
from dali_feed.external_sources.kafka_errors import Trouble, remade
from dali_feed.external_sources.kafka_identity import Asker
from dali_feed.external_sources.kafka_messages import original
from dali_feed.external_sources.kafka_options import OURS, Identity, KafkaOptions, connect
from dali_feed.external_sources.kafka_reader import KafkaReader
from dali_feed.external_sources.kafka_records import LABEL, Codec
from dali_feed.letters import Original
from dali_feed.records import Extents, Int64s, Slabs, Snapshot

__all__ = ["KafkaTopic"]

EXTENT_BYTES = 32_000_000  # shuffled runs of this size read as fast as a partition in sequence
MAX_EXTENT = 65_536
SAMPLED_PARTITIONS = 4
SAMPLED_POSITIONS = 16


class KafkaTopic:
    """All records of a topic, from each partition's first kept offset to its end when the snapshot is taken.

    Args:
        topic: its name. It is never created by asking for it.
        servers: bootstrap addresses, "host:port,host:port" or a list of them.
        label: the header that holds the label, a decimal number in text; None: records have no label.
            The field is called `label` whatever the header's name, and is an int64 array in a block.
        codec: `codec(value: memoryview, key: bytes | None, headers: list[tuple[str, bytes]])` returns a mapping
            with `image` (a view into the value, or other bytes) and each name in `fields`. What it raises is a
            fault of that record. None: the value is the image.
        fields: names of the fields that the codec gives beside the image; ("label",) where None. `label` must be
            an int; other fields may be anything, and a loader stacks numbers and arrays of one shape.
        config: more options of librdkafka, such as `security.protocol`, `sasl.*`, `ssl.*`, `client.rack`.
        timeout: seconds without any progress, reconnects included, after which the broker counts as unreachable.
        group: the consumer group whose offsets `loader.commit()` sets, for lag tools; None: it does nothing. Take one
            that nobody subscribes with. It is never joined and never read: a checkpoint owns the position.

    Raises:
        ConfigError: an argument that cannot be, or an option in `config` that decides what is read.
    """

    def __init__(
        self,
        topic: str,
        servers: str | Sequence[str],
        *,
        label: str | None = LABEL,
        codec: Codec | None = None,
        fields: Sequence[str] | None = None,
        config: Mapping[str, Any] | None = None,
        timeout: float = 30.0,
        group: str | None = None,
    ) -> None:
        if not isinstance(topic, str) or not topic:
            msg = f"topic: a topic's name is needed; found {topic!r}"
            raise ConfigError(msg)
        address = servers if isinstance(servers, str) else ",".join(servers)
        if not address.strip():
            msg = f"{topic}: servers must be addresses as host:port; found {servers!r}"
            raise ConfigError(msg)
        if not timeout > 0:
            msg = f"{topic}: timeout must be above 0 seconds; found {timeout!r}"
            raise ConfigError(msg)
        if group is not None and (not isinstance(group, str) or not group):
            msg = f"{topic}: group must be a consumer group's name, or None; found {group!r}"
            raise ConfigError(msg)
        self._group, self._identity = group, Identity()
        self._options = KafkaOptions(
            topic, address, label, codec, _field_names(topic, label, codec, fields), timeout, _checked(topic, config)
        )

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields beside the image."""
        return self._options.fields

    def __repr__(self) -> str:
        return f"KafkaTopic({self._options.topic!r}, {self._options.servers!r})"

    def where(self, partition: int, position: int) -> str:
        """A record's coordinates: `imagenet-train[3]@41872`."""
        return f"{self._options.topic}[{partition}]@{position}"

    def original(self, partition: int, position: int) -> Original | None:
        """The record at an offset in full, with key and headers, read again; None where it is gone.

        Raises SourceUnreachableError after `timeout` seconds of silence.
        """
        return original(self._options, partition, position)

    def reader(self, slabs: Slabs | None = None, stop: threading.Event | None = None) -> KafkaReader:
        """A new reader with a consumer of its own; it connects when it first reads."""
        return KafkaReader(self._options, slabs, stop, self._identity)

    def commit(self, positions: Int64s) -> None:
        """Set the group's offset of each partition, for lag tools; does nothing without `group`.

        Raises:
            SourceError: not done within 5 seconds, no rights on the group, or the group has members.
        """
        if self._group is not None:
            commit_offsets(self._options, self._group, positions)

    def snapshot(self, pin: Mapping[str, Any] | None = None) -> Snapshot:
        """What the topic holds now, or, given an earlier snapshot's pin, that one again.

        Ends are the last stable offsets: records of open transactions are not in it.

        Raises:
            SourceNotFoundError: no such topic; the message names similar ones.
            SourceEmptyError: the topic holds no record.
            SourceUnreachableError: no answer for `timeout` seconds.
            SourceDeniedError: no rights, or credentials that are refused.
            DataLostError: the broker has dropped records that the pin promises.
            SourceChangedError: the topic was deleted and made again, or its ends are lower than the pin says.
            StateError: the pin is not one of this topic.
        """
        pinned = None if pin is None else _Pin(self._options.topic, pin)
        trouble = Trouble()
        consumer = connect(self._options, trouble)
        try:
            asked = Cluster(self._options, consumer, trouble)
            lows, highs = asked.watermarks(asked.partitions())
        finally:
            consumer.close()
        if pinned is not None:
            topic_id = self._topic_id(pinned.topic_id)
            pinned.check(self, lows, highs, topic_id)
            self._identity.topic_id = pinned.topic_id or topic_id
            return self._made(pinned.starts, pinned.ends, pinned.extent, pinned.record_bytes, pinned.topic_id)
        if not (highs > lows).any():
            msg = f"{self._options.topic}: the topic must hold records; its {len(lows)} partitions are empty"
            raise SourceEmptyError(msg)
        topic_id = self._identity.topic_id = self._topic_id(self._identity.topic_id)
        record_bytes = self._record_bytes(lows, highs)
        extent = 1 << round(math.log2(EXTENT_BYTES / record_bytes)) if record_bytes < EXTENT_BYTES else 1
        return self._made(lows, highs, min(extent, MAX_EXTENT), record_bytes, topic_id)

    def _topic_id(self, known: str) -> str:
        """The topic's id now. Never another than the source knew: its readers hold what they read to that one."""
        asker = Asker(self._options)
        if not known and not asker.answers():
            return ""
        found = asker.ask(self._options.topic) or ""
        before = self._identity.topic_id
        if before and found not in (before, ""):
            raise remade(self._options.topic, before, found)
        return found or known

    def _made(self, starts: Int64s, ends: Int64s, extent: int, record_bytes: int, topic_id: str) -> Snapshot:
        topic = self._options.topic
        pin = {
            "topic": topic,
            "id": topic_id,
            "starts": starts.tolist(),
            "ends": ends.tolist(),
            "extent": extent,
            "record_bytes": record_bytes,
        }
        held = json.dumps([topic, topic_id, pin["starts"], pin["ends"]]).encode()
        return Snapshot(
            source=f"kafka topic {topic} at {self._options.servers}",
            names=tuple(f"{topic}[{p}]" for p in range(len(starts))),
            starts=starts,
            stops=ends,
            extent=extent,
            record_bytes=record_bytes,
            random_access=False,
            interleaved=True,
            fingerprint=hashlib.blake2b(held, digest_size=16).hexdigest(),
            pin=pin,
        )

    def _record_bytes(self, starts: Int64s, ends: Int64s) -> int:
        """Mean payload size of the first records of a few partitions; further in where those offsets are holes."""
        partition = np.flatnonzero(ends > starts)[:SAMPLED_PARTITIONS]
        first, last = starts[partition], ends[partition]
        span = SAMPLED_POSITIONS
        reader = self.reader()
        try:
            while (first < last).any():
                stop = np.minimum(first + span, last)
                block = reader.read(Extents(partition.astype(np.int64), first, stop))
                sizes = [len(view) for view in block.payloads if view]
                block.lease.release()
                if sizes:
                    return max(1, round(sum(sizes) / len(sizes)))
                first, span = stop, span * 8
        finally:
            reader.close()
        return 1


class _Pin:
    """A snapshot's pin, read back from JSON."""

    def __init__(self, topic: str, pin: Mapping[str, Any]) -> None:
        self.topic = topic
        try:
            self.starts: Int64s = np.array([int(v) for v in pin["starts"]], np.int64)
            self.ends: Int64s = np.array([int(v) for v in pin["ends"]], np.int64)
            self.extent, self.record_bytes = int(pin["extent"]), int(pin["record_bytes"])
            of, self.topic_id = str(pin["topic"]), str(pin.get("id", ""))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            msg = f"{topic}: a pin must be what a snapshot of a Kafka topic gave; {type(error).__name__}: {error}"
            raise StateError(msg) from error
        if len(self.starts) != len(self.ends) or self.extent < 1 or (self.ends < self.starts).any():
            msg = f"{topic}: a pin must be what a snapshot of a Kafka topic gave; its starts, ends and extent disagree"
            raise StateError(msg)
        if of != topic:
            msg = f"{topic}: the pin must be of the same topic; it is of {of}"
            raise StateError(msg)

    def check(self, source: KafkaTopic, lows: Int64s, highs: Int64s, topic_id: str) -> None:
        """That everything it promises is still there; partitions that came later do not matter."""
        topic, n = self.topic, len(self.starts)
        if "" not in (self.topic_id, topic_id) and self.topic_id != topic_id:
            raise remade(topic, self.topic_id, topic_id)
        if len(lows) < n:
            msg = f"{topic}: the snapshot has {n} partitions and the topic now {len(lows)}: it was made anew"
            raise SourceChangedError(msg)
        held = self.ends > self.starts
        lost = np.flatnonzero(held & (lows[:n] > self.starts))
        if len(lost):
            which = "; ".join(
                f"{source.where(p, int(self.starts[p]))}: offsets {self.starts[p]}.."
                f"{min(lows[p], self.ends[p]) - 1} are gone (the broker holds {lows[p]}..{highs[p] - 1})"
                for p in lost[:5].tolist()
            )
            msg = (
                f"{which}{f'; and {len(lost) - 5} more partitions' if len(lost) > 5 else ''}: the snapshot promised "
                "them and retention or deletion took them; take a new snapshot, and give the topic a longer retention"
            )
            raise DataLostError(msg)
        cut = np.flatnonzero(held & (highs[:n] < self.ends))
        if len(cut):
            p = int(cut[0])
            msg = (
                f"{topic}[{p}]: the snapshot ends at offset {self.ends[p]} and the partition now at {highs[p]}"
                f"{f', and {len(cut) - 1} more are shorter' if len(cut) > 1 else ''}: the topic was truncated or made "
                "anew; take a new snapshot"
            )
            raise SourceChangedError(msg)


def _field_names(topic: str, label: str | None, codec: Codec | None, fields: Sequence[str] | None) -> tuple[str, ...]:
    if codec is None:
        if fields is not None:
            msg = f"{topic}: fields= names what a codec gives; found {fields!r} and no codec; give codec="
            raise ConfigError(msg)
        return () if label is None else (LABEL,)
    if label not in (LABEL, None):
        msg = f"{topic}: label= names a header, which codec= reads itself; found {label!r}; leave one of them out"
        raise ConfigError(msg)
    if fields is None:
        return () if label is None else (LABEL,)
    names = (fields,) if isinstance(fields, str) else tuple(fields)
    if "image" in names or len(set(names)) != len(names):
        msg = f"{topic}: fields= must be distinct names beside the image; found {names!r}"
        raise ConfigError(msg)
    return names


def _checked(topic: str, config: Mapping[str, Any] | None) -> dict[str, Any]:
    taken = sorted(OURS.intersection(config or {}))
    if taken:
        msg = (
            f"{topic}: config= must not set what decides which records are read, in which order; found "
            f"{', '.join(taken)}; the offsets come from the snapshot and the checkpoint"
        )
        raise ConfigError(msg)
    return dict(config or {})
