"""The passes over a feed, as the training loop sees them: each batch taken moves the position.

The law: one pass is under way at most, and only its batches count. One that was begun behind it becomes the next where
the next one is to begin exactly there; otherwise nothing of it is left.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from dali_feed import sync
from dali_feed.errors import ClosedError, ConfigError, WaitError
from dali_feed.feed.batch import Batch
from dali_feed.feed.epoch import EpochRun
from dali_feed.feed.meter import Meter
from dali_feed.plan.state import Position

__all__ = ["Batches", "Life", "Passes"]


# Whether a feed may still be used: until it is closed, and in the process that made it.


class Life:
    """Begins in this process; its owner sets it when it is closed."""

    def __init__(self) -> None:
        self.closed = False
        self._asked = os.getpid  # held here: a child of a fork drops its passes when modules have been taken apart
        self._pid = self._asked()

    @property
    def here(self) -> bool:
        """Whether this is the process that it began in, the only one with its threads."""
        return self._asked() == self._pid

    def check(self) -> None:
        """Raise ClosedError after close(), ConfigError in another process."""
        if self.closed:
            msg = "loader: used after close(); make a new one"
            raise ClosedError(msg)
        if not self.here:
            msg = (
                "loader: made in another process; threads and connections do not survive fork. Make it in this process"
            )
            raise ConfigError(msg)


class Passes:
    """The passes of a feed, one after another: `at` is the training loop's position, `run` the pass under way."""

    def __init__(self, life: Life, meter: Meter) -> None:
        self.at = Position()
        self.run: EpochRun | None = None
        self._life, self._meter = life, meter
        self._ahead: EpochRun | None = None  # the pass that was begun behind it
        self._given = False  # whether all batches of the pass under way have been taken
        self._epoch: int | None = None  # the next pass's, where the user has said it while one was under way
        self._leaving: EpochRun | None = None  # a pass that is over, while its thread is still inside a decoder

    # What a feed does with them.

    def begun(self) -> EpochRun | None:
        """The pass that the training loop asks for, where it has been begun; it is then the one under way."""
        self.leave()
        if self._ahead is not None and not self._ahead.want():
            self.end()
        self.run, self._ahead = self._ahead, None
        self._given = False
        return self.run

    def start(self, run: EpochRun) -> EpochRun:
        """That pass is under way: known here before its thread runs, so that no interrupt leaves one to itself."""
        self.run = run
        run.begin()
        return run

    def leave(self) -> None:
        """Any pass under way is over, and the position is where the next one begins."""
        epoch, self._epoch = self._epoch, None
        if epoch is not None:
            self.at.set_epoch(epoch)
        self.at.leave()
        self._settle()

    def skip(self) -> None:
        """The epoch of a pass that gave a batch is over, and the pass with it."""
        self.at.skip()
        self._settle()

    def set_epoch(self, epoch: int) -> None:
        """The next pass is that of `epoch`; one that is under way goes on."""
        if self.run is not None:
            self._epoch = epoch
            return
        self._epoch = None
        if self.at.set_epoch(epoch):
            self._settle()

    def go_to(self, epoch: int, consumed: int) -> None:
        """The pass under way is over, and the next one begins there, whatever was said before."""
        self.end()
        self._epoch = None
        self.at.go_to(epoch, consumed)

    def end(self) -> None:
        """The pass under way is over: batches it might still give would not be counted from here."""
        for run in (self.run, self._ahead):
            if run is not None:
                run.close()
                self._leaving = run if run.alive else self._leaving
        self.run = self._ahead = None

    def _settle(self) -> None:
        """The pass under way is over; the one behind it stays where the next one begins there."""
        if self.run is not None and self._given and self.run.well:
            self._hand_on(self.run)
        at, ahead = self.at, self._ahead
        if self.run is not None or ahead is None or not at.fresh or ahead.epoch != at.epoch:
            self.end()

    def _hand_on(self, run: EpochRun) -> None:
        """The pass behind that one is held here before that one lets go of it, whenever an interrupt comes."""
        self._ahead = run.hand_on()
        self.run = None
        run.next = None  # which may be one of many: old ones do not hold new ones

    def wait(self) -> None:
        """Wait until the thread of the pass before has ended."""
        if self._leaving is not None:
            self._leaving.wait()
            self._leaving = None

    def at_end(self, call: Callable[[], None]) -> None:
        """Call it when no thread of a pass that is over uses the engine any more."""
        if self._leaving is None:
            call()
        else:
            self._leaving.at_end(call)

    # What a pass reports.

    def check(self, run: EpochRun) -> None:
        """Raise ClosedError where that is not the pass under way, or the error of a feed that cannot be used."""
        self._life.check()
        if self.run is not run:
            msg = "iterator: an error, a newer pass over the same loader, or load_state_dict() has ended this pass"
            raise ClosedError(msg)

    def took(self, samples: int, count: int, *, last: bool) -> None:
        """The training loop got a batch of so many samples, `count` of each lane."""
        self.at.took(count, last=last)
        self._given = last
        self._meter.given(samples)

    def ended(self) -> None:
        """The pass under way came to its end."""
        if self.run is not None:
            self._hand_on(self.run)
        self.at.ended()
        epoch, self._epoch = self._epoch, None
        if epoch is not None and self.at.set_epoch(epoch):
            self._settle()

    def failed(self) -> None:
        """A batch of the pass under way is missing: none behind it may count."""
        self.at.failed()
        self.end()

    def dropped(self, run: EpochRun) -> None:
        """No batches of that pass are taken any more."""
        if self.run is run and self._life.here:
            self.end()


def _itself(batch: Batch) -> Batch:
    return batch


class Batches:
    """One pass; each batch taken moves the position. Dropping it ends the pass.

    Threads may share it: each batch goes to one of them, and all come to its end.
    """

    def __init__(self, feed: object, passes: Passes, run: EpochRun, counts: Sequence[int]) -> None:
        self._feed = feed  # whose threads and engine run it: it lives as long as its pass
        self._passes, self._run, self._counts = passes, run, counts
        self._taken = 0
        self._ended = False
        self._asking = sync.RLock()  # one thread asks at a time: the end comes once, and counts follow the order

    def __iter__(self) -> Batches:
        return self

    def __len__(self) -> int:
        """Batches still to come."""
        return len(self._counts) - self._taken

    def take(self, timeout: float | None = None, make: Callable[[Batch], Any] = _itself) -> Any:
        """What `make` makes of the next batch; WaitError, with the pass going on, after `timeout` seconds.

        The position moves when it is made: a batch that the loop never got, because `make` raised, does not count.
        """
        if not self._ended:
            self._passes.check(self._run)  # before the lock: in a child of a fork another thread may hold it for ever
        with self._asking:
            return self._take(timeout, make)

    def _take(self, timeout: float | None, make: Callable[[Batch], Any]) -> Any:
        if self._ended:
            raise StopIteration
        self._passes.check(self._run)
        try:
            batch = self._run.take(timeout)
        except StopIteration:
            self._ended = True
            self._passes.ended()
            raise
        except WaitError:
            raise
        except BaseException:  # an interrupt too: its thread must not go on beside that of the next pass
            if not self._run.cut:  # else another thread has ended it, and a newer pass may be under way
                self._passes.failed()
            raise
        try:
            made = make(batch)
            self._taken += 1
            self._passes.took(len(batch), self._counts[self._taken - 1], last=self._taken == len(self._counts))
        except BaseException as error:  # a batch is missing: none behind it may count
            self._passes.failed()
            if isinstance(error, StopIteration):  # which would end the epoch without a word
                msg = "collate_fn, transform: must not raise StopIteration; leave records out with a sampler"
                raise ConfigError(msg) from error
            raise
        return made

    def at_end(self) -> bool:
        """Whether no batch is still to come."""
        return self._taken == len(self._counts)

    def __next__(self) -> Batch:
        batch: Batch = self.take()
        return batch

    def __del__(self) -> None:
        self._passes.dropped(self._run)
