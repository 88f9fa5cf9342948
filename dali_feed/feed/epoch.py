"""One pass over an epoch: lanes that read ahead by its plan, and batches of known sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dali_feed.engines.ranges import WAITS
from dali_feed.feed.lane import Lane
from dali_feed.feed.mixed_lane import MixedLane
from dali_feed.feed.run import Run
from dali_feed.feed.setting import EpochSetting
from dali_feed.feed.watchdog import reads
from dali_feed.quarantine.budget import Quarantine

__all__ = ["EpochRun"]


class EpochRun(Run):
    """An iterator over `counts` batches; batch k takes counts[k] slots of every lane."""

    setting: EpochSetting

    def __init__(
        self, setting: EpochSetting, lanes: Sequence[Lane | MixedLane], counts: Sequence[int], quarantine: Quarantine
    ) -> None:
        self._lanes, self._counts = lanes, counts
        self._look_ahead = True  # reads may be asked for since the last look
        super().__init__(setting, len(lanes), quarantine)

    def _halt(self) -> None:
        self.setting.pool.halt()

    def _resume(self) -> None:
        self.setting.pool.resume()

    def _source(self) -> str:
        return reads(self.setting)

    def _feed(self) -> BaseException | None:
        self.setting.engine.enter()
        self.setting.meter.clock()  # runs from here on
        wrong: BaseException | None = None
        for count in self._counts:
            self._make_room(count)
            try:
                self._fly(count)
            except Exception as error:  # noqa: BLE001  whatever it is, the trainer must see it, and in its place
                error.add_note("Stage: feed")
                wrong = error
                break
        while self._flying:
            self._land()  # an error ends the pass: no later batch may come in this one's place
        if wrong is None:
            self._finish()
        return wrong

    def _make_room(self, count: int) -> None:
        """Hand over finished batches until the next one can be filled and submitted without delaying any."""
        while self._flying:
            full = len(self._flying) >= self.setting.engine.depth
            if not full and all(lane.ready(count) for lane in self._lanes):
                return
            self._land()

    def _fly(self, count: int) -> None:
        if self._look_ahead:
            self._look_ahead = False
            self._read_ahead()
        with WAITS["read_wait"], self.setting.meter.waiting("read_wait"):
            for lane in self._lanes:
                known = bool(self.setting.sizes)
                lane.wait(count)
                if not known and self.setting.sizes:
                    self._read_ahead()
        dealt = sum(lane.dealt for lane in self._lanes)
        pieces = [piece for lane in self._lanes for piece in lane.take(count)]
        self._look_ahead = sum(lane.dealt for lane in self._lanes) > dealt
        self._start(pieces)

    def _land(self) -> None:
        flight, batch = self._landed_batch()
        self._look_ahead |= any(piece.chunk.window.left == 0 for piece in flight.pieces)  # memory went back
        self._hand_over(batch)

    def _read_ahead(self) -> None:
        """Request reads in order of need, lane by lane in turn, as far as each lane's part of the memory allows.

        Before the first is done only a sample of sizes is known: no more reads than there are readers.
        """
        strands = [strand for lane in self._lanes for strand in lane.strands]
        part = self.setting.memory // len(strands)
        most = math.inf if self.setting.sizes else self.setting.readers
        ahead = [(lane, lane.reads_ahead()) for lane in strands]
        while ahead:
            for turn in list(ahead):
                lane, reads = turn
                task = next(reads, None)
                if task is None or lane.held() + task.held > part:
                    ahead.remove(turn)
                else:
                    self.setting.pool.request(task)
                    most -= 1
                if most <= 0:
                    return

    def _release(self) -> None:
        for lane in self._lanes:
            lane.close()
