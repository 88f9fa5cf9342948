"""What follows images, beside any engine: threads move masks, boxes and points slot by slot, as their image is moved.

The law: a batch is done when both are. What cannot follow makes its record a bad one, as what cannot be decoded does.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from dali_feed.columns.follower import Follower
from dali_feed.compiler.following import Followed
from dali_feed.engines.engine import Engine, Result, Work
from dali_feed.engines.torch_threads import Alone
from dali_feed.errors import DaliFeedError
from dali_feed.options import Tuning
from dali_feed.transforms.keys import CANVAS, Arrays, by_column, of_followed, of_images

__all__ = ["FollowingEngine", "Follows"]

Slots = tuple[dict[str, list[Any]], dict[int, str]]  # per follower the values of some slots, and what is bad
Follows = tuple[Followed | None, Mapping[str, Follower]]  # of an image column: what moves which columns


@dataclass(slots=True)
class _Both(Result):
    """A result with what the engine itself gave."""

    inner: Result = field(default_factory=lambda: Result(None))


class FollowingEngine:
    """An engine, and threads that move what follows its images. See `engines.engine.Engine`."""

    def __init__(self, inner: Engine, follows: Sequence[Follows], tuning: Tuning) -> None:
        self.name, self.depth = inner.name, inner.depth
        self._inner, self._count = inner, len(follows)
        self._follows = [
            (k, moving, {name: kind.by_exif() if moving.recipe.exif else kind for name, kind in own.items()})
            for k, (moving, own) in enumerate(follows)
            if moving is not None
        ]
        self._names = [name for _, _, own in self._follows for name in own]
        self._threads, self._begun = tuning.cpu_threads, False
        self._pool = ThreadPoolExecutor(self._threads, "dali-feed-follow")
        self._flying: deque[list[Future[Slots]]] = deque()

    def enter(self) -> None:
        """As the engine does."""
        self._inner.enter()

    def prepare(self, payloads: list[memoryview]) -> list[Any]:
        """As the engine takes them."""
        return self._inner.prepare(payloads)

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

    def halt(self) -> None:
        """As the engine does."""
        self._inner.halt()

    def resume(self) -> None:
        """As the engine does."""
        self._inner.resume()

    def at_work(self) -> Sequence[int]:
        """As the engine has it."""
        return self._inner.at_work()

    def close(self) -> None:
        """Both. Safe to call twice."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._inner.close()

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
