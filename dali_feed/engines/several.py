"""Several images of a record, each by an engine of its own, as one engine.

The law: a batch is in flight in all of them or in none, so that their queues stay in step; and when one raises, the
batch is no longer at work in the others, for its memory is released then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from dali_feed.engines.engine import Engine, EngineWork, Result, Work, work_of
from dali_feed.transforms.keys import by_column

__all__ = ["SeveralEngine", "Side"]


@dataclass(slots=True)
class _Several(Result):
    """A result with what each engine gave."""

    inner: list[Result] = field(default_factory=list)


class Side:
    """An image column's engine, and the batches in flight there.

    column  its name
    called  what stands before the reason why an image of its cannot be decoded
    """

    def __init__(self, column: str, called: str, engine: Engine) -> None:
        self.column, self.called, self.engine = column, called, engine
        self._flying = 0
        self._early: deque[Future[Result]] = deque()  # what older batches gave, taken before their turn

    def submit(self, work: Work) -> None:
        """Start a batch."""
        self.engine.submit(work)
        self._flying += 1

    def take(self) -> Result:
        """The oldest batch. Whatever is raised, it is no longer in flight."""
        if self._early:
            return self._early.popleft().result()
        self._flying -= 1
        return self.engine.take()

    def discard(self) -> None:
        """Wait for the oldest batch and drop it."""
        if self._early:
            self._early.popleft()
            return
        self._flying -= 1
        self.engine.discard()

    def withdraw(self) -> None:
        """Wait for the newest batch and drop it. Those before it are kept until they are asked for."""
        while self._flying > 1:
            kept: Future[Result] = Future()
            self._flying -= 1
            try:
                kept.set_result(self.engine.take())
            except BaseException as error:  # noqa: BLE001  raised where that batch is taken
                kept.set_exception(error)
            self._early.append(kept)
        self._flying -= 1
        self.engine.discard()


class SeveralEngine:
    """An engine for each image column, the payload's first. See `engines.engine.Engine`."""

    def __init__(self, sides: Sequence[Side]) -> None:
        self._sides = tuple(sides)
        self._names = tuple(side.column for side in sides[1:])
        engines = [side.engine for side in sides]
        self.name, self.depth = engines[0].name, min(engine.depth for engine in engines)

    def enter(self) -> None:
        """As all engines do."""
        for side in self._sides:
            side.engine.enter()

    def prepare(self, payloads: list[memoryview]) -> list[Any]:
        """As the first engine takes them; the others' are among the fields, and made ready with their batch."""
        return self._sides[0].engine.prepare(payloads)

    def submit(self, work: Work) -> None:
        """Start the batch in all engines, or in none."""
        begun: list[Side] = []
        try:
            for side, own in self._parts(work):
                side.submit(own)
                begun.append(side)
        except BaseException:
            _every(side.withdraw for side in begun)
            raise

    def take(self) -> Result:
        """The oldest batch, once all are done. Whatever is raised, it is no longer in flight in any."""
        sides, made = iter(self._sides), list[Result]()
        try:
            for side in sides:
                made.append(side.take())
        except BaseException:
            _every(side.discard for side in sides)  # the rest of them
            raise
        return self._together(made)

    def discard(self) -> None:
        """Wait for all and drop the batch."""
        _every(side.discard for side in self._sides)

    def redo(self, work: Work, failed: Result | None = None, slots: Sequence[int] = ()) -> Result:
        """One after the other; an engine's result before goes with it, also where it had nothing bad."""
        before = failed.inner if isinstance(failed, _Several) else [None] * len(self._sides)
        parts = zip(self._parts(work), before, strict=True)
        return self._together([side.engine.redo(own, was, slots) for (side, own), was in parts])

    def halt(self) -> None:
        """As all engines do."""
        for side in self._sides:
            side.engine.halt()

    def resume(self) -> None:
        """As all engines do."""
        for side in self._sides:
            side.engine.resume()

    def at_work(self) -> Sequence[int]:
        """The slots that any of them works on."""
        return sorted({slot for side in self._sides for slot in side.engine.at_work()})

    def worked(self) -> EngineWork | None:
        """All of them together, and the images of one; None where one of them cannot say."""
        found = [each for each in (work_of(side.engine) for side in self._sides) if each is not None]
        if len(found) < len(self._sides):
            return None
        return EngineWork(sum(each.threads for each in found), sum(each.seconds for each in found), found[0].images)

    def close(self) -> None:
        """All. Safe to call twice."""
        _every(side.engine.close for side in self._sides)

    def _parts(self, work: Work) -> Iterable[tuple[Side, Work]]:
        """What each engine is given: its own payloads and parameters."""
        arrays = by_column(work.arrays, len(self._sides))
        for number, (side, own) in enumerate(zip(self._sides, arrays, strict=True)):
            payloads = work.payloads
            if number:
                payloads = side.engine.prepare([value.payload for value in work.fields[side.column]])
            yield side, Work(payloads, dict(own), work.fields, work.ids)

    def _together(self, made: list[Result]) -> _Several:
        bad: dict[int, str] = {}
        for side, result in zip(self._sides, made, strict=True):
            for slot, why in result.bad.items():
                bad.setdefault(slot, side.called + why)
        first, *others = made
        more = tuple((result.images, result.tail) for result in others)
        return _Several(first.images, dict(sorted(bad.items())), first.tail, more, names=self._names, inner=made)


def _every(calls: Iterable[Callable[[], object]]) -> None:
    """Call all of them, also where one raises; then an error goes on."""
    with ExitStack() as stack:
        for call in reversed(list(calls)):
            stack.callback(call)
