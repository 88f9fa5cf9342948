"""A Kafka topic as a bounded source, and what it has in common with a stream.

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

from dali_feed.columns import Image, Number
from dali_feed.columns.request import formats_of
from dali_feed.errors import ConfigError, DataLostError, SourceEmptyError
from dali_feed.external_sources.kafka.claims import Claims
from dali_feed.external_sources.kafka.client import OURS
from dali_feed.external_sources.kafka.cluster import Cluster, Identity
from dali_feed.external_sources.kafka.codec import CODEC, Codec
from dali_feed.external_sources.kafka.connection import Connection
from dali_feed.external_sources.kafka.errors import LOG, check_same
from dali_feed.external_sources.kafka.reader import KafkaReader
from dali_feed.external_sources.kafka.rows import HEADER, OWN, PAIRS, WHOLE, KafkaParts, topic_members
from dali_feed.external_sources.kafka.snapshot import Pin, TopicSample, pin_of, sampled, scanned, weigher
from dali_feed.formats.format import Format
from dali_feed.records.extents import Present
from dali_feed.records.slabs import SlabPool
from dali_feed.records.source import (
    LABEL,
    MANY_ABSENT,
    Extents,
    Int64s,
    Member,
    Original,
    Records,
    Snapshot,
    Source,
)


class TopicSource(Records):
    """A topic, and what is made of its records. `KafkaTopic` documents the arguments."""

    inner = "value"

    def __init__(  # noqa: PLR0913, PLR0917  what is read, and how
        self,
        topic: str,
        servers: str | Sequence[str],
        label: str | None,
        codec: Codec | None,
        config: Mapping[str, Any] | None,
        timeout: float,
        group: str | None,
        format: Format | str | Mapping[str, Format | str] | None,  # noqa: A002  what users call it
        claims: str | os.PathLike[str] | None,
    ) -> None:
        purpose = "decide which records are read, and in which order, as the snapshot and the checkpoint say it"
        self._to = Connection.of(topic, servers, timeout, config, OURS, purpose)
        if group is not None and (not isinstance(group, str) or not group):
            raise ConfigError(f"{topic}: group must be a consumer group's name, or None; found {group!r}")
        if codec is not None and format is not None:
            raise ConfigError(f"{topic}: codec= and format= both say how a value is decoded; leave one of them out")
        _check_label(topic, label, codec)
        self._group, self._claims, self._identity = group, None if claims is None else Claims.of(claims), Identity()
        self._label, self._codec, self._forms = label, codec, formats_of(format, "value", topic)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._to.topic!r}, {self._to.servers!r})"

    @property
    def preset(self) -> Mapping[str, Any]:
        """The value, an image, and the header of the label, or what the codec makes of both; see `Records.preset`.

        Raises ConfigError where a format has nobody who asks for what it finds.
        """
        if self._forms:
            raise ConfigError(
                f"{self._to.topic}: format= is for columns=; found no columns. Give columns=, or codec= in "
                "place of format="
            )
        image, label = ("value", f"{HEADER}{self._label}") if self._codec is None else (f"{CODEC}image", CODEC + LABEL)
        return {"image": Image(image)} | ({} if self._label is None else {LABEL: Number(label)})

    def can_have(self, member: str) -> bool:
        """Any name is a header's, unless values have a format: then it is a path in there. See `Records.can_have`."""
        if member.startswith(CODEC):
            return self._codec is not None
        own = member in OWN or member.startswith((HEADER, PAIRS, *(f"{each}:" for each in OWN)))
        return own or "value" not in self._forms

    def lacks(self, member: str) -> str:
        """See `Records.lacks`."""
        return "is a tombstone (no value)" if member == "value" else ""

    def format_of(self, member: str) -> Format | None:
        """See `Records.format_of`."""
        return self._forms.get(member)

    def _parts(self, members: Sequence[str]) -> KafkaParts:
        """What is copied of a record for these members. ConfigError for one that no record can have."""
        for name in members:
            if not self.can_have(name):
                raise ConfigError(f"member {name!r}: no record of {self._to.topic} has it")
        return KafkaParts(members, self._claims, self._codec)

    def where(self, partition: int, position: int) -> str:
        """A record's coordinates as text: `imagenet-train[3]@41872`."""
        return self._to.where(partition, position)

    def original(self, partition: int, position: int) -> Original | None:
        """The record at an offset in full, with key and headers, read again; None where it is gone.

        Raises what a reader does; SourceUnreachableError after `timeout` seconds of silence.
        """
        reader, lease = self.whole_reader(modest=True), SlabPool().lease()
        try:
            if not reader.holds(partition, position):
                return None
            block = reader.read(Extents.one(partition, position, position + 1), lease)
            (whole,) = block.values[WHOLE]
            return None if whole is None else Original(whole.key, whole.value, tuple(whole.headers))
        except DataLostError:  # since it was there
            return None
        finally:
            reader.close()
            lease.release()

    def whole_reader(self, stop: threading.Event | None = None, *, modest: bool = False) -> KafkaReader:
        """A new reader of `WHOLE`, records as they are: no codec has seen them, and no claim is followed."""
        return KafkaReader(self._to, KafkaParts([WHOLE], follow=False), stop, self._identity, modest=modest)

    def _topic_id(self, cluster: Cluster, known: str) -> str:
        """The topic's id now. It must be the one that the source knew: readers compare what they read with it."""
        if not known and not cluster.has_controller():
            return ""
        topic_id = cluster.topic_id() or ""
        for each in (known, self._identity.topic_id):
            check_same(self._to.topic, each, topic_id)
        return topic_id or known


def _check_label(topic: str, label: str | None, codec: Codec | None) -> None:
    if label is not None and (not isinstance(label, str) or not label):
        raise ConfigError(f"{topic}: label must be a header's name, or None; found {label!r}")
    if codec is not None and not callable(codec):
        raise ConfigError(f"{topic}: codec must be a function of (value, key, headers), or None; found {codec!r}")
    if codec is not None and label not in (LABEL, None):
        raise ConfigError(
            f"{topic}: label= names a header, but with codec= the codec gives the label; found {label!r}; leave one "
            "of them out"
        )


LOOKS, LOOKED_AT = 8, 16  # places, and records of each
EXTENT_BYTES = 32_000_000  # shuffled runs of this size read as fast as a partition in sequence
MAX_EXTENT = 65_536


class KafkaTopic(TopicSource, Source):
    """All records of a topic, from each partition's first kept offset to its end when the snapshot is taken.

    Args:
        topic: its name. No topic is ever created.
        servers: bootstrap addresses, "host:port,host:port" or a list of them.
        label: the header that holds the label, a decimal number in text; None: records have no label.
            The column is called `label` whatever the header's name.
        codec: `codec(value: memoryview, key: bytes | None, headers: list[tuple[str, bytes]])` returns a mapping
            with `image` (a view into the value, or other bytes), `label` (an int) unless label=None, and whatever else
            `columns=` asks for as a member `codec:NAME`. What it raises is a fault of that record. The value's view
            is good as long as the block that it is read into. None: the value is the image.
        config: more options of librdkafka, such as `security.protocol`, `sasl.*`, `ssl.*`, `client.rack`; secrets as
            `Secret`.
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
        config: Mapping[str, Any] | None = None,
        timeout: float = 30.0,
        holes: Literal["auto", "scan", "replace"] = "auto",
        group: str | None = None,
        format: Format | str | Mapping[str, Format | str] | None = None,  # noqa: A002  what users call it
        claims: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(topic, servers, label, codec, config, timeout, group, format, claims)
        if holes not in ("auto", "scan", "replace"):
            raise ConfigError(f'{topic}: holes must be "auto", "scan" or "replace"; found {holes!r}')
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
        snapshot, lease = self.snapshot(), SlabPool().lease()
        starts: list[int] = np.linspace(0, max(0, len(snapshot) - LOOKED_AT), LOOKS).astype(np.int64).tolist()
        places = [snapshot.located(_stretch(snapshot, start, start + LOOKED_AT)) for start in starts]
        reader = self.whole_reader(modest=True)
        try:
            return topic_members([reader.read(place, lease) for place in places], self._forms.get("value"))
        finally:
            reader.close()
            lease.release()

    def reader(self, members: Sequence[str] = (), stop: threading.Event | None = None) -> KafkaReader:
        """A new reader with a consumer of its own; it connects when it first reads. See `Source.reader`."""
        return KafkaReader(self._to, self._parts(members), stop, self._identity)

    def commit(self, positions: Int64s) -> None:
        """Set the group's offset of each partition, for lag tools; does nothing without `group`.

        Raises:
            SourceError: not done within 5 seconds, no rights on the group, or the group has members.
        """
        if self._group is not None:
            with Cluster(self._to, group=self._group) as cluster:
                cluster.commit(dict(enumerate(positions.tolist())))

    @property
    def commits(self) -> bool:
        """Whether there is a group whose offsets are set."""
        return self._group is not None

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
        pinned = None if pin is None else pin_of(self._to.topic, pin)
        with Cluster(self._to) as cluster:
            lows, highs = kept = cluster.bounds(cluster.partitions())
            if pinned is not None:
                topic_id = self._topic_id(cluster, pinned.topic_id)
                pinned.check(self.where, lows, highs, topic_id)
                self._identity.topic_id = pinned.topic_id or topic_id
                return pinned.snapshot(self._to.servers)
            if self._stretch is not None:
                lows, highs = self._stretch
                part = Pin(self._to.topic, self._identity.topic_id, lows, highs, 1, 1, None, 0.0)
                part.check(self.where, *kept, self._topic_id(cluster, part.topic_id))
            if not (highs > lows).any():
                msg = f"{self._to.topic}: the topic must hold records; its {len(lows)} partitions are empty"
                raise SourceEmptyError(msg)
            self._identity.topic_id = self._topic_id(cluster, self._identity.topic_id)
        return self._looked_at(lows, highs).snapshot(self._to.servers)

    def _looked_at(self, starts: Int64s, ends: Int64s) -> Pin:
        """What is between these offsets, as far as it takes to plan an epoch."""
        reader = KafkaReader(self._to, identity=self._identity, modest=True)
        try:
            sample = sampled(reader, starts, ends, weigher(self._claims))
        finally:
            reader.close()
        present, record_bytes, absent = None, sample.record_bytes, sample.absent
        if self._holes == "scan" or (self._holes == "auto" and absent > MANY_ABSENT):
            present, record_bytes, absent = self._scanned(starts, ends, sample)
        extent = 1 << round(math.log2(EXTENT_BYTES / record_bytes)) if record_bytes < EXTENT_BYTES else 1
        topic, topic_id = self._to.topic, self._identity.topic_id
        return Pin(topic, topic_id, starts, ends, min(extent, MAX_EXTENT), record_bytes, present, absent)

    def _scanned(self, starts: Int64s, ends: Int64s, sample: TopicSample) -> tuple[Present | None, int, float]:
        """Which offsets hold a record (None: all), the mean size of those records, and the share of the others."""
        topic, total = self._to.topic, int((ends - starts).sum())
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
            lambda stop: KafkaReader(self._to, stop=stop, identity=self._identity),
            topic,
            starts,
            ends,
            weigher(self._claims),
        )
        if not len(present):
            raise SourceEmptyError(f"{topic}: the topic must hold records; none of its {total} offsets has one")
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
