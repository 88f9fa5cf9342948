"""Windows without any record: their slots show the next window's records, and no run ends there."""

from __future__ import annotations

from typing import Any

import pytest
from kit.broker.handle import Kafka, in_transactions
from kit.images import QUICK, broken_png, jpeg, labelled
from kit.resumes import assert_resumes_in_turn
from torchvision.transforms import v2

from dali_feed.errors import BadRecordLimitError
from dali_feed.external_sources import KafkaTopic
from dali_feed.feed import Feed
from dali_feed.options import BadRecords, Tuning
from dali_feed.plan import order as plan
from dali_feed.plan.order import Shuffle
from dali_feed.testing import Message, ScriptedSource
from dali_feed.testing.scripted import Corrupt, Gap

STRICT = BadRecords(limit=0)


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of one extent, in order too."""
    monkeypatch.setattr(plan, "WINDOW_RECORDS", 1)


def holed(count: int, *gaps: range) -> list[Any]:
    """Labelled images, gone where a range says so."""
    gone = {n for gap in gaps for n in gap}
    return [Gap() if n in gone else item for n, item in enumerate(labelled(count))]


def dealt(items: list[Any], batch_size: int = 4, **options: Any) -> tuple[list[int], list[bool], Any]:
    """Ids and ok of an epoch, and the counts."""
    made: dict[str, Any] = {"shuffle": Shuffle(8, 1), "bad": STRICT, "tuning": QUICK} | options
    with Feed(ScriptedSource(items, extent=8), batch_size, **made) as feed:
        batches = list(feed)
        assert len(batches) == len(feed)
        ids, ok = ([v for b in batches for v in getattr(b, name).tolist()] for name in ("ids", "ok"))
        stats = feed.stats()
    assert feed._slabs.leased == 0
    return ids, ok, stats


@pytest.mark.parametrize("batch_size", [1, 3, 8, 40])
@pytest.mark.parametrize("tuning", [QUICK, Tuning(threads=2, readers=3, prefetch=4)], ids=["one", "many"])
@pytest.mark.parametrize(
    ("gaps", "wanted"),
    [
        ([range(16)], [*range(16, 24), *range(16, 24), *range(16, 40)]),
        ([range(8, 24)], [*range(8), *range(24, 32), *range(24, 32), *range(24, 40)]),
        ([range(16, 40)], [*range(16), *range(8), *range(8), *range(8)]),
        ([range(8), range(10, 16)], [8, 9, 8, 8, 8, 8, 8, 8, 8, 9, *[8] * 6, *range(16, 40)]),
    ],
    ids=["at the start", "amid", "at the end", "then a few"],
)
def test_in_order(gaps: list[range], wanted: list[int], batch_size: int, tuning: Tuning) -> None:
    """Slot k of an empty window goes as slot k of the next one that has a record, round the line's end, and not ok."""
    ids, ok, stats = dealt(holed(40, *gaps), batch_size, shuffle=False, tuning=tuning)
    gone = {n for gap in gaps for n in gap}
    assert ids == wanted
    assert ok == [n not in gone for n in range(40)]
    assert (stats.absent, stats.bad) == (len(gone), 0)


@pytest.mark.parametrize("lanes", [1, 4])
def test_shuffled_and_in_lanes(lanes: int) -> None:
    """Wherever the holes lie, a lane of nothing else included, every record stands in its own slot, and once there."""
    items = holed(64, range(32))
    ids, ok, stats = dealt(items, lanes=lanes, shuffle=False)
    assert sorted(n for n, own in zip(ids, ok, strict=True) if own) == list(range(32, 64))
    ids, ok, stats = dealt(items, lanes=lanes)
    assert sorted(n for n, own in zip(ids, ok, strict=True) if own) == list(range(32, 64))
    assert stats.absent == 32
    assert all(n >= 32 for n in ids)


def test_bad_records_of_the_next_window_are_its_own() -> None:
    """What is borrowed and bad is told once, in its own window or where a decoder met it, and costs what it does."""
    items = holed(32, range(8))
    items[8], items[11] = Corrupt(), (broken_png(), 11)
    ids, ok, stats = dealt(items, shuffle=False, bad=BadRecords(limit=2), transform=v2.Resize((16, 16)))
    assert ids == [9, 9, 10, 12, 12, 13, 14, 15, 9, 9, 10, 12, *range(12, 32)]
    assert [n for n, own in enumerate(ok) if not own] == [*range(8), 8, 11]
    assert (stats.bad, stats.absent) == (2, 8)


def test_one_bad_window_is_no_empty_one() -> None:
    """Records that are all bad end the run as ever: only holes are nobody's fault."""
    items = holed(24, range(8, 12))
    items[12:16] = [Corrupt()] * 4
    with pytest.raises(
        BadRecordLimitError, match=r"window of 8 records: .*found no good record at all \(scripted\[0\]@12"
    ):
        dealt(items, shuffle=False, bad=BadRecords(limit=None))


@pytest.mark.parametrize("shuffle", [Shuffle(4, 2), False], ids=str)
@pytest.mark.parametrize("gaps", [[range(20)], [range(13, 50)]], ids=["at the start", "amid"])
def test_it_resumes_anywhere(shuffle: bool | Shuffle, gaps: list[range]) -> None:
    """From any batch, at any world size, what is borrowed is the same, and nothing else is read than what is needed."""
    source = ScriptedSource(holed(56, *gaps), extent=4, partitions=2, first=3)
    absent = sum(map(len, gaps))
    assert_resumes_in_turn(source, shuffle=shuffle, lanes=4, world_sizes=(1, 2, 4), absent=absent, positions=3)


def test_16_000_aborted_records_then_good_ones(real_kafka: Kafka) -> None:
    """They end no run, whether they are left out or shown as repeats; each good record has its own slot."""
    topic = real_kafka.create(real_kafka.topic)
    records = [Message(jpeg(n), headers=(("label", b"%d" % n),)) for n in range(40)]
    in_transactions(real_kafka, topic, [Message(b"x")] * 16_000 + records, 16_000, lambda k: k == 0)
    counts: list[tuple[Any, int]] = [("replace", 16_042), ("auto", 40)]
    for holes, count in counts:
        source = KafkaTopic(topic, real_kafka.servers, holes=holes)
        with Feed(source, 256, shuffle=Shuffle(256, 4), bad=STRICT, tuning=QUICK) as feed:
            assert len(feed.snapshot) == count
            own = [n for batch in feed for n in batch.fields["label"][batch.ok].tolist()]
            assert sorted(own) == list(range(40))


def test_a_window_is_known_by_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a sampler that names an index twice, a window that begins like an empty one has its own records."""
    monkeypatch.setattr(plan, "WINDOW_RECORDS", 4)
    items, sampler = holed(16, range(4)), [0, 1, 2, 3, 0, 5, 6, 7, 8, 9, 10, 11]
    with Feed(ScriptedSource(items), 4, sampler=sampler, bad=STRICT, tuning=QUICK) as feed:
        batches = iter(feed)
        seen, states = [], []
        for batch in batches:
            seen.append((batch.ids.tolist(), batch.ok.tolist()))
            states.append(feed.state_dict())
    assert seen[1] == ([5, 5, 6, 7], [False, True, True, True])
    for n, state in enumerate(states[:-1], 1):
        with Feed(ScriptedSource(items), 4, sampler=sampler, bad=STRICT, tuning=QUICK) as feed:
            feed.load_state_dict(state)
            assert [(batch.ids.tolist(), batch.ok.tolist()) for batch in feed] == seen[n:]
