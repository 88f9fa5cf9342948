"""Faults under a stream: nothing lost or repeated, or an error that names partition, offset and cure."""

from __future__ import annotations

import threading
import time

import pytest
from broker.handle import Kafka, value
from broker.proxy import Proxy
from broker.real import Cluster, RealBroker
from streamed import Gathered, gather

from dali_feed.errors import DataLostError, SourceChangedError, SourceNotFoundError, SourceUnreachableError
from dali_feed.external_sources import KafkaStream
from dali_feed.external_sources.kafka.cluster import Identity
from dali_feed.external_sources.kafka.connection import Connection
from dali_feed.external_sources.kafka.live_reader import MUCH, LookoutAnswer, Overdue, StreamReader
from dali_feed.external_sources.kafka.rows import Decoding
from dali_feed.testing import publish

INF = float("inf")


def test_records_that_are_gone(kafka: Kafka) -> None:
    """What comes next and was deleted ends the stream with its coordinates; nothing is jumped over, ever."""
    kafka.publish(kafka.topic, [(value(i), i) for i in range(20)], partitions=1)
    kafka.delete_records(kafka.topic, 0, 10)
    source = KafkaStream(kafka.topic, kafka.servers)
    reader = source.live(source.mark({0: 5}))
    said = rf"{kafka.topic}\[0\]@5: this offset comes next, but the broker holds 10..19: retention"
    for _ in range(2):  # also of whoever catches and goes on
        with pytest.raises(DataLostError, match=said):
            gather(reader, lambda found: len(found) > 0)
    reader.close()


def test_a_topic_that_is_cut_or_gone(real_kafka: Kafka) -> None:
    """An offset behind the end, a topic that is deleted, one made anew under a stream or a mark: each is named."""
    kafka = real_kafka
    assert isinstance(kafka.cluster, Cluster)
    kafka.publish(kafka.topic, [(value(i), i) for i in range(20)], partitions=1)
    source = KafkaStream(kafka.topic, kafka.servers, start="earliest")
    reader = source.live(source.mark({0: 30}))
    with pytest.raises(SourceChangedError, match=r"\[0\]@30: this offset comes next, but the partition ends at 20"):
        gather(reader, lambda found: len(found) > 0)
    reader.close()
    readers = [source.live(), source.live()]
    for reader in readers:
        found = gather(reader, lambda found: found.position == {0: 20})
    mark = source.mark(found.position)
    kafka.cluster.delete(kafka.topic)
    with pytest.raises(SourceChangedError, match=r"\[0\]@20: it is no longer at|topic was deleted"):
        gather(readers[0], lambda found: len(found) > 0)
    kafka.publish(kafka.topic, [(b"new", i) for i in range(40)], partitions=1)
    with pytest.raises(SourceChangedError, match="deleted"):
        gather(readers[1], lambda found: len(found) > 0)
    with pytest.raises(SourceChangedError, match="deleted and made again"):
        KafkaStream(kafka.topic, kafka.servers).live(mark)
    for reader in readers:
        reader.close()
    with pytest.raises(SourceNotFoundError, match="the topic must exist"):
        KafkaStream(f"{kafka.topic}-no", kafka.servers).live()


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["reset", "stuck", "down for 5 s"])
def test_a_stream_goes_on_behind_an_outage(link_broker: RealBroker, fault: str) -> None:
    """Connections reset, connections that give nothing more, a broker away: what is produced meanwhile comes, once."""
    kafka = Kafka("real", link_broker)
    kafka.publish(kafka.topic, [(value(i), i) for i in range(20)], partitions=2)
    with Proxy(*link_broker.link_ports) as link:
        source = KafkaStream(
            kafka.topic, link_broker.link_servers, start="earliest", timeout=4 if fault == "stuck" else 30
        )
        reader = source.live()
        found = gather(reader, lambda found: len(found) == 20)
        back = threading.Timer(5, link.up)
        if fault == "reset":
            link.cut()
        elif fault == "stuck":
            link.hold()
        else:
            link.down()
            back.start()
        publish(kafka.servers, kafka.topic, [(value(i), i) for i in range(20, 40)])
        gather(reader, lambda found: len(found) == 40, found)
        assert found.labels == list(range(40))
        if back.is_alive():
            back.join()
        reader.close()


@pytest.mark.slow
def test_an_outage_is_named_and_silence_is_not_one(link_broker: RealBroker) -> None:
    """No record for longer than `timeout`, or a loop that takes its time, is no error; a broker that is away is one."""
    kafka = Kafka("real", link_broker)
    kafka.publish(kafka.topic, [(bytes(60_000), i) for i in range(400)], partitions=1)  # more than is fetched ahead
    with Proxy(*link_broker.link_ports) as link:
        reader = KafkaStream(kafka.topic, link_broker.link_servers, start="earliest", timeout=1).live()
        found = gather(reader, lambda found: len(found) > 0, records=1)
        time.sleep(3)  # the loop's
        gather(reader, lambda found: len(found) == 400, found)
        until = time.monotonic() + 3
        while time.monotonic() < until:
            assert not len(reader.poll(1, INF, 0.1).block.ids)
        link.down()
        with pytest.raises(SourceUnreachableError, match=rf"{kafka.topic}\[0\]@400: .*{link_broker.link_servers}"):
            gather(reader, lambda found: len(found) > 400, found)
        reader.close()


def test_who_is_late() -> None:
    """A partition is late from when its turn had come, until it moves; a queue that is never empty delays that."""
    overdue, at = Overdue(), {0: 5, 1: 7}
    look = LookoutAnswer(0.0, 2, {0: 5, 1: 9}, {})
    overdue.looked(look, at, 0, 1.0)
    assert overdue.longest(50.0) == (-1, 0.0)
    overdue.empty(at, 50.0)
    overdue.empty(at, 60.0)
    assert overdue.longest(62.0) == (1, 12.0)
    assert [overdue.due(1), overdue.due(1)] == [True, False]
    overdue.looked(look, at | {1: 8}, 0, 63.0)  # it has moved, and has still more
    assert overdue.longest(99.0) == (-1, 0.0)
    overdue.looked(look, at | {1: 8}, MUCH + 1, 100.0)
    assert overdue.longest(103.0) == (1, 3.0)
    overdue.looked(look, at | {1: 9}, MUCH + 1, 104.0)
    assert overdue.longest(200.0) == (-1, 0.0)


def test_a_partition_without_a_leader_is_named() -> None:
    """Others may flow meanwhile: where nobody leads it for `timeout` seconds, the stream cannot go on."""
    options = Connection("t", "nowhere:1", 5.0)
    reader, now = StreamReader(options, Decoding(), Identity(), {0: 3, 1: 7}), time.monotonic()
    reader._looked(LookoutAnswer(now, 2, {0: 3}, {1: now - 4}), {})
    with pytest.raises(SourceUnreachableError, match=r"t\[1\]@7: .*the partition has no leader"):
        reader._looked(LookoutAnswer(now, 2, {0: 3}, {1: now - 6}), {})
    reader.close()


def test_an_error_takes_nothing_along(kafka: Kafka) -> None:
    """Records that were copied before a poll failed come again in the next one."""
    kafka.publish(kafka.topic, [(value(i), i) for i in range(6)], partitions=1)
    failed: list[int] = []

    def codec(data: memoryview, _: bytes | None, headers: list[tuple[str, bytes]]) -> dict[str, object]:
        label = int(headers[0][1])
        if label == 4 and not failed:
            failed.append(label)
            raise KeyboardInterrupt
        return {"image": data, "label": label}

    reader, found = KafkaStream(kafka.topic, kafka.servers, start="earliest", codec=codec).live(), Gathered()
    with pytest.raises(KeyboardInterrupt):
        gather(reader, lambda found: len(found) == 6, found)
    gather(reader, lambda found: len(found) == 6, found)
    assert found.labels == list(range(6))
    assert found.position == {0: 6}
    reader.close()
