"""A Kafka topic as a bounded source, and what it has in common with a stream.

A snapshot's starts and ends are captured once and never looked up again. What a later run
gets is the pin, and a pin whose records are gone is an error, not a smaller snapshot.
"""

from __future__ import annotations

import copy
import math
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Self

import numpy as np
from confluent_kafka import KafkaException, Message, TopicPartition

from dali_feed.dead_letters import Original
from dali_feed.errors import ConfigError, SourceEmptyError
from dali_feed.external_sources.kafka.claims import Claims
from dali_feed.external_sources.kafka.client import OURS, SLICE_SECONDS, consumer
from dali_feed.external_sources.kafka.cluster import Cluster, Identity
from dali_feed.external_sources.kafka.connection import Connection
from dali_feed.external_sources.kafka.errors import LOG, Meaning, Patience, Trouble, failed, meaning, remade
from dali_feed.external_sources.kafka.reader import KafkaReader
from dali_feed.external_sources.kafka.rows import LABEL, Codec, Decoding, KafkaParts, TopicMembers, by_path
from dali_feed.external_sources.kafka.snapshot import Pin, TopicSample, pin_of, sampled, scanned
from dali_feed.external_sources.request import VALUE, Formatted, forms_of, with_formats
from dali_feed.formats.format import Format
from dali_feed.records.present import Present
from dali_feed.records.source import MANY_ABSENT, Extents, Int64s, Member, Slabs, Snapshot, Source

__all__ = ["KafkaTopic", "TopicSource", "as_original", "messages", "original"]


def messages(to: Connection, partition: int, start: int, stop: int) -> Iterator[Message]:
    """The records at offsets start..stop-1 that are there; none from the first offset on that is gone.

    Raises:
        SourceUnreachableError: nothing came for the timeout of `to`.
        SourceDeniedError: no rights.
        SourceError: what is there cannot be read.
    """
    where, trouble = to.where(partition, start), Trouble()
    client, patience, want = consumer(to, trouble), Patience(to, trouble), start
    try:
        client.assign([TopicPartition(to.topic, partition, start)])
        while want < stop and not (patience.over and trouble.gone):
            patience.check(where)
            if (message := client.poll(SLICE_SECONDS)) is None:
                continue
            if (error := message.error()) is not None:
                if meaning(error) in (Meaning.END, Meaning.RESET):
                    return
                trouble.judge(error, to, where)
                continue
            offset = message.offset()
            if offset is None or offset >= stop:
                return
            yield message
            want = offset + 1
            patience.progress()
    except KafkaException as error:
        raise failed(to, error) from error
    finally:
        client.close()


def original(to: Connection, partition: int, position: int) -> Original | None:
    """The record at an offset in full; None where it is gone. Raises as `messages`."""
    for message in messages(to, partition, position, position + 1):
        return as_original(message)
    return None


def as_original(message: Message) -> Original:
    """Key, value and headers as they are."""
    headers = message.headers() or []
    pairs = headers.items() if isinstance(headers, dict) else headers
    return Original(_bytes(message.key()), _bytes(message.value()), tuple((name, _bytes(text)) for name, text in pairs))


def _bytes(text: str | bytes | None) -> bytes | None:
    return text.encode() if isinstance(text, str) else text


class TopicSource:
    """A topic, and what is made of its records. `KafkaTopic` documents the arguments."""

    def __init__(  # noqa: PLR0913  what is read, and how
        self,
        topic: str,
        servers: str | Sequence[str],
        *,
        label: str | None,
        codec: Codec | None,
        fields: Sequence[str] | None,
        config: Mapping[str, Any] | None,
        timeout: float,
        group: str | None,
        format: Format | str | Mapping[str, Format | str] | None,  # noqa: A002  what users call it
        claims: str | os.PathLike[str] | None,
    ) -> None:
        purpose = "decide which records are read, and in which order, as the snapshot and the checkpoint say it"
        self._to = Connection.of(topic, servers, timeout, config, OURS, purpose)
        if group is not None and (not isinstance(group, str) or not group):
            msg = f"{topic}: group must be a consumer group's name, or None; found {group!r}"
            raise ConfigError(msg)
        self._group, self._claims, self._identity = group, claims, Identity()
        if codec is not None and format is not None:
            msg = f"{topic}: codec= and format= both say how a value is decoded; leave one of them out"
            raise ConfigError(msg)
        self._forms = forms_of(format, VALUE, topic)
        names = _field_names(topic, label, codec, fields)
        self._decoding = Decoding(label, codec, names, claims=None if claims is None else Claims.of(claims))

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields beside the image."""
        return self._decoding.fields

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._to.topic!r}, {self._to.servers!r})"

    def _formed(self, image: str | None, members: tuple[str, ...], made: Any) -> Any:
        """The same records with other members; `made` where formats find some of them."""
        if self._decoding.codec is not None:
            msg = f"{self._to.topic}: codec= and columns= both say how a value is decoded; leave one of them out"
            raise ConfigError(msg)
        full = by_path if VALUE in self._forms else str
        return with_formats(self._giving, self._forms.get, image, members, full, made)

    def _giving(self, image: str | None, members: tuple[str, ...]) -> Any:
        other = copy.copy(self)
        other._decoding = replace(self._decoding, label=None, fields=members, asked=KafkaParts(image, members))
        return other

    def without_codec(self) -> Self:
        """The same records, their values as they are: a source that can give members."""
        other = copy.copy(self)
        other._decoding = replace(self._decoding, codec=None, label=None, fields=())
        return other

    def where(self, partition: int, position: int) -> str:
        """A record's coordinates as text: `imagenet-train[3]@41872`."""
        return self._to.where(partition, position)

    def original(self, partition: int, position: int) -> Original | None:
        """The record at an offset in full, with key and headers, read again; None where it is gone.

        Raises SourceUnreachableError after `timeout` seconds of silence.
        """
        return original(self._to, partition, position)

    def _check_made(self) -> None:
        """Raise where a format has nobody who asks for what it finds."""
        if self._forms and self._decoding.asked is None:
            msg = (
                f"{self._to.topic}: format= is for columns=; found no columns. Give columns=, or codec= in "
                "place of format="
            )
            raise ConfigError(msg)

    def _topic_id(self, cluster: Cluster, known: str) -> str:
        """The topic's id now. It must be the one that the source knew: readers compare what they read with it."""
        if not known and not cluster.has_controller():
            return ""
        found = cluster.topic_id() or ""
        before = self._identity.topic_id
        if before and found not in (before, ""):
            raise remade(self._to.topic, before, found)
        return found or known


def _field_names(topic: str, label: str | None, codec: Codec | None, fields: Sequence[str] | None) -> tuple[str, ...]:
    if label is not None and (not isinstance(label, str) or not label):
        msg = f"{topic}: label must be a header's name, or None; found {label!r}"
        raise ConfigError(msg)
    if codec is not None and not callable(codec):
        msg = f"{topic}: codec must be a function of (value, key, headers), or None; found {codec!r}"
        raise ConfigError(msg)
    if codec is None:
        if fields is not None:
            msg = f"{topic}: fields= names what a codec gives; found {fields!r} and no codec; give codec="
            raise ConfigError(msg)
        return () if label is None else (LABEL,)
    if label not in (LABEL, None):
        msg = (
            f"{topic}: label= names a header, but with codec= the codec gives the label; found {label!r}; leave one "
            "of them out"
        )
        raise ConfigError(msg)
    if fields is None:
        return () if label is None else (LABEL,)
    names = (fields,) if isinstance(fields, str) else tuple(fields)
    if "image" in names or len(set(names)) != len(names):
        msg = f"{topic}: fields= must be different names, without 'image'; found {names!r}"
        raise ConfigError(msg)
    return names


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
        snapshot, seen = self.snapshot(), TopicMembers(self._forms.get(VALUE))
        reader = KafkaReader(self._to, identity=self._identity, modest=True)
        try:
            for start in np.linspace(0, max(0, len(snapshot) - LOOKED_AT), LOOKS).astype(np.int64).tolist():
                reader.fill(snapshot.located(_stretch(snapshot, start, start + LOOKED_AT)), seen.take)
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
        return KafkaReader(self._to, self._decoding, slabs, stop, self._identity)

    def reader_of_messages(self, stop: threading.Event | None = None) -> KafkaReader:
        """A new reader whose `fill` gives each record as it is, whatever is made of values and claims."""
        return KafkaReader(self._to, stop=stop, identity=self._identity)

    def commit(self, positions: Int64s) -> None:
        """Set the group's offset of each partition, for lag tools; does nothing without `group`.

        Raises:
            SourceError: not done within 5 seconds, no rights on the group, or the group has members.
        """
        if self._group is not None:
            with Cluster(self._to) as cluster:
                cluster.commit(self._group, dict(enumerate(positions.tolist())))

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
            sample = sampled(reader, starts, ends, self._decoding.weigher())
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
            self._decoding.weigher(),
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
