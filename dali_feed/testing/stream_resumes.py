"""The law of a stream's state as a test that any source of streams can be held to.

States taken after any batches, of all ranks, go on at any other number of ranks: nothing is lost, nothing comes twice,
and a record has the same pixels wherever it comes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from dali_feed.columns.column import Column
from dali_feed.errors import ConfigError, WaitError
from dali_feed.feed import Feed
from dali_feed.options import Tuning
from dali_feed.records.live import Stream
from dali_feed.records.source import unpack_id
from dali_feed.testing.slots import Slot, slots_of

QUICK = Tuning(threads=1)
MORE, SOON = 3, 0.02  # how many of the pace's timeouts it waits after the last record: one that comes twice is seen

Lines = dict[int, list[Slot]]  # partition -> its records in order


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
    options: dict[str, Any] = {"transform": transform, "seed": seed, "columns": columns, "tuning": QUICK}
    check = _Check(source, batch_size, options, timeout)
    wanted: Lines = {}
    with check.feeds(1, None) as (feed,):
        count = check.take(feed, wanted, "the stream as it is", until=records)
    assert count == records, f"the stream as it is must give {records} records; found {count}"
    for world_size in world_sizes:
        for stop in positions:
            at = f"stopped after {stop} batches at world size {world_size}"
            before: Lines = {}
            states = []
            with check.feeds(world_size, None) as feeds:
                for rank, feed in enumerate(feeds):
                    mine = sum(len(line) for p, line in wanted.items() if p % world_size == rank)
                    check.take(feed, before, at, until=mine, batches=stop)
                    states.append(json.loads(json.dumps(feed.state_dict())))
            for other in world_sizes:
                resumed = {p: list(line) for p, line in before.items()}
                with check.feeds(other, states) as feeds:
                    for rank, feed in enumerate(feeds):
                        left = sum(
                            len(line) - len(before.get(p, ())) for p, line in wanted.items() if p % other == rank
                        )
                        check.take(feed, resumed, f"{at}, continued at world size {other}", until=left)
                check.compare(wanted, resumed, f"{at}, continued at world size {other}")


class _Check:
    def __init__(self, source: Stream, batch_size: int, options: dict[str, Any], timeout: float) -> None:
        self._source, self._batch_size, self._options, self._timeout = source, batch_size, options, timeout

    @contextmanager
    def feeds(self, world_size: int, states: list[dict[str, Any]] | None) -> Iterator[list[Feed]]:
        """Feeds of all ranks, that go on from these states, closed at the end."""
        with ExitStack() as opened:
            feeds = []
            for rank in range(world_size):
                feed = Feed(self._source, self._batch_size, rank=rank, world_size=world_size, **self._options)
                feeds.append(opened.enter_context(feed))
                if states is not None:
                    feed.load_state_dict(states if len(states) != world_size else states[rank])
            yield feeds

    def take(self, feed: Feed, into: Lines, at: str, *, until: int, batches: int | None = None) -> int:
        """Batches until so many good records have come and no more come, or so many batches."""
        count = taken = 0
        passing = iter(feed)
        while taken != batches and count <= until:
            try:
                batch = passing.take(self._timeout if count < until else MORE * (self._source.pace.timeout or SOON))
            except WaitError as error:
                if count == until:
                    break
                msg = f"{at}: rank {feed.rank} must get {until} records; {until - count} are lost ({error})"
                raise AssertionError(msg) from error
            taken += 1
            if count == until and not len(batch):  # a pace that hands over nothing where nothing comes
                break
            for slot in slots_of(batch):
                if slot.ok:  # else it stands in for a bad one
                    into.setdefault(unpack_id(slot.sample)[0], []).append(slot)
                    count += 1
        return count

    def compare(self, wanted: Lines, resumed: Lines, at: str) -> None:
        for partition in sorted({*wanted, *resumed}):
            one, other = wanted.get(partition, []), resumed.get(partition, [])
            for k, (a, b) in enumerate(zip(one, other, strict=False)):
                assert a == b, (
                    f"{at}: record {k} of partition {partition} must be {self._slot(a)}; found {self._slot(b)}"
                )
            assert len(one) == len(other), (
                f"{at}: partition {partition} must give {len(one)} records; found {len(other)}"
            )

    def _slot(self, slot: Slot) -> str:
        return f"{self._source.where(*unpack_id(slot.sample))} ({slot.fields}, pixels {slot.pixels})"
