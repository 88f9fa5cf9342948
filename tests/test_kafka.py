"""KafkaTopic and its reader, on the embedded and on the real broker."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
from broker.handle import Kafka
from broker.real import ALICE, PASSWORD, RealBroker, free_ports
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from dali_feed.errors import (
    ClosedError,
    ConfigError,
    DataLostError,
    SourceChangedError,
    SourceDeniedError,
    SourceEmptyError,
    SourceNotFoundError,
    SourceUnreachableError,
    StateError,
)
from dali_feed.external_sources.kafka import KafkaTopic
from dali_feed.external_sources.slabs import SlabPool
from dali_feed.records import Block, Extents, pack_ids
from dali_feed.testing import Message, publish


def value(i: int) -> bytes:
    """Bytes that only record i has, of a length that only few others have."""
    return b"%06d" % i * (1 + i % 37)


def payloads(block: Block) -> list[bytes | None]:
    """The payloads as bytes."""
    return [None if view is None else bytes(view) for view in block.payloads]


def read(source: KafkaTopic, extents: Extents) -> Block:
    """One read of a new reader."""
    reader = source.reader()
    try:
        return reader.read(extents)
    finally:
        reader.close()


def rows(*runs: tuple[int, int, int]) -> Extents:
    """Extents of (partition, start, stop) runs."""
    return Extents(*(np.array(column, np.int64) for column in zip(*runs, strict=True)))


def test_roundtrip_gives_values_labels_and_ids(kafka: Kafka) -> None:
    """Every published record comes back once, under its partition and offset, with its label."""
    placed = kafka.publish(kafka.topic, [(value(i), i) for i in range(100)], partitions=3)
    source = KafkaTopic(kafka.topic, kafka.servers)
    snapshot = source.snapshot()
    assert (len(snapshot), snapshot.names[2], snapshot.interleaved) == (100, f"{kafka.topic}[2]", True)
    block = read(source, Extents(np.arange(3), snapshot.starts, snapshot.stops))
    order = sorted(range(100), key=lambda i: placed[i])
    assert payloads(block) == [value(i) for i in order]
    assert block.fields["label"].tolist() == order
    assert block.fields["label"].dtype == np.int64
    assert block.ids.tolist() == [int(pack_ids(*placed[i])) for i in order]
    assert not block.faults
    assert source.where(2, 7) == f"{kafka.topic}[2]@7"


def test_random_extents_equal_sequential_ones(kafka: Kafka) -> None:
    """Extents read in any order, several at a time, adjacent or not, hold what their offsets hold."""
    placed = kafka.publish(kafka.topic, [(value(i), i) for i in range(900)], partitions=3)
    held = {place: i for i, place in enumerate(placed)}
    runs = [(p, a, min(a + 16, 300)) for p in range(3) for a in range(0, 300, 16)]
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(len(runs)) if seed else np.arange(len(runs))
        reader = KafkaTopic(kafka.topic, kafka.servers).reader()
        for k in range(0, len(runs), 3):
            chosen = [runs[n] for n in order[k : k + 3]]
            block = reader.read(rows(*chosen))
            want = [held[p, o] for p, a, b in chosen for o in range(a, b)]
            assert block.fields["label"].tolist() == want
            assert payloads(block) == [value(i) for i in want]
            block.lease.release()
        reader.close()


def test_overlapping_and_repeated_extents_are_read_as_asked(kafka: Kafka) -> None:
    """A run that goes back, repeats or overlaps the last one in the same partition is read again in full."""
    kafka.publish(kafka.topic, [(value(i), i) for i in range(60)], partitions=1)
    reader = KafkaTopic(kafka.topic, kafka.servers).reader()
    for a, b in [(10, 20), (10, 20), (15, 30), (30, 31), (31, 60), (0, 60), (5, 5), (59, 60)]:
        assert reader.read(Extents.one(0, a, b)).fields["label"].tolist() == list(range(a, b))
    reader.close()


def test_holes_are_absent_rows(real_kafka: Kafka) -> None:
    """Control records and aborted data leave rows without payload, at the end of a partition too, and shift nothing."""
    kafka = real_kafka
    kafka.create(kafka.topic)
    producer = Producer({"bootstrap.servers": kafka.servers, "transactional.id": kafka.topic})
    producer.init_transactions(60)
    want: list[bytes | None] = []
    for n, commit in enumerate([True, False, True, False]):
        producer.begin_transaction()
        for i in range(5):
            producer.produce(kafka.topic, value(10 * n + i), headers=[("label", b"%d" % i)])
            want.append(value(10 * n + i) if commit else None)
        producer.flush(60)
        (producer.commit_transaction if commit else producer.abort_transaction)(60)
        want.append(None)  # the control record
    source = KafkaTopic(kafka.topic, kafka.servers)
    snapshot = source.snapshot()
    assert snapshot.stops.tolist() == [24]
    assert payloads(read(source, Extents.one(0, 0, 24))) == want
    reader = source.reader()
    for a, b in [(6, 11), (22, 24), (4, 7), (7, 13), (13, 24), (0, 6)]:  # some end in a hole or are nothing else
        assert payloads(reader.read(Extents.one(0, a, b))) == want[a:b]
    reader.close()


def test_open_transactions_are_not_in_the_snapshot(real_kafka: Kafka) -> None:
    """A snapshot ends at the last stable offset, so a read never waits for somebody's commit."""
    kafka = real_kafka
    kafka.publish(kafka.topic, [(b"x", 1)] * 3, partitions=1)
    producer = Producer({"bootstrap.servers": kafka.servers, "transactional.id": kafka.topic})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(kafka.topic, b"open")
    producer.flush(60)
    assert KafkaTopic(kafka.topic, kafka.servers).snapshot().stops.tolist() == [3]
    producer.abort_transaction(60)


def test_bad_records_are_rows_with_faults(kafka: Kafka) -> None:
    """A bad or missing label, a tombstone: faults of their rows, with the found value; the others stay whole."""
    odd = [b"x", b"1_0", b" 7", b"", b"99999999999999999999", b"-3", b"00012", b"1" * 50]
    records = [Message(b"img", headers=(("label", text),)) for text in odd]
    records += [Message(b"img"), Message(None, key=b"k", headers=(("label", b"1"),)), Message(b"")]
    records += [Message(b"img", headers=(("label", b"1"), ("other", b"x"), ("label", b"2")))]
    kafka.publish(kafka.topic, records, partitions=1)
    block = read(KafkaTopic(kafka.topic, kafka.servers), Extents.one(0, 0, len(records)))
    assert sorted(block.faults) == [0, 1, 2, 3, 4, 7, 8, 9, 10]
    assert block.faults[0] == "header label: a decimal number is needed; found b'x'"
    assert "no such header" in block.faults[8]
    assert "tombstone" in block.faults[9]
    assert len(block.faults[7]) < 120
    assert block.fields["label"][[5, 6, 11]].tolist() == [-3, 12, 2]
    assert payloads(block) == [b"img"] * 9 + [b"", b"", b"img"]


def test_without_label(kafka: Kafka) -> None:
    """label=None asks no header and gives no field; a zero-byte payload is a payload."""
    kafka.publish(kafka.topic, [(b"a", None), (b"", None)], partitions=1)
    source = KafkaTopic(kafka.topic, kafka.servers, label=None)
    block = read(source, Extents.one(0, 0, 2))
    assert (source.fields, block.fields, block.faults, payloads(block)) == ((), {}, {}, [b"a", b""])


def test_codec_gives_image_and_fields(kafka: Kafka) -> None:
    """A codec's image, label and fields arrive; what it raises is that record's fault with the exception's text."""

    def codec(data: memoryview, key: bytes | None, headers: list[tuple[str, bytes]]) -> dict[str, object]:
        if key == b"bad":
            msg = "no such class: dragon"
            raise LookupError(msg)
        if key == b"short":
            return {"image": data}
        return {"image": data[2:], "label": data[0], "key": key, "n": len(headers)}

    keys = [b"a", b"bad", b"short", None]
    kafka.publish(kafka.topic, [Message(b"\x05-image", key=k, headers=(("h", b"1"),)) for k in keys], partitions=1)
    source = KafkaTopic(kafka.topic, kafka.servers, codec=codec, fields=("label", "key", "n"))
    block = read(source, Extents.one(0, 0, 4))
    assert source.fields == ("label", "key", "n")
    assert payloads(block) == [b"image", b"\x05-image", b"\x05-image", b"image"]
    assert block.faults == {1: "codec: LookupError: no such class: dragon", 2: "codec: KeyError: 'label' is missing"}
    assert block.fields["label"].tolist() == [5, 0, 0, 5]
    assert block.fields["key"] == [b"a", None, None, None]
    assert block.fields["n"] == [1, None, None, 1]


def test_payloads_lie_in_the_given_slabs(kafka: Kafka) -> None:
    """Blocks take their memory from the caller's pool and give it back with the lease, after a failure too."""
    kafka.publish(kafka.topic, [(value(i), i) for i in range(20)], partitions=1)
    pool, stop = SlabPool(1 << 16), threading.Event()
    reader = KafkaTopic(kafka.topic, kafka.servers).reader(pool, stop)
    block = reader.read(Extents.one(0, 0, 20))
    assert pool.leased == 1 << 16
    block.lease.release()
    threading.Timer(0.2, stop.set).start()
    with pytest.raises(ClosedError):
        reader.read(Extents.one(0, 0, 21))
    assert pool.leased == 0
    assert pool.peak == 1 << 16
    reader.close()


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


def test_unreachable_broker_is_named_and_nothing_is_printed() -> None:
    """Nobody listens: the address and the seconds are in the error, and librdkafka writes nothing to stderr."""
    port = free_ports(1)[0]
    code = (
        "from dali_feed.external_sources import KafkaTopic\nfrom dali_feed.records import Extents\n"
        f"source = KafkaTopic('t', '127.0.0.1:{port}', timeout=0.7)\n"
        "for ask in (source.snapshot, lambda: source.reader().read(Extents.one(3, 41, 50))):\n"
        "    try: ask()\n"
        "    except Exception as error: print(type(error).__name__, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    lines = done.stdout.splitlines()
    for line, subject in zip(lines, ("t:", "t[3]@41:"), strict=True):
        assert line.startswith(f"SourceUnreachableError {subject}")
        assert f"127.0.0.1:{port} did not for 0." in line
        assert "Connection refused" in line
    assert "[thrd:" not in done.stderr
    assert not [line for line in done.stderr.splitlines() if "connecting anew" not in line]


def test_deleted_records_are_data_lost(kafka: Kafka) -> None:
    """Offsets below the low watermark: a read and a pin both say which partition and which offsets are gone."""
    kafka.publish(kafka.topic, [Message(b"x", headers=(("label", b"1"),), partition=1)] * 30, partitions=2)
    source = KafkaTopic(kafka.topic, kafka.servers)
    pin = source.snapshot().pin
    kafka.delete_records(kafka.topic, 1, 12)
    with pytest.raises(DataLostError, match=rf"{kafka.topic}\[1\]@3: offsets 3\.\.19 .*broker holds 12\.\.29"):
        read(source, Extents.one(1, 3, 20))
    with pytest.raises(DataLostError, match=rf"{kafka.topic}\[1\]@0: offsets 0\.\.11 are gone"):
        source.snapshot(pin)
    assert source.snapshot().starts.tolist() == [0, 12]
    assert payloads(read(source, Extents.one(1, 12, 14))) == [b"x", b"x"]


def test_pin_restores_the_snapshot_after_the_topic_grew(kafka: Kafka) -> None:
    """A pin, through JSON, makes the very same snapshot, whatever was published since; bad pins are refused."""
    kafka.publish(kafka.topic, [(value(i), i) for i in range(40)], partitions=2)
    source = KafkaTopic(kafka.topic, kafka.servers)
    first = source.snapshot()
    pin = json.loads(json.dumps(first.pin))
    kafka.publish(kafka.topic, [(bytes(100_000), 1)] * 4)
    again, grown = source.snapshot(pin), source.snapshot()
    assert (again.fingerprint, again.extent, again.stops.tolist()) == (first.fingerprint, first.extent, [20, 20])
    assert (grown.stops.tolist(), grown.fingerprint != first.fingerprint) == ([22, 22], True)
    with pytest.raises(SourceChangedError, match="now at 22"):
        source.snapshot({**pin, "ends": [20, 25]})
    with pytest.raises(SourceChangedError, match="3 partitions and the topic now 2"):
        source.snapshot({**pin, "starts": [0, 0, 0], "ends": [1, 1, 1]})
    with pytest.raises(StateError):
        source.snapshot({**pin, "topic": "other"})
    with pytest.raises(StateError):
        source.snapshot({"starts": "nonsense"})


def test_extent_size_follows_the_first_records(kafka: Kafka) -> None:
    """An extent is the power of two of positions that comes nearest to 32 MB, and the same each time."""
    kafka.publish(kafka.topic, [(bytes(50_000), 1), (bytes(70_000), 1)] * 4, partitions=2)
    source = KafkaTopic(kafka.topic, kafka.servers)
    found = [(s.record_bytes, s.extent) for s in (source.snapshot(), source.snapshot())]
    assert found == [(60_000, 512), (60_000, 512)]


@pytest.mark.parametrize("end", ["stop", "reads on"])
def test_a_blocked_read_ends_with_the_stop_event(kafka: Kafka, end: str) -> None:
    """A read that waits for records ends with ClosedError at the stop event, or goes on when the records come."""
    kafka.publish(kafka.topic, [(b"x", 1)], partitions=1)
    stop, begun = threading.Event(), threading.Event()
    result: list[Block | Exception] = []
    reader = KafkaTopic(kafka.topic, kafka.servers).reader(None, stop)
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
    unread, used = source.reader(), source.reader()
    used.read(Extents.one(0, 0, 2))
    lost = KafkaTopic("t", f"127.0.0.1:{free_ports(1)[0]}", timeout=0.2).reader()
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
    reader = KafkaTopic(embedded.topic, embedded.servers).reader()
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
    reader = KafkaTopic(embedded.topic, embedded.servers).reader()
    for k in range(0, 180, 60):
        embedded.cluster.down(1)  # type: ignore[union-attr]
        threading.Timer(0.05, embedded.cluster.up, [1]).start()  # type: ignore[union-attr]
        block = reader.read(rows((0, k, k + 60), (1, k, k + 60)))
        assert block.fields["label"].tolist() == [*range(2 * k, 2 * k + 120, 2), *range(2 * k + 1, 2 * k + 120, 2)]
        block.lease.release()
    reader.close()


def test_a_killed_broker_loses_and_repeats_nothing(own_broker: RealBroker) -> None:
    """A kill -9 and a restart in the middle of a read: every row arrives once; no restart: a named error."""
    own_broker.create("t", 2)
    n = 400
    publish(own_broker.servers, "t", [(value(i) + bytes(50_000), i) for i in range(n)])
    source = KafkaTopic("t", own_broker.servers, timeout=60)
    reader = source.reader()
    first = reader.read(rows((0, 0, 20)))
    own_broker.kill()
    back = threading.Thread(target=own_broker.start)
    back.start()
    block = reader.read(rows((0, 20, n // 2), (1, 0, n // 2)))
    back.join()
    labels = first.fields["label"].tolist() + block.fields["label"].tolist()
    assert labels == [*range(0, n, 2), *range(1, n, 2)]
    assert [bytes(view[:6]) for view in block.payloads[-3:] if view] == [value(i)[:6] for i in (395, 397, 399)]
    own_broker.kill()
    impatient = KafkaTopic("t", own_broker.servers, timeout=1).reader()
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
    reader = source.reader()
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
    reader = KafkaTopic(kafka.topic, kafka.servers, timeout=1).reader()
    with pytest.raises(SourceChangedError, match=r"up to 9, and the partition has ended at 3"):
        reader.read(Extents.one(0, 0, 10))
    reader.close()


def test_rights(real_broker: RealBroker) -> None:
    """No Describe, no Read, a wrong password: SourceDeniedError each; Describe and Read are all that is needed."""
    if not isinstance(real_broker, RealBroker):
        pytest.skip("the given broker has users of its own")
    kafka = Kafka("real", real_broker)
    kafka.publish(kafka.topic, [(b"x", 1)] * 3, partitions=1)
    good = {**ALICE, "sasl.password": PASSWORD}

    def grant(operation: AclOperation) -> None:
        rule = AclBinding(
            ResourceType.TOPIC, kafka.topic, ResourcePatternType.LITERAL, "User:alice", "*", operation,
            AclPermissionType.ALLOW,
        )  # fmt: skip
        for made in real_broker.admin.create_acls([rule]).values():
            made.result(30)

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
    grant(AclOperation.DESCRIBE)
    # Metadata and offsets are allowed now, records not.
    with pytest.raises(SourceDeniedError, match=rf"{kafka.topic}\[0\]@0"):
        read(source(), Extents.one(0, 0, 3))
    grant(AclOperation.READ)
    snapshot = until_allowed(source().snapshot)
    assert len(snapshot) == 3  # type: ignore[arg-type]
    assert payloads(read(source(), Extents.one(0, 0, 3))) == [b"x"] * 3


def test_options_that_decide_what_is_read_are_refused() -> None:
    """config= cannot touch offsets, groups or isolation; unknown options and impossible arguments are ConfigErrors."""
    for name in ("auto.offset.reset", "group.id", "enable.auto.commit", "isolation.level", "bootstrap.servers"):
        with pytest.raises(ConfigError, match=name):
            KafkaTopic("t", "h:1", config={name: "x"})
    with pytest.raises(ConfigError, match=r"no\.such\.option"):
        KafkaTopic("t", "h:1", config={"no.such.option": "x"}).snapshot()
    with pytest.raises(ConfigError, match="codec"):
        KafkaTopic("t", "h:1", fields=("label",))
    with pytest.raises(ConfigError, match="label="):
        KafkaTopic("t", "h:1", label="class", codec=lambda v, k, h: {"image": v})
    with pytest.raises(ConfigError, match="topic"):
        KafkaTopic("", "h:1")
    with pytest.raises(TypeError):
        KafkaTopic("t", "h:1", no_such_option=1)  # type: ignore[call-arg]
    assert "secret" not in repr(KafkaTopic("t", "h:1", config={"sasl.password": "secret"}))


def test_two_readers_in_two_threads(kafka: Kafka) -> None:
    """Readers share nothing but the pool: two threads read all extents between them, each right."""
    placed = kafka.publish(kafka.topic, [(value(i), i) for i in range(400)], partitions=4)
    held = {place: i for i, place in enumerate(placed)}
    source, pool = KafkaTopic(kafka.topic, kafka.servers), SlabPool(1 << 16)
    runs = [(p, a, a + 20) for p in range(4) for a in range(0, 100, 20)]
    wrong: list[object] = []

    def work(mine: list[tuple[int, int, int]]) -> None:
        reader = source.reader(pool)
        for p, a, b in mine:
            block = reader.read(Extents.one(p, a, b))
            if payloads(block) != [value(held[p, o]) for o in range(a, b)]:
                wrong.append((p, a, b))
            block.lease.release()
        reader.close()

    threads = [threading.Thread(target=work, args=(runs[k::2],)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    assert pool.leased == 0
