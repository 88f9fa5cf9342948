"""A Kafka topic as a bounded source.

A snapshot's starts and ends are captured once and never looked up again. What a later run
gets is the pin, and a pin whose records are gone is an error, not a smaller snapshot.
"""

from __future__ import annotations

import copy
import math
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from dali_feed.errors import ConfigError, SourceEmptyError
from dali_feed.external_sources.formatted import VALUE, Formatted
from dali_feed.external_sources.kafka.cluster import Cluster
from dali_feed.external_sources.kafka.commit import commit_offsets
from dali_feed.external_sources.kafka.errors import LOG, Trouble
from dali_feed.external_sources.kafka.members import Seen
from dali_feed.external_sources.kafka.options import Identity, connect, most_times
from dali_feed.external_sources.kafka.pin import Pin, pin_of
from dali_feed.external_sources.kafka.reader import KafkaReader
from dali_feed.external_sources.kafka.records import LABEL, Codec
from dali_feed.external_sources.kafka.sample import Sample, sampled
from dali_feed.external_sources.kafka.scan import scanned
from dali_feed.external_sources.kafka.topic_source import TopicSource
from dali_feed.formats.format import Format
from dali_feed.records.members import Member
from dali_feed.records.present import Present
from dali_feed.records.source import MANY_ABSENT, Extents, Int64s, Slabs, Snapshot, Source

__all__ = ["KafkaTopic"]

LOOKS, LOOKED_AT = 8, 16  # places, and records of each
EXTENT_BYTES = 32_000_000  # shuffled runs of this size read as fast as a partition in sequence
MAX_EXTENT = 65_536


class KafkaTopic(TopicSource):
    """All records of a topic, from each partition's first kept offset to its end when the snapshot is taken.

    Args:
        topic: its name. No topic is ever created.
        servers: bootstrap addresses, "host:port,host:port" or a list of them.
        label: the header that holds the label, a decimal number in text; None: records have no label.
            The field is called `label` whatever the header's name, and is an int64 array in a block.
        codec: `codec(value: memoryview, key: bytes | None, headers: list[tuple[str, bytes]])` returns a mapping
            with `image` (a view into the value, or other bytes) and each name in `fields`. What it raises is a
            fault of that record. None: the value is the image.
        fields: names of the fields that the codec gives beside the image; ("label",) where None. `label` must be
            an int; other fields may be anything, and a loader stacks numbers and arrays of one shape.
        config: more options of librdkafka, such as `security.protocol`, `sasl.*`, `ssl.*`, `client.rack`; secrets as
            `FromEnv` or `FromFile`.
        timeout: seconds without any progress, reconnects included, after which the broker counts as unreachable.
        holes: what is done with offsets that hold no record: those of aborted transactions, of the markers that end
            each transaction, and those of records that compaction removed. "replace": another record is repeated in the
            place of each, and `ok` is False there. "scan": a new run reads the whole topic once, by two consumers, to
            find which offsets hold a record; only those are in an epoch, each once, and states keep the result. "auto":
            a scan if, in a sample of at most 512 offsets, more than 4 in 1,000 hold no record.
        group: the consumer group whose offsets `loader.commit()` sets, for lag tools; None: it does nothing. Take a
            group that nobody subscribes with. It is never joined and never read: the checkpoint has the position.
        format: what a value holds, for `columns=`: an object of `dali_feed.formats`, or "json", "msgpack", "npy",
            or a name that a package registers. The members of columns are then what it finds there, `body.label`.
            Or a mapping, member -> format, where headers or keys hold such too: `headers.meta:size`.
        claims: the folder, or address such as s3://bucket/folder, with the payloads of records that only refer to them
            (`Claim` of a producer): they are read from there, and checked. None: such a record is a bad one.

    Raises:
        ConfigError: a value that is not allowed, or an option in `config` that decides what is read.
    """

    def __init__(  # noqa: PLR0913  what is read, and how
        self,
        topic: str,
        servers: str | Sequence[str],
        *,
        label: str | None = LABEL,
        codec: Codec | None = None,
        fields: Sequence[str] | None = None,
        config: Mapping[str, Any] | None = None,
        timeout: float = 30.0,
        holes: Literal["auto", "scan", "replace"] = "auto",
        group: str | None = None,
        format: Format | str | Mapping[str, Format | str] | None = None,  # noqa: A002  what users call it
        claims: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(
            topic,
            servers,
            label=label,
            codec=codec,
            fields=fields,
            config=config,
            timeout=timeout,
            group=group,
            format=format,
            claims=claims,
        )
        if holes not in ("auto", "scan", "replace"):
            msg = f'{topic}: holes must be "auto", "scan" or "replace"; found {holes!r}'
            raise ConfigError(msg)
        self._holes = holes
        self._stretch: tuple[Int64s, Int64s] | None = None  # starts and ends, where it is a part of the topic

    def between(self, starts: Int64s, ends: Int64s, topic_id: str = "") -> KafkaTopic:
        """The offsets starts..ends-1 of each partition alone, of the topic of this id: a stretch of a stream."""
        other = copy.copy(self)
        other._stretch, other._identity = (starts, ends), Identity()
        other._identity.topic_id = topic_id
        return other

    def members(self) -> tuple[Member, ...]:
        """What a few records, spread over the topic, have: value, key, timestamp, and their headers by name."""
        snapshot, seen = self.snapshot(), Seen(self._forms.get(VALUE))
        reader = KafkaReader(self._options, None, None, self._identity, modest=True)
        try:
            for start in np.linspace(0, max(0, len(snapshot) - LOOKED_AT), LOOKS).astype(np.int64).tolist():
                reader.fill(snapshot.located(_stretch(snapshot, start, start + LOOKED_AT)), seen)
        finally:
            reader.close()
        return seen.members()

    def giving(self, image: str | None, members: tuple[str, ...]) -> Source:
        """The same records with other members; see `records.members`."""
        found: Source = self._formed(image, members, Formatted)
        return found

    def reader(self, slabs: Slabs | None = None, stop: threading.Event | None = None) -> KafkaReader:
        """A new reader with a consumer of its own; it connects when it first reads.

        Raises ConfigError for `format=` without columns: it says nothing of images and labels.
        """
        self._check_made()
        return KafkaReader(self._options, slabs, stop, self._identity)

    @property
    def most_fetch_times(self) -> int:
        """How many times the usual amount its readers may fetch at once; 1 where `config` says how much."""
        return most_times(self._options.config)

    def commit(self, positions: Int64s) -> None:
        """Set the group's offset of each partition, for lag tools; does nothing without `group`.

        Raises:
            SourceError: not done within 5 seconds, no rights on the group, or the group has members.
        """
        if self._group is not None:
            commit_offsets(self._options, self._group, dict(enumerate(positions.tolist())))

    def snapshot(self, pin: Mapping[str, Any] | None = None) -> Snapshot:
        """What the topic holds now, or, given an earlier snapshot's pin, that one again.

        Ends are the last stable offsets: records of open transactions are not in it. A new one reads a sample, and
        may read the whole topic (`holes`); an old one reads nothing.

        Raises:
            SourceNotFoundError: no such topic; the message names similar ones.
            SourceEmptyError: the topic holds no record.
            SourceUnreachableError: no answer for `timeout` seconds.
            SourceDeniedError: no rights, or credentials that are refused.
            DataLostError: the broker has dropped records that the pin promises.
            SourceChangedError: the topic was deleted and made again, or its ends are lower than the pin says.
            StateError: the pin is not one of this topic.
        """
        pinned = None if pin is None else pin_of(self._options.topic, pin)
        trouble = Trouble()
        consumer = connect(self._options, trouble)
        try:
            asked = Cluster(self._options, consumer, trouble)
            lows, highs = asked.watermarks(asked.partitions())
        finally:
            consumer.close()
        if pinned is not None:
            topic_id = self._topic_id(pinned.topic_id)
            pinned.check(self.where, lows, highs, topic_id)
            self._identity.topic_id = pinned.topic_id or topic_id
            return pinned.snapshot(self._options.servers)
        if self._stretch is not None:
            held, (lows, highs) = (lows, highs), self._stretch
            part = Pin(self._options.topic, self._identity.topic_id, lows, highs, 1, 1, None, 0.0)
            part.check(self.where, *held, self._topic_id(part.topic_id))
        if not (highs > lows).any():
            msg = f"{self._options.topic}: the topic must hold records; its {len(lows)} partitions are empty"
            raise SourceEmptyError(msg)
        self._identity.topic_id = self._topic_id(self._identity.topic_id)
        return self._looked_at(lows, highs).snapshot(self._options.servers)

    def _looked_at(self, starts: Int64s, ends: Int64s) -> Pin:
        """What is between these offsets, as far as it takes to plan an epoch."""
        reader = KafkaReader(self._options, None, None, self._identity, modest=True)
        try:
            sample = sampled(reader, starts, ends, self._options.claims.weigh)
        finally:
            reader.close()
        present, record_bytes, absent = None, sample.record_bytes, sample.absent
        if self._holes == "scan" or (self._holes == "auto" and absent > MANY_ABSENT):
            present, record_bytes, absent = self._scanned(starts, ends, sample)
        extent = 1 << round(math.log2(EXTENT_BYTES / record_bytes)) if record_bytes < EXTENT_BYTES else 1
        topic, topic_id = self._options.topic, self._identity.topic_id
        return Pin(topic, topic_id, starts, ends, min(extent, MAX_EXTENT), record_bytes, present, absent)

    def _scanned(self, starts: Int64s, ends: Int64s, sample: Sample) -> tuple[Present | None, int, float]:
        """Which offsets hold a record (None: all), the mean size of those records, and the share of the others."""
        topic, total = self._options.topic, int((ends - starts).sum())
        if self._holes == "auto":
            LOG.warning(
                "%s: about %.1f %% of its %s offsets hold no record (aborted transactions, their markers, compaction);"
                " the topic is read once, about %.3g GB, to find them, so that each record comes once an epoch. A state"
                ' keeps the result; KafkaTopic(holes="replace") does not read it, and fills those slots with repeats',
                topic,
                100 * sample.absent,
                f"{total:,}",
                total * (1 - sample.absent) * sample.record_bytes / 1e9,
            )
        present, size = scanned(
            lambda stop: KafkaReader(self._options, None, stop, self._identity),
            topic,
            starts,
            ends,
            self._options.claims.weigh,
        )
        if not len(present):
            msg = f"{topic}: the topic must hold records; none of its {total} offsets has one"
            raise SourceEmptyError(msg)
        record_bytes = max(1, round(size / len(present)))
        LOG.info("%s: %d of its %d offsets hold a record", topic, len(present), total)
        return (None if len(present) == total else present), record_bytes, 1 - len(present) / total


def _stretch(snapshot: Snapshot, start: int, stop: int) -> Extents:
    """Records start..stop-1 of all partitions end to end, as far as they lie in the partition of the first."""
    lows, highs = snapshot.numbers
    ends = np.cumsum(highs - lows)
    partition = int(np.searchsorted(ends, start, side="right"))
    low = int(highs[partition] - (ends[partition] - start))
    return Extents.one(partition, low, min(low + stop - start, int(highs[partition])))
