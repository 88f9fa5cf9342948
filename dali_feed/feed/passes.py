"""How far the training loop is, and the iterator that takes batches: each batch taken moves the position.

The law: one pass is under way at most, and only the newest iterator's batches count. A position says what the loop was
handed and nothing else; where the next pass begins is the business of the two kinds, `feed.epochs` and `feed.stream`.
"""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from dali_feed import sync
from dali_feed.bad_records import Outbox
from dali_feed.errors import ClosedError, ConfigError, WaitError
from dali_feed.feed.batch import Batch
from dali_feed.feed.machine import Machine
from dali_feed.feed.run import Pass
from dali_feed.feed.stats import Stats
from dali_feed.options import BadRecords
from dali_feed.plan.batching import Shares

log = logging.getLogger("dali_feed")


# The position of a run, which a state holds, and the rule for a pass that is left early.
#
# The law: a state counts the batches that the training loop got. A pass that was left early is over, and the next one
# is the next epoch, for the same order is not given twice. But one left after its first batch was a look at the data,
# as `next(iter(loader))` is for its shapes: the next pass begins where the look began, on whichever rank that was, so
# that it costs neither an epoch nor what a state restored of one.
#
# Only `Position` steps from one epoch to the next: feeds report how a pass ended, and ask where the next one begins.


LOOKS = 3  # in a row change nothing; later ones count, so that a loop of next(iter(loader)) sees more than one


@dataclass(slots=True)
class Position:
    """`consumed` of `epoch` has been given; `pending`: the next pass begins here, none has taken a batch from here.

    place  both, changed in one step: whoever saves a state, in another thread or in a signal's handler, sees no other
    """

    place: tuple[int, int] = (0, 0)
    pending: bool = True
    _began: int = 0  # where in its epoch the last pass did
    _taken: int = 0  # batches that it gave
    _whole: bool = False  # and whether no more were to come, for it was at its end or failed
    _looks: int = 0  # in a row

    @property
    def epoch(self) -> int:
        """The epoch that the loop is in."""
        return self.place[0]

    @property
    def consumed(self) -> int:
        """Samples of each lane that have been given in it."""
        return self.place[1]

    @property
    def next(self) -> tuple[int, int]:
        """The epoch of the next pass, and where in it that begins."""
        if self.pending:
            return self.place
        return (self.epoch, self._began) if self._looked else (self.epoch + 1, 0)

    @property
    def between(self) -> bool:
        """Whether the epoch before has been given, and nothing of this one."""
        return self.consumed == 0 and self.epoch > 0

    @property
    def fresh(self) -> bool:
        """Whether nothing of the epoch has been given, and the next pass is to begin it."""
        return self.pending and self.consumed == 0

    @property
    def _looked(self) -> bool:
        return not self.pending and self._taken == 1 and not self._whole and self._looks < LOOKS

    # How the pass ended.

    def took(self, count: int, *, last: bool) -> None:
        """The training loop got a batch with `count` samples of each lane; `last`: no more will come."""
        self.place = self.epoch, self.consumed + count
        self.pending, self._whole = False, last
        self._taken += 1
        self._looks = 0 if self._taken > 1 else self._looks

    def failed(self) -> None:
        """The pass ended with an error: it does not count as a look at the data."""
        self._whole = True

    def ended(self) -> None:
        """The pass came to its end."""
        self.go_to(self.epoch + 1)

    # Where the next one begins.

    def leave(self) -> None:
        """The pass before is over: go to where the next one begins."""
        self.place, self._looks = self.next, self._looks + self._looked
        self.pending, self._began, self._taken = True, self.consumed, 0

    def skip(self) -> None:
        """The epoch of which a batch was taken is over, even after a look. Without a batch it is still to come."""
        if not self.pending:
            self.go_to(self.epoch + 1)

    def set_epoch(self, epoch: int) -> bool:
        """Let the next pass be one of `epoch`; False where it is already, and no pass has taken a batch before it.

        Where a restored state, or a look, stands inside that epoch, the next pass goes on there.
        """
        if self.next[0] != epoch or not (self.pending or self._looked):
            self.go_to(epoch)
            return True
        if self.pending:
            return False
        self.leave()
        return True

    def go_to(self, epoch: int, consumed: int = 0) -> None:
        """Let the next pass begin there."""
        self.place, self.pending, self._began, self._taken, self._looks = (epoch, consumed), True, 0, 0, 0


# The pass under way, and the iterator over it.


class Positions(ABC):
    """Where the loop is in a source's records, and the pass that gives what comes next: of epochs, or of a stream.

    run     the pass under way
    ranks   how global batches are divided, until the records, or a state, say how many lanes there are
    closed  whether it is not to be used any more
    """

    def __init__(self, machine: Machine, ranks: Shares, bad: BadRecords) -> None:
        self.run: Pass | None = None
        self.closed = self._released = False
        self._machine, self.ranks, self._bad = machine, ranks, bad
        self._getpid = os.getpid  # kept here: a child of a fork drops its passes when modules have been taken apart
        self._pid = self._getpid()
        self._token: object = None  # the newest iterator's
        self._taking: object = None  # whose iterator may have taken an item that the position does not know of
        # Guards which iterator and which pass there are, and the position. Reentrant, as a signal's handler may save a
        # state; nothing is waited for with it.
        self._lock = sync.RLock()
        self._leaving: Pass | None = None  # a pass that is over, while its thread is still inside a decoder

    # What a loop asks; `FeedLoop` says what for.

    @property
    def outbox(self) -> Outbox:
        """Where dead letters are on their way."""
        return self._machine.outbox

    @property
    def here(self) -> bool:
        """Whether this is the process that it began in, the only one with its threads."""
        return self._getpid() == self._pid

    def check_open(self) -> None:
        """Raise ClosedError after close(), ConfigError in another process."""
        if self.closed:
            msg = "loader: used after close(); make a new one"
            raise ClosedError(msg)
        if not self.here:
            msg = (
                "loader: made in another process; threads and connections do not survive fork. Make it in this process"
            )
            raise ConfigError(msg)

    def wait_at_most(self, seconds: float) -> None:  # noqa: B027  a stream holds nothing that is read before
        """What the source holds is read within so many seconds, or a WaitError says so; 0: in any time."""

    @property
    def shares(self) -> Shares:
        """How global batches are divided."""
        return self.ranks

    @property
    @abstractmethod
    def epoch(self) -> int:
        """The epoch that the loop is in; 0 of a stream."""

    @abstractmethod
    def count(self) -> int:
        """Batches in an epoch. TypeError for a stream."""

    @abstractmethod
    def left(self, *, of_next: bool = False) -> int:
        """Batches that the pass under way still gives, or, if there is none, the next one. TypeError for a stream.

        `of_next`: the next one in any case.
        """

    def at_end(self) -> bool:
        """Whether a state was loaded of an epoch's end."""
        return False

    def last_step(self) -> tuple[int, int, int] | None:
        """Samples of all ranks' last batches, repeats at the epoch's end, and samples of a lane in those batches.

        None where repeats are not the end of the order: of a mixture, and where windows are shuffled; and of a stream.
        """
        return None

    @abstractmethod
    def set_epoch(self, epoch: int) -> None:
        """The next pass is that of `epoch`; nothing for a stream."""

    def follow(self) -> None:  # noqa: B027  a stream has no sampler
        """The next pass is that of the number that the user has called the sampler's `set_epoch` with, if any."""

    def batches(self) -> Batches:
        """An iterator from where the loop is; the one before gives no more."""
        self.check_open()
        self.outbox.retry()
        return self.begin()

    @abstractmethod
    def begin(self) -> Batches:
        """The same, of positions that are open."""

    @abstractmethod
    def at(self) -> Any:
        """Where the loop is, for `state`: batches that other threads take from here on are not in it."""

    @abstractmethod
    def state(self, at: Any) -> dict[str, Any]:
        """The state of a loop that is there."""

    @abstractmethod
    def restore(self, state: Any) -> None:
        """Go on from a state; what is under way ends. StateError, with the pass going on, where it does not fit."""

    @abstractmethod
    def commit(self) -> None:
        """Publish how far the loop is."""

    @abstractmethod
    def describe(self) -> str:
        """What batches are made of."""

    def stats(self) -> Stats:
        """Counts and waits since the start."""
        return self._machine.stats()

    def end(self) -> None:
        """The pass under way is over: batches it might still give would not be counted from here."""
        with self._lock:
            run, self._token = self.run, None
        self._close(run)

    def _close(self, run: Pass | None) -> None:
        """That pass is over."""
        if run is not None:
            run.close()  # which an interrupt may end: it is closed again then
            with self._lock:
                self._leaving = run if run.alive else self._leaving
                self.run = None if self.run is run else self.run

    def close(self) -> None:
        """End all passes, and the machine as soon as no thread uses it; wait for dead letters that are on their way.

        A thread that a decoder or a user's function keeps is left to itself, with the memory that it works on.
        """
        if self._released or not self.here:
            return
        self.closed = True
        self._end_all()
        self.outbox.close()
        self._released = True  # at the end: what Ctrl-C has cut short is done by the next call

    def collected(self) -> None:
        """Close, for the finalizer of whoever has them, which the collector may run in any thread.

        In one of ours, which may be waited for, or have a lock that closing needs, another thread does it.
        """
        if sync.current_thread().name.startswith("dali_feed-"):
            sync.Thread(target=self.close, name="dali_feed-close", daemon=True).start()
        else:
            self.close()

    def _end_all(self) -> None:
        run = self.run or self._leaving
        self.end()
        leaving = self._leaving
        self._machine.close((lambda call: call()) if leaving is None else leaving.at_end)
        left = [*self._machine.threads, *(() if run is None else run.threads)]
        names = sorted(thread.name for thread in left if thread is not sync.current_thread())
        if names:
            what = "they are inside calls that have not returned, and end with those; their memory stays until then"
            log.warning("loader: closed, but for %s: %s", ", ".join(names), what)

    # What the iterator reports.

    def check(self, token: object, *, begun: bool = True) -> None:
        """Raise ClosedError where that iterator is not the newest, or the error of a feed that cannot be used.

        `begun`: or where its pass has not begun.
        """
        self.check_open()
        if token is not self._token or (begun and self.run is None):
            msg = (
                "iterator: an error, a newer iterator (a newer pass over the same loader), or load_state_dict() has"
                " ended this one; call iter(loader) again"
            )
            raise ClosedError(msg)

    def requested(self) -> None:  # noqa: B027  of epochs nothing depends on it
        """The loop asks for a batch: it has finished the one before."""

    def void(self, batch: Batch) -> bool:
        """Whether a batch is not for the loop, so that nothing is made of it."""
        del batch
        return False

    @abstractmethod
    def took(self, token: object, batch: Batch, count: int, *, last: bool) -> bool:
        """The loop takes a batch, with `count` samples of each lane; False where it is not to be given that batch.

        Raises ClosedError where that iterator is not the newest any more.
        """

    def ended(self, token: object) -> None:  # noqa: B027  a stream does not
        """The pass of that iterator came to its end. ClosedError where it is not the newest any more."""

    def failed(self, token: object) -> None:
        """A batch of that iterator is missing: none behind it may count."""
        if token is self._token:
            self.end()

    def dropped(self, token: object, run: Pass) -> None:  # noqa: B027  a stream's pass goes on
        """No batches of that iterator are taken any more. A finalizer says so, whose thread may have any lock."""

    # For the two kinds.

    @contextmanager
    def _newest(self) -> Iterator[tuple[object, Pass | None]]:
        """The token of a new iterator, and the pass under way if it goes on with that, which else is over.

        The token ends where making the iterator fails, or another thread ends passes meanwhile.
        """
        with self._lock:
            self.check_open()
            self._token = token = object()
            run, stays = self.run, self._stays() and self._taking is None
            self._taking = None
        try:
            if not stays:
                self._close(run)
            yield token, run if stays else None
        except BaseException:
            self.failed(token)
            raise

    @abstractmethod
    def _stays(self) -> bool:
        """Whether a new iterator goes on with the pass under way, as nothing has been taken out of it. Asked once."""

    def taking(self, token: object) -> None:
        """That iterator awaits an item. ClosedError where it is not the newest, or an interrupt came behind the last.

        One step with the check: the pass is another iterator's only where nothing can have been taken out of it.
        """
        with self._lock:
            self.check(token)
            fails = self._taking is token
            self._taking = token
        if fails:
            self.failed(token)
            self.check(token)

    def counted(self, token: object) -> None:
        """The position knows of all that this iterator has taken."""
        with self._lock:
            self._taking = None if self._taking is token else self._taking

    def _begin(self, run: Pass, token: object) -> Pass:
        """That pass is under way: known here before its thread runs, so that no interrupt leaves one to itself."""
        with self._lock:
            self.check(token, begun=False)  # another thread may have closed the feed, or loaded a state
            self.run = run
        run.begin()
        return run

    def _wait(self) -> None:
        """Wait until the thread of the pass before has ended."""
        if self._leaving is not None:
            self._leaving.wait_ended()
            self._leaving = None


class Batches:
    """One pass; each batch taken moves the position. Dropping it ends a pass over an epoch.

    Threads may share it: each batch goes to one of them, and all come to its end.

    counts  samples of each lane, of each batch; None for a stream, which does not end
    """

    def __init__(self, positions: Positions, run: Pass, token: object, counts: Sequence[int] | None) -> None:
        self._positions, self._run, self._token, self._counts = positions, run, token, counts
        self._taken = 0
        self._ended = False
        self._asking = sync.RLock()  # one thread asks at a time: the end comes once, and counts follow the order

    def __iter__(self) -> Batches:
        return self

    def __len__(self) -> int:
        """Batches still to come; TypeError for a stream."""
        if self._counts is None:
            msg = "loader: a stream does not end, so it has no number of batches"
            raise TypeError(msg)
        return len(self._counts) - self._taken

    def at_end(self) -> bool:
        """Whether no batch is still to come."""
        return self._counts is not None and self._taken == len(self._counts)

    def take(self, timeout: float | None = None, make: Callable[[Batch], Any] = lambda batch: batch) -> Any:
        """What `make` makes of the next batch; WaitError, with the pass going on, after `timeout` seconds.

        The position moves when it is made: a batch that the loop never got, because `make` raised, does not count. A
        stream's that became void on its way is dropped.
        """
        if not self._ended:
            self._positions.check(self._token)  # before the lock: in a child of a fork another thread may have it
        self._positions.requested()
        with self._asking:
            ends = None if timeout is None else sync.monotonic() + timeout
            while True:
                batch = self._next(None if ends is None else max(0.0, ends - sync.monotonic()))
                given, made = self._hand_over(batch, make)
                if given:
                    return made
                self._positions.requested()

    def _next(self, timeout: float | None) -> Batch:
        """The next batch that the pass has."""
        if self._ended:
            raise StopIteration
        positions = self._positions
        positions.taking(self._token)
        try:
            return self._run.take(timeout)
        except StopIteration:
            self._ended = True
            positions.counted(self._token)
            positions.ended(self._token)
            raise
        except WaitError:
            positions.counted(self._token)
            raise
        except BaseException:  # an interrupt too: its thread must not go on beside that of the next pass
            self._positions.failed(self._token)
            raise

    def _hand_over(self, batch: Batch, make: Callable[[Batch], Any]) -> tuple[bool, Any]:
        """Whether the loop is given that batch, and what is made of it."""
        counts, n = self._counts, self._taken
        try:
            made = None if self._positions.void(batch) else make(batch)
            count = 0 if counts is None else counts[n]
            self._taken = n + 1
            last = counts is not None and n + 1 == len(counts)
            given = self._positions.took(self._token, batch, count, last=last)
            self._positions.counted(self._token)
        except BaseException as error:  # a batch is missing: none behind it may count
            self._positions.failed(self._token)
            if isinstance(error, StopIteration):  # which would end the loop without a word
                cure = "" if counts is None else "; leave records out with a sampler"
                msg = f"collate_fn, transform: must not raise StopIteration{cure}"
                raise ConfigError(msg) from error
            raise
        return given, made

    def __next__(self) -> Batch:
        batch: Batch = self.take()
        return batch

    def __del__(self) -> None:
        if hasattr(self, "_token"):  # else Ctrl-C came before it was made
            self._positions.dropped(self._token, self._run)
