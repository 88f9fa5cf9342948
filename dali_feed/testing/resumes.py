"""The law of resume as a test that any source can be held to, bounded or a stream.

Of a bounded one: a state taken after any batch, restored in a new feed at any world size that divides the lanes, gives
the rest bit for bit; what a feed reads for it, whatever the source, is a test of the feed. Of a stream: states taken
after any batches, of all ranks, go on at any other number of ranks: nothing is lost, nothing comes twice, and a record
has the same pixels wherever it comes.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from dali_feed.checks import whole
from dali_feed.columns.column import Column
from dali_feed.columns.packed import PackedBatch
from dali_feed.columns.request import open_reader
from dali_feed.engines.engine import Pixels
from dali_feed.errors import ConfigError, DaliFeedError, WaitError
from dali_feed.feed import Batch, Feed
from dali_feed.options import BadRecords, Tuning
from dali_feed.plan.order import Shuffle, canonical
from dali_feed.records.live import Stream
from dali_feed.records.slabs import SlabPool
from dali_feed.records.source import Block, Extents, Records, Snapshot, Source, unpack_id

SINGLE = 24  # positions that are read by themselves
MIXED = 8  # extents in a read of several
LISTED = 32  # numbers of an array that are shown; of a longer one its hash
ABSENT = "absent"
MORE, SOON = 3, 0.02  # how many of the pace's timeouts it waits after the last record: one that comes twice is seen

_Row = str | tuple[Any, ...]  # what a reader gives for a position: its values, its fault in words, or that it is absent


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
        "bad": BadRecords(limit=None),
        "tuning": Tuning(threads=1, readers=1, next_epoch=False),
    }
    with _naming("the snapshot, or a read of single records"):
        snapshot = _stable_snapshot(source)
        chosen: Mapping[str, Column] = source.preset if columns is None else columns
        names = list(dict.fromkeys(column.member for column in chosen.values()))
        _assert_rows_are_pure(source, names, snapshot, absent)
    check = _Check(source, batch_size, options)
    runs = {size: check.whole_run(size) for size in sizes}
    wanted = runs[sizes[0]]
    for size in sizes[1:]:
        check.same_run(wanted, runs[size], f"world size {size} beside {sizes[0]}")
    for position, k in _restores(_chosen(positions, wanted.batches), len(sizes)):
        size, saved_at = sizes[k], sizes[k - 1]  # another one where there is one
        check.restore(runs[saved_at].states[position], position, size, saved_at, runs[size])


@dataclass(frozen=True, slots=True)
class _Slot:
    """What a trainer can see of one slot; of images a hash of each one's pixels."""

    sample: int
    ok: bool
    fields: tuple[tuple[str, Any], ...]
    pixels: str

    def shown(self, source: Records) -> str:
        """It as people read it."""
        fields = "".join(f", {name}={value!r}" for name, value in self.fields)
        return f"{_where(source, self.sample)} (ok={self.ok}{fields}, pixels {self.pixels})"


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a trainer can see of a batch: its slots in order, and the rows of its packed columns, each of several."""

    slots: list[_Slot]
    packs: list[tuple[Any, ...]]


def _seen(batch: Batch) -> _Seen:
    pixels = ["none"] * len(batch) if batch.images is None else _rows(batch)
    packed = {name: _rows(values) for name, values in batch.fields.items() if isinstance(values, PackedBatch)}
    columns = {name: _rows(values) for name, values in batch.fields.items() if name not in packed}
    slots = [
        _Slot(int(sample), bool(ok), tuple((name, rows[k]) for name, rows in columns.items()), pixels[k])
        for k, (sample, ok) in enumerate(zip(batch.ids.tolist(), batch.ok.tolist(), strict=True))
    ]
    packs = [(name, *map(_comparable, row)) for name, rows in packed.items() for row in rows]
    return _Seen(slots, packs)


def _rows(values: Any) -> list[Any]:
    """A field's values, one per slot; of several arrays a tuple per slot, of images a hash of each one's pixels."""
    if isinstance(values, Pixels):
        try:
            pixels = np.asarray(values.images)
        except TypeError:  # bfloat16, which NumPy does not know; float32 holds it exactly
            pixels = np.asarray(values.images.float())
        return [_hashed(np.ascontiguousarray(image)) for image in pixels]
    if isinstance(values, tuple):
        return list(zip(*map(_rows, values), strict=True))
    if isinstance(values, np.ndarray):
        return values.tolist() if values.ndim < 2 else list(map(_comparable, values))
    return list(values)


def _comparable(value: Any) -> Any:
    """A value that stays what it is when the block's memory goes back, and can be compared and put in order."""
    if isinstance(value, memoryview | bytes):
        return f"{len(value)} bytes ({_hashed(value)})"
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, np.ndarray) and value.size > LISTED and not value.dtype.hasobject:
        return f"{value.dtype} {value.shape} ({_hashed(np.ascontiguousarray(value))})"
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _hashed(data: Any) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def _where(source: Records, sample: int) -> str:
    return source.where(*unpack_id(sample))


@contextlib.contextmanager
def _naming(at: str) -> Iterator[None]:
    """Turns an error that ends a run into the AssertionError that the run has not gone on."""
    try:
        yield
    except ConfigError:
        raise
    except DaliFeedError as error:
        raise AssertionError(f"{at}: {type(error).__name__}: {error}") from error


@contextlib.contextmanager
def _feeds(
    source: Source | Stream, batch_size: int, world_size: int, options: dict[str, Any], at: str
) -> Iterator[list[Feed]]:
    """The feeds of all ranks, closed at the end."""
    with _naming(at), ExitStack() as opened:
        every = (Feed(source, batch_size, rank=rank, world_size=world_size, **options) for rank in range(world_size))
        yield [opened.enter_context(feed) for feed in every]


# A bounded source: its snapshot, its rows, and its epochs at each world size.


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


def _assert_rows_are_pure(source: Source, names: Sequence[str], snapshot: Snapshot, absent: int | None) -> None:
    """Read everything in canonical order, and parts of it again otherwise; every row must come out the same."""
    line = canonical(snapshot, snapshot.extent)
    in_order = [snapshot.located(line[k : k + 1]) for k in range(len(line))]
    seen = {sample: row for _, sample, row in _read(source, names, in_order)}
    missing = [sample for sample, row in seen.items() if row == ABSENT]
    assert absent is None or len(missing) == absent, (
        f"{snapshot.source}: with absent={absent} so many positions must hold no record; found {len(missing)},"
        f" such as {[_where(source, sample) for sample in missing[:3]]}"
    )
    backwards = [line[::-1][k : k + MIXED] for k in range(0, len(line), MIXED)]
    otherwise = [snapshot.located(numbers) for numbers in (*_singles(line), *backwards)]
    for extents, sample, row in _read(source, names, otherwise):
        assert row == seen[sample], (
            f"{_where(source, sample)}: a record must be the same however it is read; in order it was"
            f" {seen[sample]}, in a read of {len(extents)} extents and {int(extents.lengths.sum())} positions"
            f" it is {row}"
        )


def _singles(line: Extents) -> list[Extents]:
    """Single records, spread over the line, back to front; the ends of extents among them."""
    ends = np.cumsum(line.lengths)
    total = int(ends[-1])
    wanted = np.unique(np.linspace(0, total - 1, min(SINGLE, total)).astype(np.int64))[::-1]
    k = np.searchsorted(ends, wanted, side="right")
    position = line.stop[k] - (ends[k] - wanted)
    return [Extents.one(int(p), int(at), int(at) + 1) for p, at in zip(line.partition[k], position, strict=True)]


def _read(source: Source, names: Sequence[str], reads: list[Extents]) -> Iterator[tuple[Extents, int, _Row]]:
    """(read, sample, its row) of each position of some reads of one new reader."""
    pool = SlabPool()
    with contextlib.closing(open_reader(source, names)) as reader:
        for extents in reads:
            lease = pool.lease()
            try:
                rows = _rows_of(source, names, reader.read(extents, lease), extents)
            finally:
                lease.release()
            yield from ((extents, sample, row) for sample, row in rows)


def _rows_of(source: Source, names: Sequence[str], block: Block, extents: Extents) -> list[tuple[int, _Row]]:
    """(sample, its row) of one read."""
    ids, read_ids = extents.ids().tolist(), block.ids.tolist()
    counts = {name: len(block.values[name]) for name in names}
    assert (read_ids, set(counts.values()) - {len(ids)}) == (ids, set()), (
        f"read of {_where(source, ids[0])} to {_where(source, ids[-1])}: must give one row per position, {len(ids)},"
        f" in order; found {len(read_ids)} ids and so many values: {counts}"
    )
    each = zip(ids, *(block.values[name] for name in names), strict=True)
    rows: list[_Row] = [tuple(map(_comparable, values)) for _, *values in each]
    for k, fault in block.faults.items():
        rows[k] = f"a fault: {fault.reason}"
    for k in block.absent_rows():
        rows[k] = ABSENT
    return list(zip(ids, rows, strict=True))


@dataclass(frozen=True, slots=True)
class _Run:
    """An epoch and the first batch after it: global batches, and the state before each and at the epoch's end."""

    steps: list[_Seen]
    states: list[dict[str, Any]]

    @property
    def batches(self) -> int:
        return len(self.steps) - 1


class _Check:
    """One source, with what it is run with."""

    def __init__(self, source: Source, batch_size: int, options: dict[str, Any]) -> None:
        self._source, self._batch_size, self._options = source, batch_size, options

    def whole_run(self, world_size: int) -> _Run:
        """An epoch that is not interrupted, and the batch after it."""
        with self._ranks(world_size, f"world size {world_size}, an epoch that is not interrupted") as feeds:
            promised = {len(feed) for feed in feeds}
            states, steps = [_state(feeds)], []
            for batch in self._steps(feeds):
                steps.append(batch)
                states.append(_state(feeds))
            assert promised == {len(steps)}, (
                f"len() must be the number of batches, {len(steps)}, on all ranks; found {sorted(promised)}"
            )
            steps.append(next(self._steps(feeds)))
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
        with self._ranks(size, at) as feeds:
            for feed in feeds:
                feed.load_state_dict(state)
            now = _state(feeds)
            assert _position(now) == _position(state), (
                f"{at}: state_dict() must give the state that was loaded, {state}; found {now}"
            )
            rest = [*self._steps(feeds), next(self._steps(feeds))]
        self._compare(wanted.steps[position:], rest, position, at)

    def _ranks(self, size: int, at: str) -> contextlib.AbstractContextManager[list[Feed]]:
        return _feeds(self._source, self._batch_size // size, size, self._options, at)

    def _steps(self, feeds: list[Feed]) -> Iterator[_Seen]:
        """Global batches of the next pass of feeds in step: slots lane by lane, packed rows rank by rank."""
        passes, size = [iter(feed) for feed in feeds], len(feeds)
        while parts := [_seen(batch) for one in passes if (batch := next(one, None)) is not None]:
            counts = [len(part.slots) for part in parts]
            assert len(parts) == size, (
                f"world size {size}: all ranks must give as many batches; {len(parts)} of {size} gave more"
            )
            assert len(set(counts)) == 1, (
                f"world size {size}: the batches of a step must be of one size on all ranks; found {counts} slots"
            )
            # Rank r holds the lanes l with l % size == r, each with as many slots.
            lanes = self._options["lanes"]
            each = counts[0] * size // lanes
            turns = [(lane % size, lane // size * each) for lane in range(lanes)]
            slots = [slot for rank, start in turns for slot in parts[rank].slots[start : start + each]]
            yield _Seen(slots, [row for part in parts for row in part.packs])

    def _compare(self, wanted: list[_Seen], steps: list[_Seen], first: int, at: str, *, in_order: bool = True) -> None:
        for n, (one, other) in enumerate(zip(wanted, steps, strict=False), first):
            for k, (x, y) in enumerate(zip(one.slots, other.slots, strict=False)):
                assert x == y, (
                    f"{at}: batch {n}, slot {k} must be {x.shown(self._source)}; found {y.shown(self._source)}"
                )
            a, b = len(one.slots), len(other.slots)
            assert a == b, f"{at}: batch {n} must hold {a} slots; found {b}"
            rows, others = (one.packs, other.packs) if in_order else (sorted(one.packs), sorted(other.packs))
            for k, (row, another) in enumerate(zip(rows, others, strict=False)):
                assert row == another, f"{at}: batch {n}, packed row {k} must be {row}; found {another}"
            assert len(rows) == len(others), f"{at}: batch {n} must hold {len(rows)} packed rows; found {len(others)}"
        assert len(wanted) == len(steps), f"{at}: {len(wanted)} batches must follow; found {len(steps)}"


def _state(feeds: list[Feed]) -> dict[str, Any]:
    """The state, which must be the same on all ranks, through JSON."""
    states = [feed.state_dict() for feed in feeds]
    assert all(_position(state) == _position(states[0]) for state in states), (
        f"world size {len(feeds)}: the state must be the same on all ranks; found {states}"
    )
    return dict(json.loads(json.dumps(states[0])))


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


def _restores(positions: Sequence[int], sizes: int) -> Iterator[tuple[int, int]]:
    """After how many batches which of so many world sizes is gone on with."""
    return itertools.product(positions, range(sizes))


# A stream: the good records of each partition, in order.

_Lines = dict[int, list[_Slot]]  # partition -> its records


def assert_stream_resumes(  # noqa: PLR0913  what a run is made of, as in Feed
    source: Stream,
    *,
    records: int,
    batch_size: int = 4,
    transform: object = None,
    seed: int = 0,
    world_sizes: Sequence[int] = (1, 2),
    positions: Sequence[int] = (0, 1, 2, 3),
    columns: Mapping[str, Column] | None = None,
    timeout: float = 60.0,
) -> None:
    """Check that a stream's states lose nothing and repeat nothing, at any world size.

    It reads the stream once as it is; then at each world size takes so many batches on each rank, saves all states,
    and goes on from them at each world size; together the records must be those of the first time, in the order of
    their partitions, with the same fields and pixels. It runs on the CPU.

    Args:
        source: what is checked. It begins at the same records each time it is opened, and its pace has a timeout.
        records: how many good records it has.
        batch_size: records per batch and rank.
        transform: as in `Feed`; a random one shows that random numbers are the record's own.
        seed: of augmentation.
        world_sizes: at which it is stopped, and continued.
        positions: after how many batches of each rank it is stopped.
        columns: as in `Feed`.
        timeout: seconds without a batch after which records count as lost.

    Raises:
        AssertionError: the law is broken; the message says where it was stopped, and names the first record.
        ConfigError: a source whose batches wait until they are full: its last records would never come.
    """
    if source.pace.timeout is None:
        msg = "assert_stream_resumes: the source's pace must have a timeout, or its last records never come; found None"
        raise ConfigError(msg)
    options = {"transform": transform, "seed": seed, "columns": columns, "tuning": Tuning(threads=1)}
    waits = timeout, MORE * (source.pace.timeout or SOON)
    wanted: _Lines = {}
    at = "the stream as it is"
    with _feeds(source, batch_size, 1, options, at) as (feed,):
        count = _take(feed, wanted, at, waits, until=records)
    assert count == records, f"{at} must give {records} records; found {count}"
    for world_size, stop in itertools.product(world_sizes, positions):
        at = f"stopped after {stop} batches at world size {world_size}"
        before: _Lines = {}
        with _feeds(source, batch_size, world_size, options, at) as feeds:
            for feed in feeds:
                _take(feed, before, at, waits, until=_left(wanted, {}, feed), batches=stop)
            states = [json.loads(json.dumps(feed.state_dict())) for feed in feeds]
        for size in world_sizes:
            going_on = f"{at}, continued at world size {size}"
            resumed = {p: list(line) for p, line in before.items()}
            with _feeds(source, batch_size, size, options, going_on) as feeds:
                for feed in feeds:
                    feed.load_state_dict(states if size != world_size else states[feed.rank])
                for feed in feeds:
                    _take(feed, resumed, going_on, waits, until=_left(wanted, before, feed))
            _compare_lines(source, wanted, resumed, going_on)


def _left(wanted: _Lines, before: _Lines, feed: Feed) -> int:
    """How many records of its partitions this rank has yet to give."""
    mine = [p for p in wanted if p % feed.world_size == feed.rank]
    return sum(len(wanted[p]) - len(before.get(p, ())) for p in mine)


def _take(
    feed: Feed, into: _Lines, at: str, waits: tuple[float, float], *, until: int, batches: int | None = None
) -> int:
    """Batches until so many good records have come and no more come, or so many batches; `waits` for each of these."""
    count = taken = 0
    passing = iter(feed)
    while taken != batches and count <= until:
        try:
            batch = passing.take(waits[count == until])
        except WaitError as error:
            if count == until:
                break
            msg = f"{at}: rank {feed.rank} must get {until} records; {until - count} are lost ({error})"
            raise AssertionError(msg) from error
        taken += 1
        if count == until and not len(batch):  # a pace that hands over nothing where nothing comes
            break
        for slot in _seen(batch).slots:
            if slot.ok:  # else it stands in for a bad one
                into.setdefault(unpack_id(slot.sample)[0], []).append(slot)
                count += 1
    return count


def _compare_lines(source: Stream, wanted: _Lines, resumed: _Lines, at: str) -> None:
    for partition in sorted({*wanted, *resumed}):
        one, other = wanted.get(partition, []), resumed.get(partition, [])
        for k, (a, b) in enumerate(zip(one, other, strict=False)):
            shown = f"{a.shown(source)}; found {b.shown(source)}"
            assert a == b, f"{at}: record {k} of partition {partition} must be {shown}"
        assert len(one) == len(other), f"{at}: partition {partition} must give {len(one)} records; found {len(other)}"
