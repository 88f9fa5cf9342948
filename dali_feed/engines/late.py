"""Columns that are made of a record's bytes when its batch is run, beside any engine: `Bytes(decode=f)`.

The law: a record that stands in no batch costs no call. What a function raises makes its record a bad one; errors of
ours that speak of no record go on, and so does what is no Exception, such as KeyboardInterrupt. A function is given a
copy: what it returns or keeps, and whether it ever returns, is nothing to the memory of the batch.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dali_feed.columns.late import Late, attempt
from dali_feed.engines.crew import Crew, Job
from dali_feed.engines.engine import Engine, Result, Work
from dali_feed.errors import DaliFeedError
from dali_feed.options import Tuning

__all__ = ["LateEngine"]


@dataclass(slots=True)
class _Both(Result):
    """A result with what the engine itself gave."""

    inner: Result = field(default_factory=lambda: Result(None))


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


class LateEngine:
    """An engine, and threads that make late columns. See `engines.engine.Engine`."""

    def __init__(self, inner: Engine, kinds: Mapping[str, Late], tuning: Tuning) -> None:
        self.name, self.depth = inner.name, inner.depth
        self._inner, self._kinds = inner, dict(kinds)
        self._crew = Crew(tuning.cpu_threads, "dali_feed-late")
        self._flying: deque[_Making] = deque()
        self._awaited: _Making | None = None

    def enter(self) -> None:
        """As the engine does."""
        self._inner.enter()

    def prepare(self, payloads: list[memoryview]) -> list[Any]:
        """As the engine takes them."""
        return self._inner.prepare(payloads)

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
        self._inner.halt()
        self._crew.halt()

    def resume(self) -> None:
        """Both."""
        self._inner.resume()
        self._crew.resume()

    def at_work(self) -> Sequence[int]:
        """Of what `take` or `redo` waits for."""
        return self._inner.at_work() if self._awaited is None else self._crew.at(self._awaited)

    def close(self) -> None:
        """Both. Safe to call twice."""
        self._crew.close()
        self._inner.close()

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
