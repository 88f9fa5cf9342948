"""KafkaTopic and its reader, on the embedded and on the real broker; offsets that hold no record."""

from __future__ import annotations

import json
import logging
import threading
from typing import Any

import numpy as np
import pytest
from confluent_kafka import Producer
from kit.broker.handle import (
    COMMITTED,
    Kafka,
    Opened,
    everything,
    fill,
    in_transactions,
    labels,
    made,
    payloads,
    read,
    rows,
    value,
)
from kit.images import QUICK
from kit.inside import Extents, Feed, SlabPool, main, pack_ids
from kit.limits import LONG
from torchvision.transforms import v2

from dali_feed import Shuffle
from dali_feed.errors import (
    ClosedError,
    SourceChangedError,
    SourceEmptyError,
    StateError,
)
from dali_feed.external_sources import KafkaTopic
from dali_feed.testing import Message


def test_roundtrip_gives_values_labels_and_ids(kafka: Kafka) -> None:
    """Every published record comes back once, under its partition and offset, with its label."""
    placed = kafka.publish(kafka.topic, [(value(i), i) for i in range(100)], partitions=3)
    source = KafkaTopic(kafka.topic, kafka.servers)
    snapshot = source.snapshot()
    assert (len(snapshot), snapshot.names[2], snapshot.interleaved) == (100, f"{kafka.topic}[2]", True)
    block = read(source, Extents(np.arange(3), snapshot.starts, snapshot.stops))
    order = sorted(range(100), key=lambda i: placed[i])
    assert payloads(block) == [value(i) for i in order]
    assert labels(block) == order
    numbers: Any = made(source, block).values["label"]
    assert (numbers.tolist(), numbers.dtype) == (order, np.int64)
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
        reader = Opened(KafkaTopic(kafka.topic, kafka.servers))
        for k in range(0, len(runs), 3):
            chosen = [runs[n] for n in order[k : k + 3]]
            block = reader.read(rows(*chosen))
            want = [held[p, o] for p, a, b in chosen for o in range(a, b)]
            assert labels(block) == want
            assert payloads(block) == [value(i) for i in want]
            block.lease.release()
        reader.close()


def test_overlapping_and_repeated_extents_are_read_as_asked(kafka: Kafka) -> None:
    """A run that goes back, repeats or overlaps the last one in the same partition is read again in full."""
    kafka.publish(kafka.topic, [(value(i), i) for i in range(60)], partitions=1)
    reader = Opened(KafkaTopic(kafka.topic, kafka.servers))
    for a, b in [(10, 20), (10, 20), (15, 30), (30, 31), (31, 60), (0, 60), (5, 5), (59, 60)]:
        assert labels(reader.read(Extents.one(0, a, b))) == list(range(a, b))
    reader.close()


def test_holes_are_absent_rows(real_kafka: Kafka) -> None:
    """Control records and aborted data leave rows without payload, at the end of a partition too, and shift nothing."""
    kafka = real_kafka
    kafka.create(kafka.topic)
    records = [Message(value(n), headers=(("label", b"%d" % (n % 5)),)) for n in range(20)]
    in_transactions(kafka, kafka.topic, records, 5, lambda k: k % 2 == 1)
    want: list[bytes | None] = []
    for k in range(4):  # the last of each is its control record
        want += [*(None if k % 2 else value(5 * k + n) for n in range(5)), None]
    source = KafkaTopic(kafka.topic, kafka.servers)
    snapshot = source.snapshot()
    assert snapshot.stops.tolist() == [24]
    assert payloads(read(source, Extents.one(0, 0, 24))) == want
    reader = Opened(source)
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
    source = KafkaTopic(kafka.topic, kafka.servers)
    block = read(source, Extents.one(0, 0, len(records)))
    assert payloads(block) == [b"img"] * 9 + [None, b"", b"img"]
    columns = made(source, block)
    faults = {row: fault.reason for row, fault in columns.faults.items() if fault.stage == "source"}
    assert sorted(faults) == [0, 1, 3, 4, 7, 8, 9, 10]
    assert faults[0] == "column 'label' of member 'headers.label': a decimal number is needed; found 'x'"
    assert "headers.label': the record has no such member" in faults[8]
    assert "tombstone" in faults[9]
    assert len(faults[7]) < 120
    numbers: Any = columns.values["label"]
    assert numbers[[2, 5, 6, 11]].tolist() == [7, -3, 12, 2]


def test_without_label(kafka: Kafka) -> None:
    """label=None asks no header and gives no field; a zero-byte payload is a payload."""
    kafka.publish(kafka.topic, [(b"a", None), (b"", None)], partitions=1)
    source = KafkaTopic(kafka.topic, kafka.servers, label=None)
    block = read(source, Extents.one(0, 0, 2))
    assert (list(source.preset), list(block.values), block.faults, payloads(block)) == (
        ["image"],
        ["value"],
        {},
        [b"a", b""],
    )


def test_empty_values_at_the_start_are_rows_of_no_bytes(kafka: Kafka) -> None:
    """A topic that begins with a value of no bytes is read, by a codec too, and its other records are what they are."""
    records = [Message(b""), Message(None), Message(b"img", headers=(("label", b"4"),))]
    kafka.publish(kafka.topic, [Message(m.value, headers=m.headers, partition=0) for m in records], partitions=2)
    source = KafkaTopic(kafka.topic, kafka.servers, label=None)
    assert len(source.snapshot()) == 3
    assert payloads(read(source, Extents.one(0, 0, 3))) == [b"", None, b"img"]
    coded = KafkaTopic(kafka.topic, kafka.servers, label=None, codec=lambda value, _key, _headers: {"image": value})
    block = read(coded, Extents.one(0, 0, 3))
    assert payloads(block) == [b"", None, b"img"]
    assert "tombstone" in block.faults[1].reason


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
    source = KafkaTopic(kafka.topic, kafka.servers, codec=codec)
    block = read(source, Extents.one(0, 0, 4), "codec:image", "codec:label", "codec:key", "codec:n")
    assert [column.member for column in source.preset.values()] == ["codec:image", "codec:label"]
    assert payloads(block) == [b"image", b"\x05-image", b"\x05-image", b"image"]
    line = codec.__code__.co_firstlineno  # its raise, and of a value that it did not give the codec itself
    assert {row: fault.reason for row, fault in block.faults.items()} == {
        1: f"codec: LookupError: no such class: dragon, at {__file__}:{line + 3} in codec",
        2: f"codec: KeyError: 'label' is missing, at {__file__}:{line} in codec",
    }
    good = block.usable()
    for name, want in (("label", [5, 5]), ("key", [b"a", None]), ("n", [1, 1])):
        values = [value for value, there in zip(block.values[f"codec:{name}"], good, strict=True) if there]
        assert [bytes(value) if isinstance(value, memoryview) else value for value in values] == want


def test_payloads_lie_in_the_given_slabs(kafka: Kafka) -> None:
    """Blocks take their memory from the caller's pool and give it back with the lease, after a failure too."""
    kafka.publish(kafka.topic, [(value(i), i) for i in range(20)], partitions=1)
    pool, stop = SlabPool(1 << 16), threading.Event()
    reader = Opened(KafkaTopic(kafka.topic, kafka.servers), pool=pool, stop=stop)
    block = reader.read(Extents.one(0, 0, 20))
    assert pool.leased == 1 << 16
    block.lease.release()
    threading.Timer(0.2, stop.set).start()
    with pytest.raises(ClosedError):
        reader.read(Extents.one(0, 0, 21))
    assert pool.leased == 0
    assert pool.peak == 1 << 16
    reader.close()


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
    with pytest.raises(StateError, match="other"):
        source.snapshot({**pin, "topic": "other"})
    with pytest.raises(StateError):
        source.snapshot({"starts": "nonsense"})


def test_extent_size_follows_the_first_records(kafka: Kafka) -> None:
    """An extent is the power of two of positions that comes nearest to 32 MB, and the same each time."""
    kafka.publish(kafka.topic, [(bytes(50_000), 1), (bytes(70_000), 1)] * 4, partitions=2)
    source = KafkaTopic(kafka.topic, kafka.servers)
    found = [(s.record_bytes, s.extent) for s in (source.snapshot(), source.snapshot())]
    assert found == [(60_000, 512), (60_000, 512)]


def test_extent_size_follows_the_part_that_is_large(embedded: Kafka) -> None:
    """Data in keys or headers counts where values are small; a snapshot does not depend on what is read of it."""
    headers = (("tokens", bytes(40_000)), ("more", bytes(20_000)))
    embedded.publish(embedded.topic, [Message(b"v", bytes(10_000), headers)] * 8, partitions=2)
    source = KafkaTopic(embedded.topic, embedded.servers, label=None)
    assert source.snapshot().record_bytes == 70_000


def test_two_readers_in_two_threads(kafka: Kafka) -> None:
    """Readers share nothing but the pool: two threads read all extents between them, each right."""
    placed = kafka.publish(kafka.topic, [(value(i), i) for i in range(400)], partitions=4)
    held = {place: i for i, place in enumerate(placed)}
    source, pool = KafkaTopic(kafka.topic, kafka.servers), SlabPool(1 << 16)
    runs = [(p, a, a + 20) for p in range(4) for a in range(0, 100, 20)]
    wrong: list[object] = []

    def work(mine: list[tuple[int, int, int]]) -> None:
        reader = Opened(source, pool=pool)
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
        thread.join(LONG)
    assert not wrong
    assert pool.leased == 0


CROP = v2.RandomResizedCrop(16)
SHUFFLES = [True, Shuffle(4, 2), Shuffle(1, 3), False]


def dealt(feed: Feed) -> tuple[list[int], list[bool]]:
    """What an epoch deals: labels, and ok."""
    batches = list(feed)
    return [n for b in batches for n in b.fields["label"].tolist()], [o for b in batches for o in b.ok.tolist()]


@pytest.mark.parametrize("shuffle", SHUFFLES, ids=str)
def test_each_record_stands_once(real_kafka: Kafka, shuffle: bool | Shuffle) -> None:
    """Of a topic that is half aborted an epoch deals each committed record once, in its own slot, by its offset."""
    topic = fill(real_kafka)
    with Feed(KafkaTopic(topic, real_kafka.servers), 7, shuffle=shuffle, lanes=1, tuning=QUICK) as feed:
        assert len(feed.snapshot) == len(COMMITTED)
        assert len(feed) == -(-len(COMMITTED) // 7)
        found, ok = dealt(feed)
        assert sorted(found) == COMMITTED
        assert all(ok)
        assert feed.stats().absent == 0
        again, _ = dealt(feed)
        assert sorted(again) == COMMITTED
        assert (again != found) == bool(shuffle)
        block = read(KafkaTopic(topic, real_kafka.servers), everything(feed.snapshot))
        assert labels(block) == [n for p in range(2) for n in COMMITTED if n % 2 == p]
        assert set(block.ids.tolist()) == set(feed.plan.ids(0, 0, len(feed.snapshot)).tolist())


def test_it_is_said_once_what_it_costs(real_kafka: Kafka, caplog: pytest.LogCaptureFixture) -> None:
    """A scan says so before it begins, and repeats, where they were chosen, when they are planned; describe() both."""
    topic = fill(real_kafka)
    with (
        caplog.at_level(logging.WARNING, "dali_feed"),
        Feed(KafkaTopic(topic, real_kafka.servers), tuning=QUICK) as feed,
    ):
        told = feed.describe()
        list(feed)
    assert [r.getMessage().split(";")[0] for r in caplog.records] == [
        f"{topic}: about 58.3 % of its 144 offsets hold no record (aborted transactions, their markers, compaction)"
    ]
    assert f"{topic} at {real_kafka.servers}: 60 samples in 2 partitions" in told
    assert "holes: 58.33% of 144 positions hold no record, and are skipped: 12 runs of records" in told
    caplog.clear()
    chosen = KafkaTopic(topic, real_kafka.servers, holes="replace")
    with caplog.at_level(logging.WARNING, "dali_feed"), Feed(chosen, 8, tuning=QUICK) as feed:
        found, ok = dealt(feed)
        told = feed.describe()
    assert sum("58.3 % of its 144 positions hold no record" in r.getMessage() for r in caplog.records) == 1
    assert "holes: about 58.33% of 144 positions hold no record; other records fill their slots" in told
    assert (len(found), sum(ok), feed.stats().absent) == (144, 60, 84)
    assert sorted(n for n, own in zip(found, ok, strict=True) if own) == COMMITTED


def test_few_holes_are_left_as_they_are(real_kafka: Kafka, caplog: pytest.LogCaptureFixture) -> None:
    """One marker behind 400 records is no reason for a scan, and the snapshot is what it ever was; "scan" learns it."""
    topic = real_kafka.create(real_kafka.topic)
    records = [Message(b"%d" % n, headers=(("label", b"1"),)) for n in range(400)]
    in_transactions(real_kafka, topic, records, 400, lambda _: False)
    snapshot = KafkaTopic(topic, real_kafka.servers).snapshot()
    assert (len(snapshot), snapshot.present, snapshot.absent) == (401, None, round(1 / 401, 6))
    assert "present" not in (snapshot.pin or {})
    assert not caplog.records
    other = KafkaTopic(topic, real_kafka.servers, holes="scan").snapshot()
    assert (len(other), other.absent) == (400, 1 - 400 / 401)
    assert other.fingerprint != snapshot.fingerprint


def test_a_scan_of_no_holes_changes_nothing(kafka: Kafka) -> None:
    """Where every offset holds a record the snapshot is the same one, whatever was asked for."""
    kafka.publish(kafka.topic, [(b"x" * 10, 1)] * 30, partitions=3)
    found = [KafkaTopic(kafka.topic, kafka.servers, holes=how).snapshot() for how in ("auto", "scan", "replace")]
    assert len({snapshot.fingerprint for snapshot in found}) == 1
    assert all(snapshot.present is None and snapshot.absent == 0 for snapshot in found)


def test_a_state_of_a_run_with_repeats_goes_on_with_them(real_kafka: Kafka) -> None:
    """An older state, which knows no map, is of a snapshot without one, and is gone on with as it was begun."""
    topic = fill(real_kafka)
    with Feed(KafkaTopic(topic, real_kafka.servers, holes="replace"), 8, shuffle=True, tuning=QUICK) as feed:
        whole = [batch.ids.tolist() for batch in feed]
    with Feed(KafkaTopic(topic, real_kafka.servers, holes="replace"), 8, shuffle=True, tuning=QUICK) as feed:
        batches = iter(feed)
        for _ in range(3):
            next(batches)
        state = json.loads(json.dumps(feed.state_dict()))
        del state["source"]["pin"]["absent"]
    with Feed(KafkaTopic(topic, real_kafka.servers), 8, shuffle=True, tuning=QUICK) as feed:
        feed.load_state_dict(state)
        assert [batch.ids.tolist() for batch in feed] == whole[3:]
    with Feed(KafkaTopic(topic, real_kafka.servers), 8, shuffle=True, tuning=QUICK) as feed:
        assert len(feed) == -(-len(COMMITTED) // 8)  # it has looked by now
        feed.load_state_dict(state)
        assert [batch.ids.tolist() for batch in feed] == whole[3:]


def test_lag_tools_see_offsets(real_kafka: Kafka) -> None:
    """What is committed stays an offset: that of the first record left, and at the end the partition's end."""
    topic = fill(real_kafka, partitions=1)
    source = KafkaTopic(topic, real_kafka.servers, group="g")
    told: list[list[int]] = []
    source.commit = lambda positions: told.append(positions.tolist())  # type: ignore[method-assign]
    with Feed(source, 10, tuning=QUICK) as feed:
        feed.commit()
        for _ in feed:
            feed.commit()
    assert told == [[0], [22], [44], [66], [88], [110], [132]]


def test_a_topic_of_nothing_but_holes_is_empty(real_kafka: Kafka) -> None:
    """Where everything was aborted, there is no record to plan with."""
    topic = real_kafka.create(real_kafka.topic)
    in_transactions(real_kafka, topic, [Message(b"x")] * 20, 10, lambda _: True)
    with pytest.raises(SourceEmptyError, match="none of its 22 offsets has one"):
        KafkaTopic(topic, real_kafka.servers).snapshot()


def test_inspect_and_verify_tell_of_holes(real_kafka: Kafka, capsys: pytest.CaptureFixture[str]) -> None:
    """The share, the number of records that is left, and what a run does; neither reads the topic to learn more."""
    topic = fill(real_kafka)
    with pytest.raises(SystemExit):
        main(["inspect", f"kafka://{real_kafka.servers}/{topic}"])
    told = capsys.readouterr()
    assert "about 60 in 2 partitions" in told.out
    assert "about 58.3% of 144 offsets hold no record" in told.out.replace("\n", " ")
    assert told.err == ""
    with pytest.raises(SystemExit):
        main(["verify", f"kafka://{real_kafka.servers}/{topic}"])
    assert "60 of 144 positions; 84 absent" in capsys.readouterr().out
