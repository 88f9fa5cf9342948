"""One pass over a stream: a thread that runs batches as they come, and hands each over as soon as it can.

The law: a finished batch never waits for a record that has not come. A record that is bad is replaced in its slot by
the next good one of its batch; a batch without a good record is no batch: its records are counted and kept as bad ones
are, and the next batch's position is behind them.
"""

from __future__ import annotations

import logging
from collections import deque

from dali_feed.engines.ranges import WAITS
from dali_feed.feed.lane import Chunk, Piece
from dali_feed.feed.run import Run
from dali_feed.feed.setting import Setting
from dali_feed.feed.usable import Look
from dali_feed.live.empty import Empty
from dali_feed.live.gather import Gathered, Gatherer
from dali_feed.live.progress import Progress
from dali_feed.live.window import LiveWindow, NoneGoodError
from dali_feed.quarantine.budget import Quarantine

__all__ = ["LiveRun"]


class LiveRun(Run):
    """An iterator over the batches that `gatherer` gathers."""

    def __init__(
        self,
        setting: Setting,
        gatherer: Gatherer,
        progress: Progress,
        look: Look,
        empty: Empty,
        quarantine: Quarantine,
    ) -> None:
        self.gatherer, self._progress, self._look, self._empty = gatherer, progress, look, empty
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
        quiet = self.setting.meter.now()[0] == "read_wait" and not self.gatherer.trouble and not self._in_vain
        return logging.INFO if quiet else logging.WARNING

    def _feed(self) -> BaseException | None:
        """Feed batches until an error ends it, which is returned after all batches before it were handed over."""
        self.setting.engine.enter()
        self.setting.meter.clock()  # runs from here on
        while True:
            self._make_room()
            try:
                with WAITS["read_wait"], self.setting.meter.waiting("read_wait"):
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
            window = LiveWindow(gathered.blocks, self._look, self.setting.where)
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
        chunk = Chunk(
            window,
            0,
            rows,
            ok,
            ids,
            window.good_fields(rows),
            self.setting.draw(window.sizes[rows], ids, window.turn),
            self.setting.engine.prepare(window.good_payloads(rows)),
        )
        self._start([Piece(chunk, 0, window.rows)])
        self._behind.append(gathered.position)

    def _pass_over(self, window: LiveWindow, position: dict[int, int]) -> None:
        """A batch none of whose records is good."""
        try:
            for row in sorted(window.reasons):
                self._quarantined(row, window.fault(row))
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
