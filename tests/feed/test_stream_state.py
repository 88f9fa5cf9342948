"""A stream's state: what the loop was handed, on each rank; and what a group may go on from."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
import torch
from kit.images import bad_tables, jpeg
from kit.limits import LONG
from torchvision.transforms import v2

from dali_feed import DataLoader
from dali_feed.errors import ClosedError, SourceError, StateError
from dali_feed.external_sources import DeadLetterFolder
from dali_feed.feed import Feed
from dali_feed.options import BadRecords, Tuning
from dali_feed.records.live import Pace, Progress
from dali_feed.testing import ScriptedSource, ScriptedStream, assert_stream_resumes
from dali_feed.testing.scripted import Abort, Corrupt, Gap, Item

QUICK = Tuning(threads=1)
RANDOM = v2.Compose([v2.RandomCrop(8), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)])


def stream(pace: Pace | None = None) -> ScriptedStream:
    """Three partitions, one of them empty, with gaps and bad records."""
    first: list[Item] = [(jpeg(0), 0), Gap(), (jpeg(2), 2), Corrupt(), (jpeg(4), 4), (bad_tables(), 5), (jpeg(6), 6)]
    return ScriptedStream(first, [], [(jpeg(n), n) for n in range(20, 26)], pace=pace or Pace(timeout=0.02))


def test_nothing_is_lost_or_repeated_at_any_world_size() -> None:
    """After any batch, from the states of all ranks, at any other number of them, random numbers included."""
    assert_stream_resumes(stream(), records=10, batch_size=2, transform=RANDOM, world_sizes=(1, 3), positions=(0, 1, 3))


@pytest.mark.parametrize(
    ("stop", "told"), [(1, "record 2 of partition 0"), (3, "partition 0 must give 6 records; found 7")]
)
def test_a_stream_that_repeats_a_record_is_found(stop: int, told: str) -> None:
    """The check itself fails where a mark is a record too early; behind the last record too."""

    class Early(ScriptedStream):
        def mark(self, position, *, rank=0, world_size=1):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
            late = {p: max(0, n - 1) for p, n in position.items()}
            return super().mark(late, rank=rank, world_size=world_size)

    source = Early([(jpeg(n), n) for n in range(6)], pace=Pace(timeout=0.02))
    with pytest.raises(AssertionError, match=told):
        assert_stream_resumes(source, records=6, batch_size=2, world_sizes=(1,), positions=(stop,))


def test_a_records_random_numbers_are_its_own() -> None:
    """Whatever batch it comes in, and in a bounded source of the same records in epoch 0."""
    items: list[Item] = [(jpeg(n), n) for n in range(6)]
    pixels = []
    for size in (1, 3):
        with DataLoader(ScriptedStream(items), size, device="cpu", transform=RANDOM, tuning=QUICK, seed=7) as loader:
            batches = iter(loader)
            pixels.append(torch.cat([next(batches)[0] for _ in range(6 // size)]))
    with DataLoader(ScriptedSource(items), 6, device="cpu", transform=RANDOM, tuning=QUICK, seed=7) as bounded:
        pixels.append(next(iter(bounded))[0])
    assert torch.equal(pixels[0], pixels[1])
    assert torch.equal(pixels[0], pixels[2])


def test_a_state_counts_what_was_handed_over() -> None:
    """Nothing that was read ahead, as is what commit() says; where the stream began first, and plain JSON always."""
    source = stream()
    with Feed(source, 2, tuning=QUICK) as feed:
        assert feed.state_dict()["stream"] is None
        feed.commit()
        assert source.committed == {}
        batches = iter(feed)
        next(batches)
        feed.commit()
        assert source.committed == {0: 3, 1: 0, 2: 0}
        state = json.loads(json.dumps(feed.state_dict()))
        assert state["stream"]["position"] == {"0": 3, "1": 0, "2": 0}
        assert state["info"]["rank"] == 0
        feed.load_state_dict(state)
        assert feed.state_dict()["stream"] == state["stream"]
        assert iter(feed).take(60).ids.tolist() == [4, 4]  # position 3 is a bad record


def test_a_new_partition_is_in_the_state() -> None:
    """Its records come from its beginning on, also after a resume."""
    source = ScriptedStream([(jpeg(0), 0)], pace=Pace(timeout=0.02))
    with Feed(source, 2, tuning=QUICK) as feed:
        next(iter(feed))
        state = feed.state_dict()
    source.grow((jpeg(1), 1))
    with Feed(source, 2, tuning=QUICK) as feed:
        feed.load_state_dict(state)
        assert iter(feed).take(60).fields["label"].tolist() == [1]
        assert feed.state_dict()["stream"]["position"] == {"0": 1, "1": 1}


def test_a_state_of_something_else_is_refused() -> None:
    """Every difference is named, of each state in a list; what is under way goes on."""
    with Feed(stream(), 2, tuning=QUICK, seed=1) as feed:
        batches = iter(feed)
        next(batches)
        state = feed.state_dict()
        others = [{**state, "made_for": {**state["made_for"], "seed": 2, "exif": True}}, state]
        with pytest.raises(StateError, match=r"seed: state 0 has 2, this loader 1; exif: state 0 has True"):
            feed.load_state_dict(others)
        wrong: list[tuple[Any, str]] = [
            ([], "the state of every rank"),
            (7, "found int"),
            ({**state, "version": 9}, "found 9"),
            ({**state, "epoch": 0}, "has epochs"),
            ({**state, "stream": 3}, "stream and made_for"),
            ([state, {**state, "stream": None}], "before its rank had read"),
        ]
        for bad, why in wrong:
            with pytest.raises(StateError, match=why):
                feed.load_state_dict(bad)
        assert len(next(batches)) == 2


def test_a_void_batch_counts_nothing(tmp_path: Any) -> None:
    """Bad records, their limit and their letters are settled when the loop takes the batch: not of one that is void."""
    letters = DeadLetterFolder(tmp_path)
    source = ScriptedStream([(jpeg(0), 0), (jpeg(1), 1), Corrupt(), Corrupt(), Corrupt()], [], pace=Pace(timeout=0.02))
    bad = BadRecords(limit=2, dead_letter=letters)
    with Feed(source, 1, tuning=QUICK, bad=bad) as feed:
        batches = iter(feed)
        next(batches)
        source.readers[0].give_up([0], 0.0)
        source.append(1, (jpeg(9), 9))
        assert next(batches).fields["label"].tolist() == [9]
        assert feed.stats().bad == 0
        feed.state_dict()
        assert not list(tmp_path.iterdir())


def test_a_thread_of_the_loop_finishes_its_own_batch_alone() -> None:
    """What one thread still works on is not finished because another one asks for more."""
    progress = Progress()
    progress.begins({0: 0})
    progress.took({0: 2}, 0)

    def another() -> None:
        progress.took({0: 4}, 0)
        progress.asked()

    other = threading.Thread(target=another)
    other.start()
    other.join(LONG)
    assert progress.wait_finished([0], 0.0) == {0: 0}
    progress.asked()
    assert progress.wait_finished([0], 0.0) == {0: 4}


def test_an_error_comes_in_its_place_and_a_new_iterator_goes_on_there() -> None:
    """Records before it are handed over first, also those of a batch that is not full; nothing is lost."""
    items: list[Item] = [*((jpeg(n), n) for n in range(5)), Abort(SourceError("the broker is gone"))]
    source = ScriptedStream(items)
    with Feed(source, 4, tuning=QUICK) as feed:
        batches = iter(feed)
        assert [next(batches).fields["label"].tolist() for _ in range(2)] == [[0, 1, 2, 3], [4]]
        with pytest.raises(SourceError, match="the broker is gone"):
            next(batches)
        with pytest.raises(ClosedError):
            next(batches)
        source._items[0][5] = (jpeg(5), 5)
        source.append(0, *((jpeg(n), n) for n in range(6, 9)))
        assert next(iter(feed)).fields["label"].tolist() == [5, 6, 7, 8]
