"""Faults under a stream: nothing lost or repeated, or an error that names partition, offset and cure."""

from __future__ import annotations

import threading
import time

import pytest
from kit.broker.handle import Kafka, OpenedStream, value
from kit.broker.proxy import Proxy
from kit.broker.real import Cluster, RealBroker
from kit.streamed import Gathered, gather

from dali_feed.errors import DataLostError, SourceChangedError, SourceNotFoundError, SourceUnreachableError
from dali_feed.external_sources import KafkaStream
from dali_feed.testing import publish

INF = float("inf")


def test_records_that_are_gone(kafka: Kafka) -> None:
    """What comes next and was deleted ends the stream with its coordinates; nothing is jumped over, ever."""
    kafka.publish(kafka.topic, [(value(i), i) for i in range(20)], partitions=1)
    kafka.delete_records(kafka.topic, 0, 10)
    source = KafkaStream(kafka.topic, kafka.servers)
    reader = OpenedStream(source, source.mark({0: 5}))
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
    reader = OpenedStream(source, source.mark({0: 30}))
    with pytest.raises(SourceChangedError, match=r"\[0\]@30: this offset comes next, but the partition ends at 20"):
        gather(reader, lambda found: len(found) > 0)
    reader.close()
    readers = [OpenedStream(source), OpenedStream(source)]
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
        OpenedStream(KafkaStream(kafka.topic, kafka.servers), mark)
    for reader in readers:
        reader.close()
    with pytest.raises(SourceNotFoundError, match="the topic must exist"):
        OpenedStream(KafkaStream(f"{kafka.topic}-no", kafka.servers))


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
        reader = OpenedStream(source)
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
        reader = OpenedStream(KafkaStream(kafka.topic, link_broker.link_servers, start="earliest", timeout=1))
        found = gather(reader, lambda found: len(found) > 0, records=1)
        other, until = OpenedStream(KafkaStream(kafka.topic, kafka.servers)), time.monotonic() + 3
        while time.monotonic() < until:  # the loop is busy with something else
            other.poll(1, INF, 0.1)
        other.close()
        gather(reader, lambda found: len(found) == 400, found)
        until = time.monotonic() + 3
        while time.monotonic() < until:
            assert not len(reader.poll(1, INF, 0.1).block.ids)
        link.down()
        with pytest.raises(SourceUnreachableError, match=rf"{kafka.topic}\[0\]@400: .*{link_broker.link_servers}"):
            gather(reader, lambda found: len(found) > 400, found)
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

    reader, found = OpenedStream(KafkaStream(kafka.topic, kafka.servers, start="earliest", codec=codec)), Gathered()
    with pytest.raises(KeyboardInterrupt):
        gather(reader, lambda found: len(found) == 6, found)
    gather(reader, lambda found: len(found) == 6, found)
    assert found.labels == list(range(6))
    assert found.position == {0: 6}
    reader.close()
