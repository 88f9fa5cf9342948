"""Single records into a topic: each future ends, and a transaction is there whole or not at all."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from kit.broker.handle import Kafka
from kit.broker.real import Cluster
from kit.claimed import made
from kit.produced import values_in

from dali_feed.errors import ConfigError, ProduceError, SourceNotFoundError, SourceUnreachableError
from dali_feed.external_sources import Claim, KafkaTopic, Producer
from dali_feed.testing import Broker, Message


def test_a_record_is_where_its_future_says(kafka: Kafka) -> None:
    """Value, key, headers and time arrive, partitions are those asked for, and a coroutine may await them."""
    topic = kafka.create(kafka.topic, 3)

    async def one(producer: Producer) -> Any:
        sent = producer.send(b"c", headers=[("a", b"1"), ("a", None)], partition=2, timestamp=1_600_000_000_000)
        return await asyncio.wrap_future(sent)

    with Producer(topic, kafka.servers) as producer:
        first, second = producer.send(b"a", b"k", partition=1), producer.send(None, b"k", partition=1)
        third = asyncio.run(one(producer))
    assert (first.result(), second.result(), third) == ((1, 0), (1, 1), (2, 0))
    source = KafkaTopic(topic, kafka.servers)
    found = [source.original(p, n) for p, n in ((1, 0), (1, 1), (2, 0))]
    assert [(each.value, each.key) for each in found if each] == [(b"a", b"k"), (None, b"k"), (b"c", None)]
    assert found[2] is not None
    assert list(found[2].headers) == [("a", b"1"), ("a", None)]
    assert _times(kafka, topic, 2) == [1_600_000_000_000]


def _times(kafka: Kafka, topic: str, partition: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": kafka.servers, "group.id": "anybody", "enable.partition.eof": True})
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        times: list[int] = []
        while (message := consumer.poll(60)) is not None and message.error() is None:
            times.append(message.timestamp()[1])
        return times
    finally:
        consumer.close()


def test_keys_and_turns_choose_the_partition(embedded: Kafka) -> None:
    """Equal keys meet; by="turn" makes partitions equally long whatever the keys."""
    topic = embedded.create(embedded.topic, 4)
    with Producer(topic, embedded.servers) as producer:
        places = [producer.send(b"%d" % n, b"key %d" % (n % 3)) for n in range(12)]
    assert all(len({places[n].result().partition for n in range(k, 12, 3)}) == 1 for k in range(3))
    turns = embedded.create(f"{topic}-turns", 4)
    with Producer(turns, embedded.servers, by="turn") as producer:
        places = [producer.send(b"%d" % n, b"one key") for n in range(12)]
    assert [each.result().partition for each in places] == [0, 1, 2, 3] * 3


def test_a_copy_keeps_the_times_of_records(embedded: Kafka) -> None:
    """Those of the first topic, to the millisecond."""
    times = [1_600_000_000_000 + 1000 * n for n in range(5)]
    topic, to = embedded.create(embedded.topic), embedded.create(f"{embedded.topic}-to")
    with Producer(topic, embedded.servers) as producer:
        for n, time in enumerate(times):
            producer.send(b"%d" % n, timestamp=time)
    assert Producer(to, embedded.servers).run(KafkaTopic(topic, embedded.servers), copy=True).tally.records == 5
    assert _times(embedded, to, 0) == times


def test_a_record_that_is_refused_is_its_futures_error(real_broker: Cluster, tmp_path: Path) -> None:
    """The others arrive."""
    topic = f"refused-{tmp_path.name}"
    real_broker.create(topic, 1, {"max.message.bytes": "20000"})
    with Producer(topic, real_broker.servers, config={"linger.ms": 0}) as producer:
        small, large = producer.send(b"small"), producer.send(os.urandom(30_000))
        producer.flush()
        last = producer.send(b"last")
    assert [small.result().offset, last.result().offset] == [0, 1]
    with pytest.raises(ProduceError, match=f"^{topic}: the broker refuses a record: larger than max.message.bytes"):
        large.result()


def test_a_partition_that_there_is_not_is_an_error_of_its_own(kafka: Kafka) -> None:
    """It names the partitions that there are, and the producer goes on."""
    topic = kafka.create(kafka.topic, 2)
    with Producer(topic, kafka.servers) as producer:
        for wrong in (2, -1):
            with pytest.raises(ConfigError, match=rf"^{topic}: partition must lie in 0\.\.1; found {wrong}$"):
                producer.send(b"x", partition=wrong)
        delivered = producer.send(b"x", partition=1)
    assert delivered.result() == (1, 0)


def test_no_such_topic(kafka: Kafka) -> None:
    """The error names one that is called alike; none is made."""
    kafka.create(kafka.topic)
    for _ in range(2):
        with pytest.raises(SourceNotFoundError, match=rf"did you mean {kafka.topic}\b"):
            Producer(kafka.topic + "x", kafka.servers).send(b"value")


def test_a_silent_broker_ends_waits_and_futures(embedded: Kafka) -> None:
    """`flush` raises after the timeout, and so does the future; closing drops what is left."""
    topic, cluster = embedded.create(embedded.topic), embedded.cluster
    assert isinstance(cluster, Broker)
    producer = Producer(topic, embedded.servers, timeout=3.0)
    producer.send(b"first").result(60)
    cluster.down()
    try:
        sent = producer.send(b"second")
        with pytest.raises(SourceUnreachableError, match=f"^{topic}: the broker must answer"):
            producer.flush()
        producer.close()
        assert sent.exception(60) is not None
    finally:
        cluster.up()
    assert producer.send(b"third").result(60).partition == 0  # it connects anew
    producer.close()


def test_large_values_lie_in_the_folder(embedded: Kafka, tmp_path: Path) -> None:
    """As those of a run do; what is small stays in the topic."""
    folder, topic = made(tmp_path), embedded.create(embedded.topic)
    with Producer(topic, embedded.servers, claim=Claim(folder, 10)) as producer:
        producer.send(b"small", headers=[("label", b"1")])
        producer.send(b"a large value", headers=[("label", b"2")])
    assert values_in(embedded.servers, topic) == [[b"small", b""]]
    assert [path.read_bytes() for path in folder.rglob("*") if path.is_file()] == [b"a large value"]


def test_a_transaction_is_there_whole_or_not_at_all(real_kafka: Kafka) -> None:
    """With the offsets of what its records were made of; one that an exception leaves has left nothing."""
    source, topic = real_kafka.create(f"{real_kafka.topic}-from", 1), real_kafka.create(real_kafka.topic, 1)
    real_kafka.publish(source, [Message(b"%d" % n, partition=0) for n in range(3)])
    group = {"bootstrap.servers": real_kafka.servers, "group.id": topic, "auto.offset.reset": "earliest"}
    consumer = Consumer({**group, "enable.auto.commit": False})
    consumer.subscribe([source])
    message = consumer.poll(60)
    assert message is not None
    with Producer(topic, real_kafka.servers, transactional_id=topic) as producer:
        with producer.transaction(consumer) as offsets:
            producer.send(message.value())
            offsets.append(TopicPartition(source, 0, 1))
        with pytest.raises(ZeroDivisionError), producer.transaction():
            producer.send(b"%d" % (1 // len(producer.send(b"never").result(60)[2:])))
        with producer.transaction():
            producer.send(b"last")
        with pytest.raises(ConfigError, match=r"send\(\) must be called in `with producer.transaction"):
            producer.send(b"outside")
        assert producer.run(KafkaTopic(source, real_kafka.servers), copy=True).tally.records == 3  # by the same name
    assert values_in(real_kafka.servers, topic) == [[b"0", b"last", b"0", b"1", b"2"]]
    (at,) = consumer.committed([TopicPartition(source, 0)], 60)
    assert at.offset == 1
    consumer.close()
    with (
        pytest.raises(ConfigError, match="a transaction needs transactional_id="),
        Producer(topic, real_kafka.servers).transaction(),
    ):
        pass


def test_letters_that_somebody_else_wrote_are_read_as_far_as_they_go(embedded: Kafka) -> None:
    """A number of thousands of digits is none; a record that is no letter is passed over."""
    topic = embedded.create(embedded.topic)
    numbers = [(f"__connect.errors.{name}", b"9" * 5000) for name in ("partition", "offset")]
    headers = (("dali_feed.where", b"t[0]@1"), *numbers, ("dali_feed.sample", None))
    with Producer(topic, embedded.servers) as producer:
        producer.send(b"x", headers=headers)
        producer.send(b"no letter")
    (letter,) = producer.read()
    assert (letter.where, letter.partition, letter.position, letter.sample) == ("t[0]@1", -1, -1, -1)
