"""What a member hears that is no record: which of it passes, and which is an error, in our words."""

from __future__ import annotations

import time

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from dali_feed.errors import ConfigError, DataLostError, SourceChangedError, SourceError
from dali_feed.external_sources.kafka.errors import BROKEN, GONE, LOG, Trouble, denied, gone, unreachable
from dali_feed.external_sources.kafka.fleet import Fleet
from dali_feed.external_sources.kafka.fleet_start import GROUP_RIGHT, REFUSED
from dali_feed.external_sources.kafka.options import KafkaOptions

__all__ = ["Events"]

PROBE_SECONDS = 1.0
ASK_SECONDS = 2.0
GONE_SECONDS = 2.0  # a restarted broker may say 'unknown' for a moment
_NO_MEMBER = frozenset(
    {
        KafkaError.INCONSISTENT_GROUP_PROTOCOL,
        KafkaError.INVALID_GROUP_ID,
        KafkaError.INVALID_SESSION_TIMEOUT,
        KafkaError.GROUP_MAX_SIZE_REACHED,
        KafkaError.UNSUPPORTED_ASSIGNOR,
    }
)


class Events:
    """A member's errors and silences. Used by who has the consumer's turn."""

    def __init__(self, options: KafkaOptions, fleet: Fleet, trouble: Trouble) -> None:
        self._options, self._fleet, self._trouble = options, fleet, trouble
        self._since = self._asked = 0.0  # when trouble began, and when we last asked whether it goes on
        self._gone_since = 0.0

    @property
    def who(self) -> str:
        """The worker, for people: `clicks: group 'workers', instance 'w1'`."""
        mine = self._fleet.instance
        return f"{self._options.topic}: group {self._fleet.group!r}{f', instance {mine!r}' if mine else ''}"

    def progress(self) -> None:
        """A record came."""
        if self._trouble.last or self._since or self._gone_since:
            self._trouble.clear()
            self._since = self._gone_since = 0.0

    def heard(self, error: KafkaError, message: Message, consumer: Consumer) -> int | None:
        """Handle what is no record; the position that it proves in its partition, if any.

        Raises:
            DataLostError: the records at the group's offset are gone.
            SourceChangedError: the partition ends before the group's offset.
            SourceDeniedError: no rights.
            ConfigError: the group does not take a member of these settings, or another has this instance's name.
            SourceError: records that cannot be read.
        """
        code = error.code()
        if code == KafkaError._PARTITION_EOF:
            self.progress()
            return message.offset()
        if code == KafkaError._AUTO_OFFSET_RESET:
            raise self._lost(message.partition() or 0, message.offset() or 0, consumer)
        if code in REFUSED:
            raise denied(self._options.topic, self._options.servers, error.str(), self._options.config, GROUP_RIGHT)
        if code in GONE:
            self._trouble.gone = error.str()  # looked into when nothing more comes
            return None
        if code == KafkaError._FATAL or error.fatal() or code in _NO_MEMBER:
            raise self._refused(error)
        if code in BROKEN:
            where = f"{self._options.topic}[{message.partition()}]@{message.offset()}"
            msg = f"{where}: the broker's data cannot be read: {error.str()}"
            raise SourceError(msg)
        if code == KafkaError._MAX_POLL_EXCEEDED:
            LOG.warning("%s: nothing was polled for too long (%s); the worker joins again", self.who, error.str())
        self._trouble.last = error.str()  # of the connection or the coordinator: librdkafka tries again
        return None

    def silence(self, consumer: Consumer) -> None:
        """Nothing came: raise where waiting is no use.

        Raises SourceDeniedError, SourceChangedError, or SourceUnreachableError after `timeout` seconds of trouble.
        """
        options, trouble = self._options, self._trouble
        if trouble.denied:
            raise denied(options.topic, options.servers, trouble.denied, options.config, GROUP_RIGHT)
        if not (trouble.gone or trouble.last):
            return
        now = time.monotonic()
        self._since = self._since or now
        if now - self._asked < PROBE_SECONDS:
            return
        self._asked = now
        try:
            found = consumer.list_topics(options.topic, timeout=PROBE_SECONDS).topics.get(options.topic)
        except KafkaException as error:
            if (seconds := time.monotonic() - self._since) >= options.timeout:
                raise unreachable(options.topic, options.servers, seconds, trouble.last) from error
            return
        if found is None or (found.error is not None and found.error.code() in GONE):
            self._gone_since = self._gone_since or now
            if now - self._gone_since >= GONE_SECONDS:
                raise gone(options.topic, options.servers, trouble.gone)
            return
        self.progress()

    def _lost(self, partition: int, wanted: int, consumer: Consumer) -> SourceError:
        topic, group = self._options.topic, self._fleet.group
        where = f"{topic}[{partition}]@{wanted}"
        cure = (
            f"reset the offsets of the group {group!r} (kafka-consumer-groups --reset-offsets) when you know "
            "which records that skips"
        )
        try:
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=ASK_SECONDS)
        except KafkaException as error:
            return DataLostError(f"{where}: the broker no longer holds it ({error.args[0].str()}); {cure}")
        if wanted > high:
            return SourceChangedError(
                f"{where}: the partition must reach the group's offset; it ends at {high}: it was truncated, or "
                f"the topic was made again; {cure}"
            )
        return DataLostError(
            f"{where}: offsets {wanted}..{low - 1} must be read next by the group {group!r}, and the broker "
            f"holds {low}..{high - 1}: retention or deletion removed them; {cure}, and give the topic a longer "
            "retention"
        )

    def _refused(self, error: KafkaError) -> SourceError | ConfigError:
        said = error.str()
        if "fenced" in said or "instance ID is still used" in said:
            return ConfigError(
                f"{self.who}: one worker at a time may use the name of an instance; another running worker uses "
                f"it: {said}; give each worker its own Fleet(instance=)"
            )
        if "nsupported" in said or "not supported" in said:
            return ConfigError(
                f"{self.who}: the broker must know the group's protocol; {said}; "
                'Fleet(protocol="classic") works with any broker, "consumer" with Kafka 4.0 and newer'
            )
        if "rotocol" in said:
            return ConfigError(
                f"{self.who}: all members of a group must assign partitions in the same way, cooperative-sticky; "
                f"{said}; stop the other members, or use another group"
            )
        return ConfigError(f"{self.who}: the broker must accept the worker as a member; {said}; check Fleet(...)")
