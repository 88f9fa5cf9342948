"""Resume: a state taken after any batch, through JSON, in a new loader, gives the rest bit for bit."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
from hypothesis import settings
from kit.images import QUICK, Seen, labelled, seen, text
from kit.inside import Corrupt, Feed, Gap
from torchvision.transforms import v2

from dali_feed import BadRecords, Shuffle
from dali_feed.errors import ConfigError, StateError
from dali_feed.testing import ScriptedSource

pytestmark = pytest.mark.usefixtures("each_engine")

CROP = v2.Compose([v2.RandomResizedCrop(16, scale=(0.3, 1.0)), v2.RandomHorizontalFlip()])


def _items(count: int = 37) -> list[Any]:
    items: list[Any] = labelled(count, sizes=True)
    items[0], items[10], items[11], items[12], items[17], items[35] = (
        Gap(), Corrupt(), Gap(), Corrupt("torn"), (text(), 1), Gap(),
    )  # fmt: skip
    return items


def _feed(source: Any = None, batch_size: int = 4, **options: Any) -> Feed:
    source = source or ScriptedSource(_items(), partitions=2, extent=3)
    options = {"transform": CROP, "shuffle": Shuffle(3, 2), "bad": BadRecords(limit=None), "tuning": QUICK} | options
    return Feed(source, batch_size, **options)


def _through_json(feed: Feed) -> Any:
    return json.loads(json.dumps(feed.state_dict()))


CASES: dict[str, dict[str, Any]] = {
    "windows": {},
    "drop_last": {"drop_last": True},
    "lanes": {"lanes": 4},
    "lanes, drop_last": {"lanes": 2, "drop_last": True, "batch_size": 6},
    "one window": {"shuffle": Shuffle(3, 100)},
    "uniform": {"shuffle": True},
    "in order": {"shuffle": False},
    "sampler": {"shuffle": False, "sampler": [5, 1, 0, 36, 9, 10, 3, 3, 30, 12, 20]},
    "odd batches": {"batch_size": 5, "seed": 3},
}


@pytest.mark.parametrize("case", CASES)
def test_the_rest_is_equal_after_any_batch(case: str, each_engine: str) -> None:
    """Mid-epoch, at the last batch and over the epoch's end: ids, labels, ok and pixels go on as they would have.

    The engines take turns at the states; each has the begin, the middle and the end of an epoch.
    `make test-long` goes on from every state with each.
    """
    options = CASES[case]
    with _feed(**options) as feed:
        states: list[Any] = [_through_json(feed)]
        batches: list[Seen] = []
        for _ in range(2):
            for batch in feed:
                batches.append(seen(batch))
                states.append(_through_json(feed))
        ended = _through_json(feed)
    assert ended["epoch"] == 2
    assert ended["consumed"] == 0
    per_epoch = len(batches) // 2
    ends = {0, per_epoch, per_epoch + per_epoch // 2, 2 * per_epoch}
    turns = {*ends, *range(each_engine == "host", 2 * per_epoch, 2)}
    with _feed(**options) as other:
        for n, state in enumerate(states):
            over = n and n % per_epoch == 0  # at the last batch: what is left of its epoch is nothing
            if n not in turns and settings.get_current_profile_name() != "thorough":
                continue
            other.load_state_dict(state)
            assert other.state_dict() == state
            rest = [seen(batch) for batch in other]
            assert rest == ([] if over else batches[n : (n // per_epoch + 1) * per_epoch])
            if n < per_epoch:  # the epoch behind it: all of it after the first and the last state, of others the begin
                more = None if n in (0, per_epoch - 1) else 2
                assert [seen(batch) for batch in islice(other, more)] == batches[per_epoch:][:more]


def test_restored_to_another_batch_size_the_line_goes_on() -> None:
    """A position is samples, not batches: the rest of the line is the same in batches of any size."""
    with _feed() as feed:
        batches = iter(feed)
        for _ in range(2):
            next(batches)
        state = _through_json(feed)
        rest = [n for batch in batches for n in batch.ids.tolist()]
    with _feed(batch_size=7) as other:
        other.load_state_dict(state)
        assert [n for batch in other for n in batch.ids.tolist()] == rest


def test_restoring_at_the_end_reads_nothing() -> None:
    """At the last batch of an epoch there is nothing to read again."""
    with _feed() as feed:
        batches = iter(feed)
        for _ in range(len(feed)):
            next(batches)
        state = _through_json(feed)
    assert (state["epoch"], state["consumed"]) == (0, 37)
    source = ScriptedSource(_items(), partitions=2, extent=3)
    with _feed(source) as other:
        other.load_state_dict(state)
        assert list(other) == []
        assert source.bytes_read == 0
        assert other.epoch == 1


def test_set_epoch_continues_the_restored_epoch_and_restarts_another() -> None:
    """A training loop that calls set_epoch before each pass resumes mid-epoch; another epoch begins at its start."""
    with _feed() as feed:
        epochs = [[seen(batch) for batch in feed] for _ in range(3)]
    with _feed() as feed:
        batches = iter(feed)
        for _ in range(3):
            next(batches)
        state = _through_json(feed)
    with _feed() as other:
        other.load_state_dict(state)
        other.set_epoch(0)
        assert [seen(batch) for batch in other] == epochs[0][3:]
        other.load_state_dict(state)
        other.set_epoch(2)
        assert [seen(batch) for batch in other] == epochs[2]
        other.set_epoch(1)
        assert [seen(batch) for batch in other] == epochs[1]


def test_set_epoch_speaks_of_the_next_pass_and_leaves_the_one_under_way() -> None:
    """A pass goes on to its end, its batches count in its own epoch, and the pass behind it is the one that was set."""
    with _feed() as feed, _feed() as other:
        epochs = [[seen(batch) for batch in other] for _ in range(6)]
        batches = iter(feed)
        first = [seen(next(batches))]
        feed.set_epoch(5)
        assert feed.state_dict()["consumed"] > 0
        assert first + [seen(batch) for batch in batches] == epochs[0]
        assert feed.epoch == 5
        assert [seen(batch) for batch in feed] == epochs[5]


MISMATCHES = [
    ({"seed": 9}, ["seed: the state has 0, this loader 9"]),
    ({"lanes": 4}, ["lanes: the state has 1, this loader 4"]),
    ({"shuffle": False}, ["shuffle: the state has True, this loader False", "window"]),
    ({"shuffle": Shuffle(2, 5)}, ["extent: the state has 3, this loader 2", "window: the state has 2, this loader 5"]),
    ({"drop_last": True}, ["drop_last: the state has False, this loader True"]),
    ({"shuffle": False, "sampler": range(37)}, ["sampler: the state has None, this loader '"]),
    ({"source": ScriptedSource(labelled(37), partitions=2, extent=3)}, ["source: the state has '"]),
    ({"seed": 9, "lanes": 4, "drop_last": True}, ["seed: ", "lanes: ", "drop_last: "]),
]


@pytest.mark.parametrize(("options", "told"), MISMATCHES)
def test_a_mismatch_lists_every_difference(options: dict[str, Any], told: list[str]) -> None:
    """One StateError names each thing that differs, with both values, and the loader goes on as it was."""
    with _feed() as feed:
        next(iter(feed))
        state = _through_json(feed)
    with _feed(**options) as other:
        before = other.state_dict()
        with pytest.raises(StateError) as caught:
            other.load_state_dict(state)
        for one in told:
            assert one in str(caught.value)
        assert other.state_dict() == before
        next(iter(other))


def test_a_state_that_is_refused_leaves_a_running_pass_alone() -> None:
    """The pass under way goes on where it was, also with a sampler that differs per epoch."""

    class Sampler:
        epoch = 0

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __iter__(self) -> Iterator[int]:
            return iter(range(self.epoch, 37))

    with _feed(shuffle=False, sampler=Sampler()) as feed:
        batches = iter(feed)
        next(batches)
        before = feed.state_dict()
        with pytest.raises(StateError, match="seed"):
            feed.load_state_dict(before | {"epoch": 5, "made_for": before["made_for"] | {"seed": 1}})
        assert feed.state_dict() == before
        assert next(batches).ids.tolist() != []
        assert feed.state_dict()["consumed"] == 8


def test_a_sampler_that_fails_leaves_no_half_loaded_state() -> None:
    """An exception of the sampler while a state is loaded comes through, and the position stays."""

    class Sampler:
        broken = False

        def __iter__(self) -> Iterator[int]:
            if self.broken:
                msg = "mine"
                raise ValueError(msg)
            return iter(range(37))

    sampler = Sampler()
    with _feed(shuffle=False, sampler=sampler) as feed:
        before = feed.state_dict()
        sampler.broken = True
        with pytest.raises(ValueError, match="mine"):
            feed.load_state_dict(before | {"epoch": 3, "consumed": 4})
        sampler.broken = False
        assert feed.state_dict() == before
        assert len(list(feed)) == 10


GARBAGE: list[Any] = [
    None,
    [],
    "state",
    {},
    {"version": 1},
    {"version": 2},
    {"epoch": -1},
    {"epoch": "0"},
    {"epoch": True},
    {"epoch": 1 << 40},
    {"epoch": 1 << 200},
    {"epoch": 0.5},
    {"consumed": -4},
    {"consumed": None},
    {"consumed": 10**9},
    {"consumed": 1 << 80},
    {"made_for": []},
    {"made_for": {}},
    {"made_for": {"seed": {"a": [1]}}},
    {"source": None},
    {"source": {"pin": 7}},
    {"source": {"pin": [1]}},
]


@pytest.fixture(scope="module")
def lasting(each_engine: str) -> Iterator[Feed]:
    """One that each kind of garbage meets in turn."""
    del each_engine  # that it is made with
    with _feed() as feed:
        yield feed


@pytest.mark.parametrize("garbage", GARBAGE, ids=repr)
def test_garbage_is_a_state_error(lasting: Feed, garbage: Any) -> None:
    """Whatever is given as a state, the answer is a StateError, and the loader still works."""
    good = lasting.state_dict()
    state = good | garbage if isinstance(garbage, dict) and garbage and set(garbage) <= set(good) else garbage
    if garbage == {"version": 1}:
        state = garbage
    with pytest.raises(StateError):
        lasting.load_state_dict(state)
    assert lasting.state_dict() == good
    next(iter(lasting))


def test_a_whole_checkpoint_is_no_state() -> None:
    """A checkpoint with a loader's state in it says where that lies; any other dict says what it has."""
    with _feed() as feed:
        for given, said in (
            ({"model": {}, "loader": feed.state_dict()}, "found one with 'model', 'loader'. Give what is at 'loader'"),
            ({"model": {}}, "found one with 'model'. Give what state_dict"),
            ({}, "found one with no keys"),
        ):
            with pytest.raises(StateError, match=said):
                feed.load_state_dict(given)


def test_the_sampler_is_part_of_the_state() -> None:
    """Another list of indices is a mismatch; an index outside the source is a ConfigError that names it."""
    with _feed(shuffle=False, sampler=[1, 2, 3]) as feed:
        state = _through_json(feed)
    with _feed(shuffle=False, sampler=[1, 2, 4]) as other, pytest.raises(StateError, match="sampler"):
        other.load_state_dict(state)
    for bad in ([0, 37], [-1], ["a"], [True], [1.5]):
        with _feed(shuffle=False, sampler=bad) as other, pytest.raises(ConfigError, match="sampler"):
            next(iter(other))


def _plain(source: Any = None, **options: Any) -> Feed:
    source = source or ScriptedSource(labelled(37), partitions=2, extent=3)
    chosen: dict[str, Any] = {"shuffle": Shuffle(3, 2), "tuning": QUICK} | options
    return Feed(source, 4, **chosen)


def test_all_differences_come_in_one_error() -> None:
    """What the state has, what is here, which sources those are, and the cure."""
    with _plain(lanes=2) as feed:
        state = _through_json(feed)
    other = ScriptedSource(labelled(9), name="other", partitions=2, extent=3)
    changes: dict[str, Any] = {"seed": 9, "lanes": 4, "shuffle": False, "drop_last": True, "sampler": [1, 2, 3, 4]}
    with _plain(other, **changes) as feed, pytest.raises(StateError) as caught:
        feed.load_state_dict(state)
    told = str(caught.value)
    for line in (
        "source: the state has '",
        "it was scripted with 37 samples, now it is other with 9)",
        "seed: the state has 0, this loader 9",
        "lanes: the state has 2, this loader 4",
        "shuffle: the state has True, this loader False",
        "extent: the state has 3, this loader 1",
        "window: the state has 2, this loader 1024",
        "drop_last: the state has False, this loader True",
        "sampler: the state has None, this loader '",
        "Make the loader with the values that the state has",
    ):
        assert line in told


def test_a_name_that_only_the_state_has_is_a_difference() -> None:
    """What a later release counts positions in, and this one does not know, is not passed over."""
    with _plain() as feed:
        state = _through_json(feed)
        state["made_for"]["curriculum"] = "hard"
        with pytest.raises(StateError, match="curriculum: the state has 'hard', this loader None"):
            feed.load_state_dict(state)


def test_a_state_of_another_version_says_which() -> None:
    """The version wanted, the one found, and what to do."""
    with _plain() as feed:
        for version in (0, 2, None, "1"):
            told = f"version must be 1; found {version!r}. Another release wrote it; load it with that release"
            with pytest.raises(StateError, match=re.escape(told)):
                feed.load_state_dict(feed.state_dict() | {"version": version})


def test_a_position_past_the_lane_says_both() -> None:
    """A position that no state of this plan can have is refused with the lane's length."""
    with _plain() as feed, pytest.raises(StateError, match="consumed must be at most 37, .*; found 38"):
        feed.load_state_dict(feed.state_dict() | {"consumed": 38})


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"lanes": 3, "world_size": 2}, "must be a multiple of world_size.*; found lanes=3, world_size=2"),
        ({"lanes": 1, "world_size": 2}, "must be a multiple of world_size.*; found lanes=1, world_size=2"),
        ({"lanes": 8}, "batch_size . world_size = 4 must be a multiple of lanes; found lanes=8"),
        ({"lanes": 0}, "lanes: must be an int of at least 1; found 0"),
        ({"lanes": 2.0}, "lanes: must be an int of at least 1; found 2.0"),
    ],
)
def test_lanes_that_cannot_be_are_refused(options: dict[str, Any], told: str) -> None:
    """Ranks hold equally many lanes and batches take equally many samples of each, or the loader is not made."""
    with pytest.raises(ConfigError, match=told):
        _plain(**options)
