"""One pass over a stream: a thread that runs batches as they come, and hands each over as soon as it can.

The law: a finished batch never waits for a record that has not come. A record that is bad is replaced in its slot by
the next good one of its batch; a batch without a good record is no batch: its records are counted and kept as bad ones
are, and the next batch's position is behind them.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.bad_records import Quarantine
from dali_feed.columns.column import Column
from dali_feed.columns.columns import Columns
from dali_feed.engines.engine import Pixels
from dali_feed.errors import DaliFeedError
from dali_feed.feed.batch import Batch, Companions
from dali_feed.feed.lane import Chunk, Piece
from dali_feed.feed.run import FeedRun, Setting
from dali_feed.feed.window import Rows, WindowRecords
from dali_feed.live.gather import Gathered, Gatherer, Progress
from dali_feed.records.pieces import Pieces
from dali_feed.transforms.program import Program

__all__ = ["EmptyBatches", "LiveRun"]


# A batch of a stream in memory, and the rule for which of its records fills which slot.
#
# The law: a slot whose record is bad is taken by the next good record of the same batch, from the first again after the
# last: no other record may be near.


class NoneGoodError(DaliFeedError):
    """No record of a batch is good: it is not handed over."""


class LiveWindow(WindowRecords):
    """The records of a gathered batch, one slot each; their memory goes back with it."""

    def __init__(self, gathered: Gathered, columns: Columns, where: Callable[[int], str]) -> None:
        super().__init__(columns, where)
        self._gathered, blocks = gathered, gathered.blocks
        ids = [block.ids for block in blocks]
        self._hold(ids[0] if len(ids) == 1 else np.concatenate(ids))
        self.order: Rows = np.arange(self.rows, dtype=np.int64)
        self.left = self.rows
        first = 0
        for block in blocks:
            self._put(first, first + len(block.ids), block)
            first += len(block.ids)

    def deal(self, first: int, stop: int) -> tuple[Rows, NDArray[np.bool_]]:
        """The rows that fill slots first..stop-1, and which of them are the slots' own. NoneGoodError."""
        rows = self.order[first:stop].copy()
        ok = self.usable[rows]
        if not ok.all():
            good = np.flatnonzero(self.usable)
            if not good.size:
                msg = f"a batch of {self.rows} records: none of them is good"
                raise NoneGoodError(msg)
            rows[~ok] = good[np.searchsorted(good, rows[~ok]) % len(good)]
        return rows, ok

    def release(self) -> None:
        """Give all memory back; views into it must not be used any more."""
        self.values = {}
        self._gathered.release()


# A batch without records: what a rank is given that has none, so that it need not keep the others waiting.
#
# Its dtypes and shapes are those that transforms and columns say; where they do not, those of the batch before it.


class EmptyBatches:
    """Makes them. Used by one thread at a time."""

    def __init__(self, program: Program, columns: Columns, device: int | None, companions: Companions) -> None:
        self._program, self._columns, self._device, self._companions = program, columns, device, companions
        self._open = not program.sized  # sizes are learnt from batches
        self._seen: dict[int, Any] = {}
        self._fields: dict[str, Any] | None = None

    def saw(self, batch: Batch) -> None:
        """A batch with records: later empty ones are as it is."""
        if self._fields is None:
            self._fields = {name: _none_of(values) for name, values in batch.fields.items()}
        if self._open and self._program.outputs and batch.tail is None:
            from dali_feed.engines.finish import like  # torch: there since an engine made images

            self._seen = {view: like(each.images) for view, each in enumerate((batch, *batch.more))}

    def batch(self) -> Batch:
        """A batch of no rows."""
        images: list[Pixels] = []
        if self._program.outputs:
            from dali_feed.engines.finish import no_images

            images = [Pixels(made, None) for made in no_images(self._program, self._device, self._seen)]
        more = iter(images[1:])
        known = self._begun() if self._fields is None else self._fields
        fields = {name: next(more) if isinstance(values, Pixels) else values for name, values in known.items()}
        first = images[0].images if images else None
        made = Batch(first, None, fields, np.zeros(0, np.int64), np.zeros(0, bool), tuple(images[1:]))
        made.beside = dict(self._companions(made, 0))
        return made

    def _begun(self) -> dict[str, Any]:
        """The fields before any batch has been seen."""
        return {name: _column(self._columns.given[name]) for name in self._columns.others}


def _none_of(values: Any) -> Any:
    """No rows of such values."""
    if isinstance(values, tuple) and hasattr(values, "_fields"):
        return type(values)(*map(_none_of, values))
    if isinstance(values, Pixels):
        return values
    if isinstance(values, Pieces):
        return Pieces.none(0)
    return values[:0].copy() if isinstance(values, np.ndarray) else []


def _column(column: Column) -> Any:
    """No rows of a column, where it can say; a list where the first record is needed for that."""
    try:
        return _none_of(column.of_lanes(column.read([], {}), 1))
    except Exception:  # noqa: BLE001  it may be a user's own, and need not think of no records
        return []


class LiveRun(FeedRun):
    """An iterator over the batches that `gatherer` gathers."""

    def __init__(
        self,
        setting: Setting,
        gatherer: Gatherer,
        progress: Progress,
        columns: Columns,
        empty: EmptyBatches,
        quarantine: Quarantine,
    ) -> None:
        self.gatherer, self._progress, self._columns, self._empty = gatherer, progress, columns, empty
        self._behind: deque[dict[int, int]] = deque()  # where the batches in flight end
        self._passed: dict[int, int] = {}  # the ends of batches without a good record
        self._windows: deque[LiveWindow] = deque()  # of the batches in flight
        self._in_vain = 0  # records read since the last batch, all of them bad
        super().__init__(setting, 1, quarantine)

    def begin(self) -> None:
        """Have its threads read and feed it."""
        self.gatherer.begin()
        super().begin()

    def _halt(self) -> None:
        self.gatherer.stop()

    def _release(self) -> None:
        self.gatherer.stop()
        while self._windows:
            self._windows.popleft().release()

    def _source(self) -> str:
        return self.gatherer.told()

    def _stuck(self) -> str:
        """Where records come and none is good, that is why no batch does, whatever is at work."""
        told, bad = super()._stuck(), self._in_vain
        if not bad:
            return told
        last = "; the last of them {}: {}".format(*self._quarantine.recent[-1]) if self._quarantine.recent else ""
        return f"{told}; all {bad} records that were read since the last batch are bad{last}"

    def _alarm(self) -> int:
        """A stream on which nothing comes is no trouble."""
        quiet = self.setting.meter.now()[0] == "source" and not self.gatherer.trouble and not self._in_vain
        return logging.INFO if quiet else logging.WARNING

    def _feed(self) -> BaseException | None:
        """Feed batches until an error ends it, which is returned after all batches before it were handed over."""
        self.setting.engine.enter()
        self.setting.meter.clock()  # runs from here on
        while True:
            self._make_room()
            try:
                with self.setting.meter.at("source"):
                    gathered = self.gatherer.take()
                self._fly(gathered)
            except Exception as error:  # noqa: BLE001  whatever it is, the trainer must see it, and in its place
                error.add_note("Stage: feed")
                while self._flying:
                    self._land()
                return error

    def _make_room(self) -> None:
        """Hand over what is done, or will be, until there is another batch to run beside it."""
        while self._flying and (len(self._flying) >= self.setting.engine.depth or not self.gatherer.ready()):
            self._land()

    def _fly(self, gathered: Gathered) -> None:
        if not gathered.count:
            while self._flying:
                self._land()
            batch = self._empty.batch()
            batch.position = self._passed | gathered.position
            self._passed = {}
            self._hand_over(batch)
            return
        try:
            window = LiveWindow(gathered, self._columns, self.setting.where)
        except BaseException:
            gathered.release()
            raise
        self._windows.append(window)
        try:
            rows, ok = window.deal(0, window.rows)
        except NoneGoodError:
            while self._flying:
                self._land()
            self._windows.pop()
            self._pass_over(window, gathered.position)
            return
        ids = window.ids[rows]
        drawn = self.setting.draw(window.sizes(rows), ids, window.turn)
        chunk = Chunk(window, 0, rows, ok, ids, window.good_values(rows), *drawn, window.good_payloads(rows))
        self._start([Piece(chunk, 0, window.rows)])
        self._behind.append(gathered.position)

    def _pass_over(self, window: LiveWindow, position: dict[int, int]) -> None:
        """A batch none of whose records is good."""
        try:
            for row in sorted(window.faults):
                self._quarantined(row, window.bad_record(row))
        finally:
            self._landed += window.rows
            self._in_vain += window.rows
            self._passed |= position
            window.release()
            self._progress.moved()

    def _land(self) -> None:
        window, position = self._windows[0], self._behind[0]
        try:
            _, batch = self._landed_batch()
        except NoneGoodError:
            self._windows.popleft()
            self._behind.popleft()
            self._pass_over(window, position)
            return
        self._windows.popleft()
        self._behind.popleft()
        batch.position, self._passed = self._passed | position, {}
        self._in_vain = 0
        self._empty.saw(batch)
        self._progress.moved()
        self._hand_over(batch)
