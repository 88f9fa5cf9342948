"""Topics made, looked at and deleted, and what of a topic would hurt a training run.

The law: a warning says what would happen to a run, and the setting that cures it. What the cluster did not tell is None
or empty, and is no warning.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from typing import Any

from dali_feed.checks import number, whole
from dali_feed.errors import ConfigError, SourceDeniedError
from dali_feed.external_sources.kafka.cluster import Cluster
from dali_feed.external_sources.kafka.connection import Connection, addresses
from dali_feed.external_sources.kafka.errors import partitions_text
from dali_feed.external_sources.kafka.reader import KafkaReader
from dali_feed.external_sources.kafka.snapshot import TopicSample, sampled
from dali_feed.records.extents import MAX_PARTITION
from dali_feed.records.source import Int64s

SKEW = 2  # times the mean
SMALL_LIMIT = 2_000_000  # bytes of a message: Kafka's own default is 1 MB, and photographs are larger
LARGE_LIMIT = 95_000_000  # librdkafka takes answers of 100 MB (receive.message.max.bytes)
NEARLY = 0.8  # of retention.bytes
DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """A partition: offsets start..end-1; broker ids (leader -1: there is none); Unix seconds of its records."""

    partition: int
    leader: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    start: int
    end: int
    first: float | None = None
    last: float | None = None


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic.

    topic_id      "" where the brokers have none
    brokers       how many the cluster has
    settings      the topic's configuration, as Kafka calls it; empty where it could not be had, and `unknown` says why
    record_bytes  mean payload size of a sample; 0 where none was taken
    absent        share of the sample's offsets that hold no record
    at            Unix seconds of the answers
    packing       bytes on a broker's disk for each byte of payload, by the sample
    codecs        of the batches that the sample lies in: "uncompressed", "zstd", ...; empty where none was taken
    """

    topic: str
    topic_id: str
    servers: str
    brokers: int
    partitions: tuple[PartitionFacts, ...]
    settings: Mapping[str, str]
    unknown: str
    record_bytes: int
    absent: float
    at: float
    packing: float = 1.0
    codecs: tuple[str, ...] = ()

    @property
    def offsets(self) -> int:
        """How many there are: the records, and the holes between them."""
        return sum(each.end - each.start for each in self.partitions)

    @property
    def size(self) -> float:
        """Payload bytes, by the sample."""
        return self.offsets * (1 - self.absent) * self.record_bytes

    @property
    def stored(self) -> float:
        """Bytes on a broker's disk, by the sample."""
        return self.size * self.packing

    @property
    def span(self) -> tuple[float, float] | None:
        """Unix seconds of the first record and of the newest."""
        firsts = [each.first for each in self.partitions if each.first is not None]
        lasts = [each.last for each in self.partitions if each.last is not None]
        return (min(firsts), max(lasts)) if firsts and lasts else None

    @property
    def headroom(self) -> float | None:
        """Seconds until retention may begin to take records, 0 or less where it may now; None where it does not.

        It takes whole segments, once their newest record is old enough: so this is the least.
        """
        keeps = retention(self.settings)
        return None if keeps is None else keeps - (self.at - self.span[0] if self.span else 0.0)

    def number(self, setting: str) -> int | None:
        """A setting that is a whole number."""
        try:
            return int(self.settings[setting])
        except (KeyError, ValueError):
            return None

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        return {
            "topic": self.topic,
            "id": self.topic_id,
            "servers": self.servers,
            "brokers": self.brokers,
            "offsets": self.offsets,
            "bytes": round(self.size),
            "stored": round(self.stored),
            "codecs": self.codecs,
            "record_bytes": self.record_bytes,
            "absent": self.absent,
            "span": self.span,
            "headroom": self.headroom,
            "settings": dict(self.settings),
            "partitions": [asdict(each) for each in self.partitions],
        }


def retention(settings: Mapping[str, str]) -> float | None:
    """Seconds that a record is kept at least; None: for ever, or it is not known."""
    kept = settings.get("retention.ms", "")
    return int(kept) / 1000 if kept.isdecimal() and "delete" in settings.get("cleanup.policy", "delete") else None


def warnings(facts: TopicFacts, run: float = DAY, gpus: int | None = None) -> list[str]:
    """What would hurt a training run of `run` seconds on `gpus` GPUs (None: not said); a sentence each."""
    return [*_kept(facts, run), *_safe(facts), *_spread(facts, gpus), *_written(facts)]


def _kept(facts: TopicFacts, run: float) -> Iterator[str]:
    """Whether its records are still there when the run comes to them."""
    if "compact" in facts.settings.get("cleanup.policy", ""):
        yield (
            "cleanup.policy=compact: of the records of one key only the last is kept, so records disappear "
            "during a run; set cleanup.policy=delete"
        )
    room = facts.headroom
    if room is not None and room < run:
        when = f"in {span_text(room)}" if room > 0 else "at any time"
        what = "its oldest records may be deleted" if facts.span else "records may be deleted once they are written,"
        yield (
            f"retention.ms={facts.settings['retention.ms']}: {what} {when}, and a run of {span_text(run)} would "
            "end with DataLostError; set retention.ms=-1, or longer"
        )
    most, largest = (
        facts.number("retention.bytes"),
        max((each.end - each.start for each in facts.partitions), default=0),
    )
    size = largest * (1 - facts.absent) * facts.record_bytes * facts.packing
    if most is not None and most >= 0 and size >= NEARLY * most:
        yield (
            f"retention.bytes={most}: its largest partition has about {size:.3g} bytes, so what is written next may "
            "delete its oldest records; set retention.bytes=-1, or more"
        )


def _safe(facts: TopicFacts) -> Iterator[str]:
    """Whether a broker that fails takes records along."""
    replicas = min((len(each.replicas) for each in facts.partitions), default=0)
    least = facts.number("min.insync.replicas")
    if replicas == 1:
        yield "replication 1: each record is on one broker only, and lost with its disk; 3 is usual"
    elif least == 1:
        yield (
            "min.insync.replicas=1: a record counts as written when one broker has it, and may be lost with it; "
            "set it to 2"
        )
    if least is not None and least > 1 and least >= replicas:
        stops = "nothing can be written with acks=all" if least > replicas else "one broker that is down stops writers"
        yield f"min.insync.replicas={least} of {replicas} replicas: {stops}; set it lower"
    if leaderless := [each.partition for each in facts.partitions if each.leader < 0]:
        yield f"{partitions_text(leaderless)} without a leader: nobody can read there until a broker is back"
    if lagging := [each.partition for each in facts.partitions if len(each.in_sync) < len(each.replicas)]:
        yield f"{partitions_text(lagging)} with fewer replicas in sync than there should be: a broker is down or behind"
    if facts.settings.get("unclean.leader.election.enable") == "true":
        yield (
            "unclean.leader.election.enable=true: a broker that lacks records may become the leader, and they are "
            "lost; set it to false"
        )


def _spread(facts: TopicFacts, gpus: int | None) -> Iterator[str]:
    """Whether its partitions share the work."""
    count, lengths = len(facts.partitions), [each.end - each.start for each in facts.partitions]
    if gpus is not None and count < 2 * gpus:
        yield f"{count} partitions for {gpus} GPUs: 2 to 4 per GPU keep readers and brokers busy; add some"
    if count > 1 and facts.offsets >= 10 * count and max(lengths) > SKEW * facts.offsets / count:
        at = lengths.index(max(lengths))
        yield (
            f"skewed partitions: {facts.topic}[{facts.partitions[at].partition}] has {max(lengths):,} offsets, "
            f"{max(lengths) * count / facts.offsets:.1f} times the mean, and {lengths.count(0)} have none: its broker "
            "does most of the work; produce with better keys, or evenly"
        )


def _written(facts: TopicFacts) -> Iterator[str]:
    """Whether what is produced fits, and comes as it was made."""
    most = facts.number("max.message.bytes")
    if most is not None and most < SMALL_LIMIT:
        yield (
            f"max.message.bytes={most}: larger records, such as photographs, are refused; 8388608 is usual for images"
        )
    if most is not None and most > LARGE_LIMIT:
        yield (
            f"max.message.bytes={most}: a reader accepts answers of at most receive.message.max.bytes, which is "
            "100000000 if config= does not set it; keep the limit below that"
        )
    codec = facts.settings.get("compression.type", "producer")
    if codec not in ("producer", "uncompressed"):
        yield (
            f"compression.type={codec}: the broker compresses again what was compressed in another way, and each "
            "reader decompresses it; images do not get smaller; set it to producer"
        )


def span_text(seconds: float) -> str:
    """A length of time as people say it: 45 s, 3 h 20 min, 6 days 4 h."""
    whole = round(seconds)
    for unit, size, below, part in (("days", 86_400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            count, rest = whole // size, whole % size // part
            name = "day" if unit == "days" and count == 1 else unit
            return f"{count:,} {name}" + (f" {rest} {below}" if rest else "")
    return f"{whole} s"


PARTITIONS = 32
MESSAGE_BYTES = 8 << 20
CODECS = ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")


class Topics:
    """The topics of a cluster.

    Args:
        servers: bootstrap addresses, "host:port,host:port" or a list of them.
        config: more options of librdkafka, such as `security.protocol`, `sasl.*`, `ssl.*`; secrets as `Secret`.
        timeout: seconds after which a cluster that says nothing counts as unreachable.

    Every method raises:
        SourceUnreachableError: no answer for `timeout` seconds.
        SourceDeniedError: no rights, or credentials that are refused.
        SourceError: the cluster could not do it.
        ConfigError: an argument that cannot be, or that the cluster refuses.
    """

    def __init__(
        self, servers: str | Sequence[str], *, config: Mapping[str, Any] | None = None, timeout: float = 30.0
    ) -> None:
        self._servers = addresses("", servers)
        self._config, self._timeout = dict(config or {}), timeout
        number("timeout", timeout, "above 0 seconds")

    def __repr__(self) -> str:
        return f"Topics({self._servers!r})"

    def create(
        self,
        topic: str,
        partitions: int = PARTITIONS,
        *,
        replication: int | None = None,
        retention: float | None = None,
        segment_bytes: int | None = None,
        compression: str = "producer",
        max_message_bytes: int = MESSAGE_BYTES,
        min_insync_replicas: int | None = None,
    ) -> None:
        """Make a topic, and wait until all of it is there.

        Args:
            topic: its name.
            partitions: 2 to 4 per GPU of the largest run are good; more can be added, none taken away.
            replication: brokers that have each record; None: the cluster's default.
            retention: seconds that a record is kept at least; None: for ever.
            segment_bytes: size of the files that a partition is kept in, and deleted by; None: the cluster's default.
            compression: "producer" (as each producer sends it), "uncompressed", "gzip", "snappy", "lz4" or "zstd".
            max_message_bytes: the largest record, its key, headers and some bytes of frame included.
            min_insync_replicas: brokers that must have a record before it counts; None: the cluster's default.

        Raises:
            ConfigError: there is such a topic; or the cluster refuses a setting, and the message says which.
        """
        whole(f"{topic}: partitions", partitions, 1)
        whole(f"{topic}: max_message_bytes", max_message_bytes, 1)
        others = {
            "replication": replication,
            "segment_bytes": segment_bytes,
            "min_insync_replicas": min_insync_replicas,
        }
        for name, value in others.items():
            if value is not None:
                whole(f"{topic}: {name}", value, 1)
        if partitions > MAX_PARTITION:
            raise ConfigError(f"{topic}: at most {MAX_PARTITION} partitions are supported; found {partitions}")
        if compression not in CODECS:
            raise ConfigError(f"{topic}: compression must be one of {', '.join(CODECS)}; found {compression!r}")
        if retention is not None:
            number(f"{topic}: retention", retention, "above 0 seconds, or None for ever")
        settings = {
            "cleanup.policy": "delete",
            "compression.type": compression,
            "max.message.bytes": max_message_bytes,
            "retention.ms": -1 if retention is None else round(retention * 1000),
            "segment.bytes": segment_bytes,
            "min.insync.replicas": min_insync_replicas,
        }
        config = {name: str(value) for name, value in settings.items() if value is not None}
        with self._at(topic) as cluster:
            cluster.create(partitions, replication or -1, config)

    def delete(self, topic: str) -> None:
        """Delete a topic with all its records, for good, and wait until it is gone.

        Raises:
            SourceNotFoundError: no such topic; the message names similar ones.
        """
        with self._at(topic) as cluster:
            cluster.partitions()
            cluster.wish("deleting it", "Delete", lambda **limits: cluster.admin.delete_topics([topic], **limits))
            cluster.wait_for_leaders(lambda leaders: leaders is None)

    def describe(self, topic: str) -> TopicFacts:
        """What the cluster says of a topic; a few of its records are read for their size.

        Settings, times and sizes are left out where the broker or the rights do not give them.

        Raises:
            SourceNotFoundError: no such topic; the message names similar ones.
        """
        with self._at(topic) as cluster:
            there = cluster.metadata()
            partitions = sorted(there.topics[topic].partitions.items())
            ids = [p for p, _ in partitions]
            starts, ends = cluster.bounds(ids)
            (settings, unknown), (firsts, lasts) = cluster.settings(), cluster.times(ids)
            topic_id = cluster.known_id()
            sample, (packing, codecs) = self._sample(cluster.to, starts, ends)
        parts = tuple(
            PartitionFacts(
                p, each.leader, tuple(each.replicas), tuple(each.isrs), start, end, firsts.get(p), lasts.get(p)
            )
            for (p, each), start, end in zip(partitions, starts.tolist(), ends.tolist(), strict=True)
        )
        return TopicFacts(
            topic, topic_id, self._servers, len(there.brokers), parts, settings, unknown,
            sample.record_bytes, sample.absent, time.time(), packing, codecs,
        )  # fmt: skip

    def _sample(
        self, to: Connection, starts: Int64s, ends: Int64s
    ) -> tuple[TopicSample, tuple[float, tuple[str, ...]]]:
        reader, sample = KafkaReader(to, modest=True), TopicSample(0, 0.0)
        with suppress(SourceDeniedError), closing(reader):  # whoever makes topics need not have the right to read them
            if (ends > starts).any():
                sample = sampled(reader, starts, ends)
        return sample, reader.packing

    def _at(self, topic: str) -> Cluster:
        return Cluster(Connection.of(topic, self._servers, self._timeout, self._config))
