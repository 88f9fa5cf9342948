"""What goes wrong with a topic, a broker or its reader, and the error that says so."""

from __future__ import annotations

import multiprocessing
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest
from confluent_kafka.admin import AclOperation
from kit.broker.handle import Kafka, Opened, labels, payloads, read, rows, value
from kit.broker.real import ALICE, PASSWORD, RealBroker, free_ports
from kit.inside import Block, Extents
from kit.limits import LONG

from dali_feed.errors import (
    ClosedError,
    ConfigError,
    DataLostError,
    SourceChangedError,
    SourceDeniedError,
    SourceEmptyError,
    SourceNotFoundError,
    SourceUnreachableError,
)
from dali_feed.external_sources import KafkaTopic
from dali_feed.testing import Message, publish

pytestmark = pytest.mark.slow


def test_missing_topic_names_similar_ones_and_is_not_created(kafka: Kafka) -> None:
    """A missing topic is an error that lists near names, however often it is asked for."""
    kafka.create(kafka.topic)
    for _ in range(2):
        with pytest.raises(SourceNotFoundError, match=kafka.topic):
            KafkaTopic(kafka.topic + "x", kafka.servers).snapshot()


def test_empty_topic(kafka: Kafka) -> None:
    """A topic without records is an error of its own."""
    kafka.create(kafka.topic, 2)
    with pytest.raises(SourceEmptyError, match="2 partitions are empty"):
        KafkaTopic(kafka.topic, kafka.servers).snapshot()


@pytest.mark.usefixtures("warm_children")
def test_unreachable_broker_is_named_and_nothing_is_printed() -> None:
    """Nobody listens: the address and the seconds are in the error, and librdkafka writes nothing to stderr."""
    port = free_ports(1)[0]
    code = (
        "from dali_feed.external_sources import KafkaTopic\nfrom kit.inside import Extents\n"
        "from kit.broker.handle import Opened\n"
        f"source = KafkaTopic('t', '127.0.0.1:{port}', timeout=0.7)\n"
        "for ask in (source.snapshot, lambda: Opened(source).read(Extents.one(3, 41, 50))):\n"
        "    try: ask()\n"
        "    except Exception as error: print(type(error).__name__, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=LONG)
    lines = done.stdout.splitlines()
    for line, subject in zip(lines, ("t:", "t[3]@41:"), strict=True):
        assert line.startswith(f"SourceUnreachableError {subject}")
        assert re.search(rf"127\.0\.0\.1:{port} did not answer for \d+\.\d s: ", line)
        assert "Connection refused" in line
    assert "[thrd:" not in done.stderr
    assert not [line for line in done.stderr.splitlines() if "connecting again" not in line]


def test_deleted_records_are_data_lost(kafka: Kafka) -> None:
    """Offsets below the low watermark: a read and a pin both say which partition and which offsets are gone."""
    kafka.publish(kafka.topic, [Message(b"x", headers=(("label", b"1"),), partition=1)] * 30, partitions=2)
    source = KafkaTopic(kafka.topic, kafka.servers)
    pin = source.snapshot().pin
    kafka.delete_records(kafka.topic, 1, 12)
    with pytest.raises(DataLostError, match=rf"{kafka.topic}\[1\]@3: .* offsets 3\.\.19, .*broker holds 12\.\.29"):
        read(source, Extents.one(1, 3, 20))
    with pytest.raises(DataLostError, match=rf"{kafka.topic}\[1\]@0: offsets 0\.\.11 are gone"):
        source.snapshot(pin)
    assert source.snapshot().starts.tolist() == [0, 12]
    assert payloads(read(source, Extents.one(1, 12, 14))) == [b"x", b"x"]


@pytest.mark.parametrize("end", ["stop", "reads on"])
def test_a_blocked_read_ends_with_the_stop_event(kafka: Kafka, end: str) -> None:
    """A read that waits for records ends with ClosedError at the stop event, or goes on when the records come."""
    kafka.publish(kafka.topic, [(b"x", 1)], partitions=1)
    stop, begun = threading.Event(), threading.Event()
    result: list[Block | Exception] = []
    reader = Opened(KafkaTopic(kafka.topic, kafka.servers), stop=stop)
    reader.read(Extents.one(0, 0, 1))

    def work() -> None:
        begun.set()
        try:
            result.append(reader.read(Extents.one(0, 0, 2)))
        except ClosedError as error:
            result.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert begun.wait(10)
    if end == "stop":
        stop.set()
    else:
        publish(kafka.servers, kafka.topic, [(b"y", 2)])
    thread.join(20)
    assert not thread.is_alive()
    (found,) = result
    assert isinstance(found, ClosedError) if end == "stop" else payloads(found) == [b"x", b"y"]  # type: ignore[arg-type]
    reader.close()


def test_close_in_any_state(kafka: Kafka) -> None:
    """close() before, between and after reads, twice, and with a broker that never answered; then reads refuse."""
    kafka.publish(kafka.topic, [(b"x", 1)] * 3, partitions=1)
    source = KafkaTopic(kafka.topic, kafka.servers)
    unread, used = Opened(source), Opened(source)
    used.read(Extents.one(0, 0, 2))
    lost = Opened(KafkaTopic("t", f"127.0.0.1:{free_ports(1)[0]}", timeout=0.2))
    with pytest.raises(SourceUnreachableError):
        lost.read(Extents.one(0, 0, 1))
    for reader in (unread, used, lost):
        begin = time.monotonic()
        reader.close()
        reader.close()
        assert time.monotonic() - begin < 2.0  # the contract's deadline, not a speed
        with pytest.raises(ClosedError):
            reader.read(Extents.one(0, 0, 1))


def test_a_forked_child_is_refused(embedded: Kafka) -> None:
    """A reader used or closed after fork refuses or returns, and neither hangs nor takes the parent's records."""
    embedded.publish(embedded.topic, [(b"%d" % i, i) for i in range(10)], partitions=1)
    reader = Opened(KafkaTopic(embedded.topic, embedded.servers))
    reader.read(Extents.one(0, 0, 2))
    context = multiprocessing.get_context("fork")
    said = context.SimpleQueue()

    def child() -> None:
        nonlocal reader
        try:
            reader.read(Extents.one(0, 2, 5))
        except ConfigError as error:
            said.put(str(error))
        reader.close()
        del reader  # the parent's consumer must outlive it
        said.put("out")

    process = context.Process(target=child)
    process.start()
    process.join(20)
    alive = process.is_alive()
    process.kill()
    assert not alive
    assert "forked" in said.get()
    assert said.get() == "out"
    assert payloads(reader.read(Extents.one(0, 2, 4))) == [b"2", b"3"]
    reader.close()


def test_a_broker_that_goes_and_comes_back_loses_and_repeats_nothing(embedded: Kafka) -> None:
    """Connections cut between and in reads: librdkafka reconnects and the rows are what they are."""
    embedded.publish(embedded.topic, [(value(i) * 20, i) for i in range(600)], partitions=2)
    reader = Opened(KafkaTopic(embedded.topic, embedded.servers))
    for k in range(0, 180, 60):
        embedded.cluster.down(1)  # type: ignore[union-attr]
        threading.Timer(0.05, embedded.cluster.up, [1]).start()  # type: ignore[union-attr]
        block = reader.read(rows((0, k, k + 60), (1, k, k + 60)))
        assert labels(block) == [*range(2 * k, 2 * k + 120, 2), *range(2 * k + 1, 2 * k + 120, 2)]
        block.lease.release()
    reader.close()


def test_a_killed_broker_loses_and_repeats_nothing(own_broker: RealBroker) -> None:
    """A kill -9 and a restart in the middle of a read: every row arrives once; no restart: a named error."""
    own_broker.create("t", 2)
    n = 400
    publish(own_broker.servers, "t", [(value(i) + bytes(50_000), i) for i in range(n)])
    source = KafkaTopic("t", own_broker.servers, timeout=60)
    reader = Opened(source)
    first = reader.read(rows((0, 0, 20)))
    own_broker.kill()
    back = threading.Thread(target=own_broker.start)
    back.start()
    block = reader.read(rows((0, 20, n // 2), (1, 0, n // 2)))
    back.join()
    numbers = labels(first) + labels(block)
    assert numbers == [*range(0, n, 2), *range(1, n, 2)]
    assert [each[:6] for each in payloads(block)[-3:] if each] == [value(i)[:6] for i in (395, 397, 399)]
    own_broker.kill()
    impatient = Opened(KafkaTopic("t", own_broker.servers, timeout=1))
    with pytest.raises(SourceUnreachableError, match=rf"t\[1\]@7.*{own_broker.servers}"):
        impatient.read(Extents.one(1, 7, 9))
    for each in (reader, impatient):
        each.close()


def test_a_deleted_topic_is_named(real_kafka: Kafka) -> None:
    """A topic that is deleted while a reader stands in it is SourceChangedError, not a wait."""
    kafka = real_kafka
    kafka.publish(kafka.topic, [(b"x", 1)] * 3, partitions=1)
    source = KafkaTopic(kafka.topic, kafka.servers, timeout=20)
    pin = source.snapshot().pin
    reader = Opened(source)
    reader.read(Extents.one(0, 0, 2))
    kafka.cluster.delete(kafka.topic)  # type: ignore[union-attr]
    with pytest.raises(SourceChangedError, match=rf"{kafka.topic}\[0\]@0"):
        reader.read(Extents.one(0, 0, 3))
    reader.close()
    with pytest.raises(SourceNotFoundError):
        source.snapshot(pin)


def test_a_run_beyond_the_end_says_so(kafka: Kafka) -> None:
    """A partition that ends before the run does, for as long as the timeout, was truncated: SourceChangedError."""
    kafka.publish(kafka.topic, [(b"x", 1)] * 3, partitions=1)
    reader = Opened(KafkaTopic(kafka.topic, kafka.servers, timeout=3))
    with pytest.raises(SourceChangedError, match=r"up to 9, but the partition has ended at 3"):
        reader.read(Extents.one(0, 0, 10))
    reader.close()


def test_rights(real_broker: RealBroker) -> None:
    """No Describe, no Read, a wrong password: SourceDeniedError each; Describe and Read are all that is needed."""
    if not isinstance(real_broker, RealBroker):
        pytest.skip("the given broker has users of its own")
    kafka = Kafka("real", real_broker)
    kafka.publish(kafka.topic, [(b"x", 1)] * 3, partitions=1)
    good = {**ALICE, "sasl.password": PASSWORD}

    def source(config: dict[str, str] = good) -> KafkaTopic:
        return KafkaTopic(kafka.topic, real_broker.sasl_servers, config=config, timeout=10)

    def until_allowed(ask: Callable[[], object]) -> object:
        deadline = time.monotonic() + 20  # an ACL reaches the broker a moment after it was made
        while True:
            try:
                return ask()
            except SourceDeniedError:
                if time.monotonic() > deadline:
                    raise

    with pytest.raises(SourceDeniedError, match="Authentication"):
        source({**good, "sasl.password": "wrong"}).snapshot()
    with pytest.raises(SourceDeniedError, match=kafka.topic):
        source().snapshot()
    real_broker.allow(kafka.topic, AclOperation.DESCRIBE)
    # Metadata and offsets are allowed now, records not.
    with pytest.raises(SourceDeniedError, match=rf"{kafka.topic}\[0\]@0"):
        read(source(), Extents.one(0, 0, 3))
    real_broker.allow(kafka.topic, AclOperation.READ)
    snapshot = until_allowed(source().snapshot)
    assert len(snapshot) == 3  # type: ignore[arg-type]
    assert payloads(read(source(), Extents.one(0, 0, 3))) == [b"x"] * 3
