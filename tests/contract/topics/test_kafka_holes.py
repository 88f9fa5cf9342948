"""Topics whose offsets have holes: the source learns which offsets hold a record, and each record stands once."""

from __future__ import annotations

import json
import logging

import pytest
from kit.broker.handle import COMMITTED, Kafka, everything, fill, in_transactions, labels, payloads, read
from kit.images import QUICK
from kit.inside import Feed, main
from torchvision.transforms import v2

from dali_feed import Shuffle
from dali_feed.errors import SourceEmptyError
from dali_feed.external_sources import KafkaTopic
from dali_feed.testing import Message, assert_resumes_anywhere

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


@pytest.mark.parametrize("shuffle", [Shuffle(3, 2), False], ids=str)
def test_it_resumes_anywhere(real_kafka: Kafka, shuffle: bool | Shuffle) -> None:
    """With its holes left out a topic keeps the law of resume; no position that is dealt is absent."""
    source = KafkaTopic(fill(real_kafka, 80, 5), real_kafka.servers)
    assert_resumes_anywhere(source, transform=CROP, shuffle=shuffle, lanes=2, positions=3, absent=0)


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


def test_a_read_of_what_is_there_has_no_absent_rows(real_kafka: Kafka) -> None:
    """All that the map names is there, and it names all that is there."""
    topic = fill(real_kafka)
    source = KafkaTopic(topic, real_kafka.servers)
    snapshot = source.snapshot()
    assert None not in payloads(read(source, everything(snapshot)))
