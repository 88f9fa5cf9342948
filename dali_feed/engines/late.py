"""What follows images, beside any engine: threads move masks, boxes and points slot by slot, as their image is moved.

The law: a batch is done when both are. What cannot follow makes its record a bad one, as what cannot be decoded does.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from dali_feed.columns.column import Follower, Late, attempt
from dali_feed.compiler.program import Followed
from dali_feed.engines.engine import Engine, Result, Work, Wrapping
from dali_feed.engines.workers import Alone, Crew, Job
from dali_feed.errors import DaliFeedError
from dali_feed.options import Tuning
from dali_feed.transforms.keys import CANVAS, Arrays, by_column, of_followed, of_images

__all__ = ["FollowingEngine", "LateEngine"]


Slots = tuple[dict[str, list[Any]], dict[int, str]]  # per follower the values of some slots, and what is bad
Follows = tuple[Followed | None, Mapping[str, Follower]]  # of an image column: what moves which columns


@dataclass(slots=True)
class _Both(Result):
    """A result with what the engine itself gave."""

    inner: Result = field(default_factory=lambda: Result(None))


class FollowingEngine(Wrapping):
    """An engine, and threads that move what follows its images. See `engines.engine.Engine`."""

    def __init__(self, inner: Engine, follows: Sequence[Follows], tuning: Tuning) -> None:
        super().__init__(inner)
        self._count = len(follows)
        self._follows = [
            (k, moving, {name: kind.by_exif() if moving.recipe.exif else kind for name, kind in own.items()})
            for k, (moving, own) in enumerate(follows)
            if moving is not None
        ]
        self._names = [name for _, _, own in self._follows for name in own]
        self._threads, self._begun = tuning.cpu_threads, False
        self._pool = ThreadPoolExecutor(self._threads, "dali-feed-follow")
        self._flying: deque[list[Future[Slots]]] = deque()

    def submit(self, work: Work) -> None:
        """Start both. With the first batch the threads begin: whoever closes this is known by then."""
        if not self._begun:
            alone, self._begun = Alone(self._threads), True
            with alone.starting():
                for _ in range(self._threads):
                    self._pool.submit(alone.enter)
        self._inner.submit(_images(work))
        self._flying.append(self._started(work, range(len(work.payloads))))

    def take(self) -> Result:
        """The oldest batch, once both are done. Whatever is raised, it is no longer in flight."""
        parts = self._flying.popleft()
        return self._both(*_together(self._inner.take, parts))

    def discard(self) -> None:
        """Wait for both and drop them: nothing reads their memory any more."""
        parts = self._flying.popleft()
        try:
            self._inner.discard()
        finally:
            _end(parts)

    def redo(self, work: Work, failed: Result | None = None, slots: Sequence[int] = ()) -> Result:
        """The engine's part as it can, and what follows in the slots that changed."""
        before = failed if isinstance(failed, _Both) else None
        parts = self._started(work, range(len(work.payloads)) if before is None else slots)
        own = (_images(work),) if before is None else (_images(work), before.inner, slots)
        both = self._both(*_together(lambda: self._inner.redo(*own), parts))
        if before is not None:
            for name, values in both.columns.items():
                fresh = dict(zip(slots, values, strict=True))
                both.columns[name] = [fresh.get(slot, value) for slot, value in enumerate(before.columns[name])]
        return both

    def close(self) -> None:
        """Both. Safe to call twice."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        super().close()

    def _started(self, work: Work, slots: Sequence[int]) -> list[Future[Slots]]:
        """A part of the slots for each thread."""
        each = max(1, -(-len(slots) // self._threads))
        rows = by_column(of_followed(work.arrays), self._count)
        parts = [slots[k : k + each] for k in range(0, len(slots), each)]
        return [self._pool.submit(self._moved, work, rows, part) for part in parts]

    def _moved(self, work: Work, rows: list[Arrays], slots: Sequence[int]) -> Slots:
        columns: dict[str, list[Any]] = {name: [] for name in self._names}
        bad: dict[int, str] = {}
        for slot in slots:
            for k, followed, followers in self._follows:
                high, wide = rows[k][CANVAS][slot].tolist()
                for name, kind in followers.items():
                    value = None
                    try:
                        moved = functools.partial(followed.run, arrays=rows[k], slot=slot)
                        value = kind.followed(work.fields[name][slot], (high, wide), moved)
                    except DaliFeedError:
                        raise
                    except Exception as error:  # noqa: BLE001 - whatever a library raises is about this record
                        told = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
                        bad.setdefault(slot, f"column {name!r} of member {kind.member!r}: {told}")
                    columns[name].append(value)
        return columns, bad

    def _both(self, result: Result, parts: list[Slots]) -> _Both:
        columns = {name: [value for part, _ in parts for value in part[name]] for name in self._names}
        bad = {slot: why for _, part in parts for slot, why in part.items()} | result.bad
        return _Both(result.images, bad, result.tail, result.more, columns, result.names, inner=result)


def _images(work: Work) -> Work:
    """What the engine itself is given."""
    return Work(work.payloads, of_images(work.arrays), work.fields, work.ids)


def _together(own: Callable[[], Result], parts: list[Future[Slots]]) -> tuple[Result, list[Slots]]:
    """What both gave. Where one raises, nothing of the other is still at work: memory is released then."""
    try:
        return own(), [part.result() for part in parts]
    except BaseException:
        _end(parts)
        raise


def _end(parts: list[Future[Slots]]) -> None:
    """Leave out what has not begun, and wait for the rest."""
    for part in parts:
        if not part.cancel():
            part.exception()


# Columns that are made of a record's bytes when its batch is run, beside any engine: `Bytes(decode=f)`.
#
# The law: a record that stands in no batch costs no call. What a function raises makes its record a bad one; errors of
# ours that speak of no record go on, and so does what is no Exception, such as KeyboardInterrupt. A function is given a
# copy: what it returns or keeps, and whether it ever returns, is nothing to the memory of the batch.


class _Making(Job):
    """The values of some slots of a batch, until they are made or the batch is dropped."""

    def __init__(self, work: Work, kinds: Mapping[str, Late], slots: Sequence[int]) -> None:
        super().__init__(slots)
        self.size = len(work.payloads)
        self._kinds = kinds
        self._given = {name: work.fields[name] for name in kinds}
        self._copying = threading.Lock()
        self.values: dict[str, dict[int, Any]] = {name: {} for name in kinds}
        self.bad: dict[int, str] = {}

    def drop(self) -> None:
        """Behind it nothing reads the batch's memory."""
        with self._copying:
            self._given = {}

    def run(self, slot: int) -> None:
        """Make the slot's columns, until one of them cannot be made."""
        for name, kind in self._kinds.items():
            with self._copying:
                if not self._given:
                    return
                own = bytearray(self._given[name][slot])
            column = f"column {name!r} of member {kind.member!r}"
            try:
                self.values[name][slot], why = attempt(kind, memoryview(own))
            except DaliFeedError as error:
                error.add_note(f"From: {column}")
                raise
            if why:
                self.bad[slot] = f"{column}: {why}"
                return


class LateEngine(Wrapping):
    """An engine, and threads that make late columns. See `engines.engine.Engine`."""

    def __init__(self, inner: Engine, kinds: Mapping[str, Late], tuning: Tuning) -> None:
        super().__init__(inner)
        self._kinds = dict(kinds)
        self._crew = Crew(tuning.cpu_threads, "dali_feed-late")
        self._flying: deque[_Making] = deque()
        self._awaited: _Making | None = None

    def submit(self, work: Work) -> None:
        """Start both."""
        job = self._started(work, range(len(work.payloads)))
        try:
            self._inner.submit(work)
        except BaseException:
            job.drop()
            raise
        self._flying.append(job)

    def take(self) -> Result:
        """The oldest batch, once both are done. Whatever is raised, it is no longer in flight."""
        job = self._flying.popleft()
        try:
            return self._both(self._inner.take(), job)
        finally:
            job.drop()

    def discard(self) -> None:
        """Wait for the engine; functions that are still running have memory of their own."""
        self._flying.popleft().drop()
        self._inner.discard()

    def redo(self, work: Work, failed: Result | None = None, slots: Sequence[int] = ()) -> Result:
        """The engine's part as it can, and what is made in the slots that changed."""
        before = failed if isinstance(failed, _Both) else None
        job = self._started(work, range(len(work.payloads)) if before is None else slots, first=True)
        own = (work,) if before is None else (work, before.inner, slots)
        try:
            both = self._both(self._inner.redo(*own), job)
        finally:
            job.drop()
        if before is not None:
            fresh = set(slots)
            for name in self._kinds:
                values = zip(both.columns[name], before.columns[name], strict=True)
                both.columns[name] = [new if slot in fresh else old for slot, (new, old) in enumerate(values)]
        return both

    def halt(self) -> None:
        """Both; a function that is running is left to itself."""
        super().halt()
        self._crew.halt()

    def resume(self) -> None:
        """Both."""
        super().resume()
        self._crew.resume()

    def at_work(self) -> Sequence[int]:
        """Of what `take` or `redo` waits for."""
        return self._inner.at_work() if self._awaited is None else self._crew.at(self._awaited)

    def close(self) -> None:
        """Both. Safe to call twice."""
        self._crew.close()
        super().close()

    def _started(self, work: Work, slots: Sequence[int], *, first: bool = False) -> _Making:
        job = _Making(work, self._kinds, slots)
        self._crew.add(job, first=first)
        return job

    def _both(self, result: Result, job: _Making) -> _Both:
        self._awaited, named = job, self.name
        self.name = f"what makes column {', '.join(map(repr, self._kinds))}"
        try:
            self._crew.wait(job)
        finally:
            self._awaited, self.name = None, named
        columns = {name: [job.values[name].get(slot) for slot in range(job.size)] for name in self._kinds}
        bad = dict(sorted({**job.bad, **result.bad}.items()))
        return _Both(result.images, bad, result.tail, result.more, result.columns | columns, result.names, inner=result)
