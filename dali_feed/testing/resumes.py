"""The law of resume as a test that any source can be held to.

A state taken after any batch, restored in a new feed at any world size that divides the lanes, gives the rest bit
for bit; what a feed reads for it, whatever the source, is a test of the feed.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from dali_feed.checks import whole
from dali_feed.columns.column import Column
from dali_feed.columns.image import Image
from dali_feed.errors import ConfigError, DaliFeedError
from dali_feed.feed import Feed
from dali_feed.options import BadRecords, Tuning
from dali_feed.plan.order import Shuffle
from dali_feed.records.source import Snapshot, Source, unpack_ids
from dali_feed.testing.rows import assert_rows_are_pure
from dali_feed.testing.slots import Packs, Slot, Slots, packs_of, slots_of

QUICK = Tuning(threads=1, readers=1, next_epoch=False)


def assert_resumes_anywhere(  # noqa: PLR0913  what a run is made of, as in Feed
    source: Source,
    *,
    batch_size: int = 4,
    shuffle: bool | Shuffle = True,
    transform: object = None,
    seed: int = 0,
    lanes: int = 2,
    world_sizes: Sequence[int] = (1, 2),
    positions: int | Sequence[int] = 6,
    drop_last: bool = False,
    absent: int | None = None,
    columns: Mapping[str, Column] | None = None,
) -> None:
    """Check the law of resume on a source: a run that stops anywhere continues unchanged, at any world size.

    It takes the snapshot twice, and once more by the pin in a state; reads records singly and in runs; runs an epoch at
    each world size and saves a state after every batch; restores states in new feeds, each at every world size, and
    compares what is left of the epoch and the first batch of the next: ids, ok, fields, a hash of each image's pixels,
    and the rows of packed columns, those of a global batch as a set where world sizes differ. It runs on the CPU and
    needs no torch of its own. About 2 * (positions + 1) * len(world_sizes) passes over parts of the source: give it
    hundreds of records, not millions.

    Args:
        source: what is checked. Its contents must not change meanwhile.
        batch_size: samples of a global batch; `lanes` must divide it. Several batches should fit into the source.
        shuffle: False, True, or a `Shuffle`; small windows give more borders between windows to stop at.
        transform: as in `Feed`; a random one shows that random numbers continue too. Images of several sizes need one.
        seed: of order and augmentation.
        lanes: each world size must divide it.
        world_sizes: at which the same epoch is run and each state is restored.
        positions: after how many batches states are restored: so many, spread evenly from the epoch's start to its
            end, or a list of numbers of batches.
        drop_last: as in `Feed`.
        absent: how many positions hold no record; None: any number, as in a Kafka partition. A record that a source
            always leaves out is seen only by this.
        columns: as in `Feed`, of a source that names its members; give arrays their shape.

    Raises:
        AssertionError: the law is broken; the message says after which batch and at which world size, and names the
            first sample that differs with its record's coordinates.
        ConfigError: values that are not allowed.

    Example:
        def test_my_source_resumes_anywhere():
            assert_resumes_anywhere(MySource(path), shuffle=Shuffle(3, 2), lanes=4, world_sizes=(1, 2, 4), absent=0)
    """
    lanes = whole("lanes", lanes, 1)
    sizes = [whole("world_sizes", size, 1) for size in world_sizes]
    if not sizes or whole("batch_size", batch_size, 1) % lanes or any(lanes % size for size in sizes):
        raise ConfigError(
            "assert_resumes_anywhere: lanes must divide batch_size, and each world size must divide lanes;"
            f" found batch_size={batch_size}, lanes={lanes}, world_sizes={tuple(world_sizes)}"
        )
    options = {
        "shuffle": shuffle,
        "transform": transform,
        "seed": seed,
        "lanes": lanes,
        "drop_last": drop_last,
        "columns": columns,
        "tuning": QUICK,
    }
    with _naming("the snapshot, or a read of single records"):
        snapshot = _stable_snapshot(source)
        chosen: Mapping[str, Column] = source.preset if columns is None else columns
        names = list(dict.fromkeys(column.member for column in chosen.values()))
        assert_rows_are_pure(source, names, snapshot, absent)
    fields = tuple(name for name, column in chosen.items() if not isinstance(column, Image))
    check = _Check(source, batch_size, options, fields)
    runs = {size: check.whole_run(size) for size in sizes}
    wanted = runs[sizes[0]]
    for size in sizes[1:]:
        check.same_run(wanted, runs[size], f"world size {size} beside {sizes[0]}")
    for k, size in enumerate(sizes):
        saved_at = sizes[k - 1]  # another one where there is one
        for position in _chosen(positions, wanted.batches):
            check.restore(runs[saved_at].states[position], position, size, saved_at, runs[size])


@dataclass(frozen=True, slots=True)
class _GlobalBatch:
    """A global batch: its slots, lane by lane, and the rows of its packed columns, rank by rank."""

    slots: Slots
    packs: Packs


@dataclass(frozen=True, slots=True)
class _Run:
    """An epoch and the first batch after it: global batches, and the state before each and at the epoch's end."""

    steps: list[_GlobalBatch]
    states: list[dict[str, Any]]

    @property
    def batches(self) -> int:
        return len(self.steps) - 1


class _Ranks:
    """The feeds of one world size, in step."""

    def __init__(self, source: Source, world_size: int, batch_size: int, options: dict[str, Any]) -> None:
        self.size, self._lanes = world_size, options["lanes"]
        shared = {"world_size": world_size, "bad": BadRecords(limit=None), **options}
        self.feeds = [Feed(source, batch_size // world_size, rank=rank, **shared) for rank in range(world_size)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for feed in self.feeds:
            feed.close()

    def state(self) -> dict[str, Any]:
        """The state, which must be the same on all ranks, through JSON."""
        states = [feed.state_dict() for feed in self.feeds]
        assert all(_position(state) == _position(states[0]) for state in states), (
            f"world size {self.size}: the state must be the same on all ranks; found {states}"
        )
        return dict(json.loads(json.dumps(states[0])))

    def load(self, state: dict[str, Any]) -> None:
        for feed in self.feeds:
            feed.load_state_dict(state)

    def batches(self) -> Iterator[_GlobalBatch]:
        """Global batches of the next pass."""
        passes = [iter(feed) for feed in self.feeds]
        while True:
            parts = [next(one, None) for one in passes]
            there = [slots_of(part) for part in parts if part is not None]
            packs = [pack for part in parts if part is not None for pack in packs_of(part)]
            if not there:
                return
            counts = [len(part) for part in there]
            assert len(there) == len(parts), (
                f"world size {self.size}: all ranks must give as many batches; {len(there)} of {len(parts)} gave more"
            )
            assert len(set(counts)) == 1, (
                f"world size {self.size}: the batches of a step must be of one size on all ranks; found {counts} slots"
            )
            yield _GlobalBatch(self._joined(there), packs)

    def _joined(self, parts: list[Slots]) -> Slots:
        """Rank r holds the lanes l with l % size == r, each with as many slots."""
        each = len(parts[0]) * self.size // self._lanes
        turns = [(lane % self.size, lane // self.size * each) for lane in range(self._lanes)]
        return [slot for rank, at in turns for slot in parts[rank][at : at + each]]


class _Check:
    """One source, with what it is run with."""

    def __init__(self, source: Source, batch_size: int, options: dict[str, Any], fields: tuple[str, ...]) -> None:
        self._source, self._batch_size, self._options, self._fields = source, batch_size, options, fields

    def whole_run(self, world_size: int) -> _Run:
        """An epoch that is not interrupted, and the batch after it."""
        with _naming(f"world size {world_size}, an epoch that is not interrupted"), self._ranks(world_size) as ranks:
            promised = {len(feed) for feed in ranks.feeds}
            states, steps = [ranks.state()], []
            for batch in ranks.batches():
                steps.append(batch)
                states.append(ranks.state())
            assert promised == {len(steps)}, (
                f"len() must be the number of batches, {len(steps)}, on all ranks; found {sorted(promised)}"
            )
            steps.append(next(ranks.batches()))
        return _Run(steps, states)

    def same_run(self, wanted: _Run, other: _Run, at: str) -> None:
        """Global batches and states do not depend on the world size."""
        self._compare(wanted.steps, other.steps, 0, at, in_order=False)
        for n, (a, b) in enumerate(zip(wanted.states, other.states, strict=True)):
            assert _position(a) == _position(b), (
                f"{at}: the state after {n} batches must be the same; found {a} and {b}"
            )

    def restore(self, state: dict[str, Any], position: int, size: int, saved_at: int, wanted: _Run) -> None:
        """A new run from `state` on must give what the uninterrupted one gave."""
        at = f"saved after {position} batches at world size {saved_at}, restored at world size {size}"
        with _naming(at), self._ranks(size) as ranks:
            ranks.load(state)
            assert _position(ranks.state()) == _position(state), (
                f"{at}: state_dict() must give the state that was loaded, {state}; found {ranks.state()}"
            )
            rest = [*ranks.batches(), next(ranks.batches())]
        self._compare(wanted.steps[position:], rest, position, at)

    def _compare(
        self, wanted: list[_GlobalBatch], steps: list[_GlobalBatch], first: int, at: str, *, in_order: bool = True
    ) -> None:
        for n, (one, other) in enumerate(zip(wanted, steps, strict=False), first):
            a, b = one.slots, other.slots
            for k, (x, y) in enumerate(zip(a, b, strict=False)):
                assert x == y, f"{at}: batch {n}, slot {k} must be {self._slot(x)}; found {self._slot(y)}"
            assert len(a) == len(b), f"{at}: batch {n} must hold {len(a)} slots; found {len(b)}"
            rows, others = (one.packs, other.packs) if in_order else (sorted(one.packs), sorted(other.packs))
            for k, (row, another) in enumerate(zip(rows, others, strict=False)):
                assert row == another, f"{at}: batch {n}, packed row {k} must be {row}; found {another}"
            assert len(rows) == len(others), f"{at}: batch {n} must hold {len(rows)} packed rows; found {len(others)}"
        assert len(wanted) == len(steps), f"{at}: {len(wanted)} batches must follow; found {len(steps)}"

    def _ranks(self, world_size: int) -> _Ranks:
        return _Ranks(self._source, world_size, self._batch_size, self._options)

    def _where(self, sample: int) -> str:
        partition, position = unpack_ids(np.asarray(sample))
        return self._source.where(int(partition), int(position))

    def _slot(self, slot: Slot) -> str:
        fields = ", ".join(f"{k}={v!r}" for k, v in zip(self._fields, slot.fields, strict=False))
        return f"{self._where(slot.sample)} (ok={slot.ok}, {fields}, pixels {slot.pixels})"


@contextlib.contextmanager
def _naming(at: str) -> Iterator[None]:
    """Turns an error that ends a run into the AssertionError that the run has not gone on."""
    try:
        yield
    except ConfigError:
        raise
    except DaliFeedError as error:
        raise AssertionError(f"{at}: {type(error).__name__}: {error}") from error


def _stable_snapshot(source: Source) -> Snapshot:
    first = source.snapshot()
    others = {"taken again": source.snapshot()}
    if first.pin is not None:
        others["taken by its pin"] = source.snapshot(json.loads(json.dumps(dict(first.pin))))
    for how, other in others.items():
        _assert_same(first, other, first.source, how)
    return first


def _assert_same(first: Snapshot, other: Snapshot, source: str, how: str) -> None:
    for name in Snapshot.__dataclass_fields__:
        a, b = getattr(first, name), getattr(other, name)
        if name == "parts" and len(a) == len(b):
            for part, its in zip(a, b, strict=True):
                _assert_same(part, its, source, how)
            continue
        same = np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b
        assert same, f"{source}: a snapshot {how} must be the same; {name} was {a!r} and is {b!r}"


def _position(state: dict[str, Any]) -> dict[str, Any]:
    """A state without what is there for people."""
    return {name: value for name, value in state.items() if name != "info"}


def _chosen(positions: int | Sequence[int], batches: int) -> list[int]:
    """Numbers of batches, 0 and all of them among them unless they are listed."""
    if isinstance(positions, int):
        count = min(whole("positions", positions, 1), batches + 1)
        return sorted({k * batches // max(1, count - 1) for k in range(count)})
    wrong = [n for n in positions if not 0 <= n <= batches]
    if wrong or not positions:
        raise ConfigError(f"positions: must be numbers of batches in 0..{batches}; found {list(positions)}")
    return sorted(set(positions))
