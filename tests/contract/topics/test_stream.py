"""KafkaStream and its reader: what is given, in which order, where it goes on, and faults under it."""

from __future__ import annotations

import functools
import json
import threading
import time
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
import torch
from confluent_kafka import Producer
from confluent_kafka.admin import NewPartitions
from kit.broker.handle import Kafka, OpenedStream, in_transactions, payloads, read, value
from kit.broker.proxy import Proxy
from kit.broker.real import Cluster, RealBroker
from kit.images import jpeg
from kit.inside import Extents, Pace
from kit.streamed import Gathered, gather, streamed
from torchvision.transforms import v2

from dali_feed import DataLoader, Tuning
from dali_feed.columns import Number
from dali_feed.errors import (
    ClosedError,
    ConfigError,
    DataLostError,
    SourceChangedError,
    SourceError,
    SourceNotFoundError,
    SourceUnreachableError,
    StateError,
)
from dali_feed.external_sources import KafkaStream
from dali_feed.testing import Broker, Message, assert_resumes_anywhere, publish

INF = float("inf")


def _grow(kafka: Kafka, partitions: int) -> None:
    for each in kafka.cluster.admin.create_partitions([NewPartitions(kafka.topic, partitions)]).values():  # type: ignore[union-attr]
        each.result(60)


def test_all_that_is_there_and_then_what_comes(kafka: Kafka) -> None:
    """From the earliest record on each comes once, in its partition's order, with offset and label; new ones follow."""
    placed = kafka.publish(kafka.topic, [(value(i), i) for i in range(90)], partitions=3)
    reader = OpenedStream(KafkaStream(kafka.topic, kafka.servers, start="earliest"))
    found = gather(reader, lambda found: len(found) == 90, records=16)
    want: dict[int, list[tuple[int, bytes, int]]] = {p: [] for p in range(3)}
    for i, (partition, offset) in enumerate(placed):
        want[partition].append((offset, value(i), i))
    assert found.records == want
    assert found.position == {0: 30, 1: 30, 2: 30}
    kafka.publish(kafka.topic, [(value(i), i) for i in range(90, 93)])
    assert gather(reader, lambda found: len(found) == 93, found).labels == list(range(93))
    reader.close()
    with pytest.raises(ClosedError):
        reader.poll(1, INF, 0)


def test_latest_is_where_the_topic_ends_when_the_reader_is_made(kafka: Kafka) -> None:
    """What was there is not given, what comes after `live` is; the first block says where every partition stands."""
    kafka.publish(kafka.topic, [(value(i), i) for i in range(8)], partitions=2)
    reader = OpenedStream(KafkaStream(kafka.topic, kafka.servers))
    kafka.publish(kafka.topic, [Message(value(8), None, ((("label"), b"8"),), 1)])
    found = gather(reader, lambda found: len(found) == 1)
    assert (found.records, found.position) == ({1: [(4, value(8), 8)]}, {0: 4, 1: 5})
    reader.close()
    reader = OpenedStream(KafkaStream(kafka.topic, kafka.servers))
    first, second = reader.poll(4, INF, 0), reader.poll(4, INF, 0)
    assert (len(first.block.ids), first.position, second.position) == (0, {0: 4, 1: 5}, {})
    reader.close()


def test_a_block_is_full_by_records_or_bytes(kafka: Kafka) -> None:
    """It ends at the last record that fits; one that is larger by itself comes alone; nothing is left out."""
    sizes = [10, 10, 10, 90, 10, 25, 5, 30, 1]
    kafka.publish(kafka.topic, [(bytes(n), k) for k, n in enumerate(sizes)], partitions=1)
    reader = OpenedStream(KafkaStream(kafka.topic, kafka.servers, start="earliest"))
    blocks: list[list[int]] = []
    while sum(map(len, blocks)) < len(sizes):
        got = reader.poll(3, 30, 1.0)
        blocks.append([len(each or b"") for each in payloads(got.block)])
        assert got.position == {0: sum(map(len, blocks))}
    assert blocks == [[10, 10, 10], [90], [10], [25, 5], [30], [1]]
    reader.close()


@pytest.mark.parametrize("worlds", [(1, 2), (3, 2), (2, 5)])
def test_any_world_size_goes_on_from_the_marks_of_any_other(kafka: Kafka, worlds: tuple[int, int]) -> None:
    """Stopped in the middle on every rank, and gone on with at another number of ranks: each record once."""
    before, after = worlds
    kafka.publish(kafka.topic, [(value(i), i) for i in range(120)], partitions=4)
    source = KafkaStream(kafka.topic, kafka.servers, start="earliest")
    marks, seen, ends = [], list[int](), dict[int, int]()
    for rank in range(before):
        reader = OpenedStream(source, rank=rank, world_size=before)
        got = gather(reader, lambda found: len(found) >= 14, records=7)  # the reader has read further than that
        marks.append(json.loads(json.dumps(source.mark(got.position, rank=rank, world_size=before))))
        seen += got.labels
        reader.close()
    source = KafkaStream(kafka.topic, kafka.servers)
    for rank in range(after):
        reader, mine = OpenedStream(source, source.merged(marks), rank=rank, world_size=after), range(rank, 4, after)
        got = gather(reader, functools.partial(_at_end, dict.fromkeys(mine, 30)))
        seen, ends = seen + got.labels, ends | got.position
        reader.close()
    assert sorted(seen) == list(range(120))
    assert ends == dict.fromkeys(range(4), 30)


def _at_end(end: dict[int, int], found: Gathered) -> bool:
    return found.position == end


def test_a_rank_without_partitions_waits_and_takes_up_new_ones(real_kafka: Kafka) -> None:
    """It gives empty blocks in time; a partition that is added is read from its beginning, after a resume too."""
    kafka = real_kafka
    kafka.publish(kafka.topic, [(value(0), 0)], partitions=1)
    source = KafkaStream(kafka.topic, kafka.servers, start="latest")
    first, second = OpenedStream(source, rank=0, world_size=2), OpenedStream(source, rank=1, world_size=2)
    got = second.poll(4, INF, 0.01)
    assert (len(got.block.ids), got.position, first.poll(4, INF, 0).position) == (0, {}, {0: 1})
    old = [source.mark({0: 1}, rank=0, world_size=2), source.mark({}, rank=1, world_size=2)]
    _grow(kafka, 4)
    kafka.publish(kafka.topic, [Message(value(n), None, (("label", b"%d" % n),), n) for n in (1, 2, 3)])
    for reader, want in ((first, {0: 1, 2: 1}), (second, {1: 1, 3: 1})):
        new = gather(reader, functools.partial(_at_end, want), Gathered(position={0: 1} if reader is first else {}))
        assert new.labels == [p for p in want if p]
        reader.close()
    again = streamed(source, 3, at=source.merged(old))
    assert (again.labels, again.position) == ([1, 2, 3], {0: 1, 1: 1, 2: 1, 3: 1})
    with pytest.raises(StateError, match=r"rank 0 of 1; it lacks 1, 3, .*; give the states of ranks 1"):
        OpenedStream(source, old[0])


def test_a_time_and_a_groups_offsets_as_beginnings(real_kafka: Kafka) -> None:
    """The first record of a time or later; the group's offsets, which must be there or have a stand-in; a mark."""
    kafka = real_kafka
    kafka.create(kafka.topic, 2)
    producer = Producer({"bootstrap.servers": kafka.servers})
    for n in range(20):
        at = 1_700_000_000_000 + 1000 * n
        producer.produce(kafka.topic, value(n), partition=n % 2, headers=[("label", b"%d" % n)], timestamp=at)
    producer.flush(60)

    def begun(start: object, group: str | None = None) -> Gathered:
        found = Gathered()
        reader = OpenedStream(KafkaStream(kafka.topic, kafka.servers, start=start, group=group))  # type: ignore[arg-type]
        gather(reader, lambda found: bool(found.position) and sum(found.position.values()) == 20, found)
        reader.close()
        return found

    assert begun(1_700_000_009).labels == list(range(9, 20))
    assert begun(1_700_000_008.5).labels == list(range(9, 20))
    assert begun(datetime.fromtimestamp(1_700_000_018, UTC)).labels == [18, 19]
    assert begun(1_700_000_018.001).records.keys() == {1}
    assert begun(1_800_000_000).labels == []
    with pytest.raises(SourceError, match=rf"the group '{kafka.topic}' must have an offset .*none of 0, 1"):
        begun("group", kafka.topic)
    reader = OpenedStream(KafkaStream(kafka.topic, kafka.servers, group=kafka.topic))
    reader.commit({1: 7})
    with pytest.raises(SourceError, match="none of 0"):
        begun("group", kafka.topic)
    assert begun("group or latest", kafka.topic).labels == [15, 17, 19]
    assert begun("group or earliest", kafka.topic).labels == sorted([*range(0, 20, 2), 15, 17, 19])
    reader.commit({0: 10, 1: 9})
    reader.close()
    assert begun("group", kafka.topic).labels == [19]
    assert begun(KafkaStream(kafka.topic, kafka.servers).mark({0: 9, 1: 9})).labels == [18, 19]


def test_offsets_without_a_record_move_the_position(real_kafka: Kafka) -> None:
    """Aborted records and markers of transactions are not given; where they end the stream stands behind them."""
    kafka = real_kafka
    kafka.create(kafka.topic)
    records = [Message(value(n), None, (("label", b"%d" % n),)) for n in range(15)]
    in_transactions(kafka, kafka.topic, records, 5, lambda k: k > 0)
    source = KafkaStream(kafka.topic, kafka.servers, start="earliest")
    reader = OpenedStream(source)
    found = gather(reader, lambda found: found.position == {0: 18})
    assert [offset for offset, *_ in found.records[0]] == list(range(5))
    reader.close()
    kafka.publish(kafka.topic, [(value(99), 99)])
    assert streamed(source, 1, at=source.mark(found.position)).records == {0: [(18, value(99), 99)]}


def test_a_full_partition_does_not_starve_others(real_kafka: Kafka) -> None:
    """While megabytes of one partition wait, what comes to another is given before they are through."""
    kafka = real_kafka
    large = [Message(bytes(100_000), None, (("label", b"0"),), 0) for _ in range(600)]  # many fetches
    kafka.publish(kafka.topic, large, partitions=2)
    reader = OpenedStream(KafkaStream(kafka.topic, kafka.servers, start="earliest"))
    found = gather(reader, lambda found: len(found) > 0, records=1)
    kafka.publish(kafka.topic, [Message(b"small", None, (("label", b"1"),), 1)] * 3)
    gather(reader, lambda found: len(found.records.get(1, [])) == 3, found, records=8)
    assert len(found.records[0]) < 500
    reader.close()


def test_a_replay_is_the_stretch_between_two_marks(kafka: Kafka) -> None:
    """A bounded topic of the same records under the same ids, which resumes anywhere and never grows."""
    kafka.publish(kafka.topic, [(value(i), i) for i in range(120)], partitions=2)
    source = KafkaStream(kafka.topic, kafka.servers, start="earliest")
    reader = OpenedStream(source)
    got = gather(reader, lambda found: len(found) >= 10, records=10)
    a = source.mark(dict(got.position))
    rest = gather(reader, lambda found: len(found) >= 60, Gathered(), records=10)
    b = source.mark(got.position | rest.position)
    reader.close()
    replay = source.replay({"version": 1, "stream": a}, [b])  # a loader's state; those of all ranks
    snapshot = replay.snapshot()
    assert len(snapshot) == len(rest)
    held = read(replay, Extents(np.arange(2), snapshot.starts, snapshot.stops))
    assert payloads(held) == [each for p in (0, 1) for _, each, _ in rest.records.get(p, [])]
    assert replay.snapshot(json.loads(json.dumps(snapshot.pin))).fingerprint == snapshot.fingerprint
    if kafka.name == "embedded":
        assert_resumes_anywhere(
            replay, columns={"n": Number("label")}, batch_size=8, lanes=1, world_sizes=(1,), positions=1
        )


def test_columns_of_a_stream(kafka: Kafka) -> None:
    """Members of records, and what a format finds in their values, come as from a topic; without columns it says so."""
    records = [Message(b'{"n": %d, "s": {"t": "x%d"}}' % (n, n), b"k%d" % n) for n in range(6)]
    kafka.publish(kafka.topic, [*records, Message(b"{broken", b"k6")], partitions=1)
    source = KafkaStream(kafka.topic, kafka.servers, start="earliest", format="json", idle_timeout=0.5)
    with pytest.raises(ConfigError, match="is for columns="):
        OpenedStream(source)
    assert source.pace == Pace(None, None, 0.5)
    reader = OpenedStream(source, None, "n", "s.t", "key")
    got = reader.poll(7, INF, 5.0)
    assert got.position == {0: 7}
    values = got.block.values
    assert (values["n"][:6], values["s.t"][:6]) == ([*range(6)], [f"x{n}" for n in range(6)])
    assert list(map(bytes, values["key"])) == [b"k%d" % n for n in range(7)]
    assert list(got.block.faults) == [6]
    reader.close()
    assert {member.name for member in source.members()} >= {"value", "key"}


def test_stop_ends_a_wait(kafka: Kafka) -> None:
    """A poll that waits for records ends with ClosedError when the stop event is set."""
    kafka.create(kafka.topic)
    stop = threading.Event()
    reader = OpenedStream(KafkaStream(kafka.topic, kafka.servers), stop=stop)
    threading.Timer(0.2, stop.set).start()
    with pytest.raises(ClosedError):
        reader.poll(1, INF, 60)
    reader.close()


RANDOM = v2.Compose([v2.RandomCrop(8), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)])
HOW: dict[str, Any] = {"device": "cpu", "transform": RANDOM, "tuning": Tuning(threads=1), "seed": 5, "info": True}


def test_a_replay_gives_what_the_loop_was_given(embedded_broker: Broker) -> None:
    """Between two states of a loader: each record that it received in between, once, with the same pixels."""
    embedded_broker.create("clicks", 2)
    publish(embedded_broker.servers, "clicks", [(jpeg(n), n) for n in range(24)])
    stream = KafkaStream("clicks", embedded_broker.servers, start="earliest", batch_timeout=0.2)
    pixels: dict[int, torch.Tensor] = {}
    with DataLoader(stream, 3, **HOW) as loader:
        batches = iter(loader)
        for _ in range(2):
            next(batches)
        a = json.loads(json.dumps(loader.state_dict()))
        for _ in range(4):
            images, _, info = next(batches)
            pixels |= dict(zip(info.ids.tolist(), images, strict=True))
        b = json.loads(json.dumps(loader.state_dict()))
    again: dict[int, torch.Tensor] = {}
    with DataLoader(stream.replay(a, [b]), 5, **HOW) as loader:
        for images, _, info in loader:
            again |= dict(zip(info.ids.tolist(), images, strict=True))
    assert again.keys() == pixels.keys()
    assert all(torch.equal(again[k], pixels[k]) for k in pixels)


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
