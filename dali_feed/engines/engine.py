"""Engines: run a program on a batch of payloads. One interface, several engines.

The law: every batch that goes in comes out, in order. A sample that an engine cannot decode comes back as a mark
with its reason, never as an exception of the batch; an exception is never the fault of a record.

An engine is driven by one thread. `submit` never waits for a batch to be done; up to `depth` batches may
be in flight, and `take` waits for the oldest of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dali_feed.compiler.program import Finish
from dali_feed.options import Tuning
from dali_feed.transforms.keys import ADJUST, ERASE, FLIPS, Arrays, Key

__all__ = ["Engine", "EngineWork", "NoImageEngine", "Result", "Tail", "Work", "Wrapping", "work_of"]


@dataclass(slots=True)
class Work:
    """A batch to run: screened payloads as `Engine.prepare` made them, and per parameter name a row per sample.

    `fields` are the source's, per name an array or list of a value per sample, for a user's pipeline that takes them.
    `ids` are the samples, int64 (n,), for an engine that knows them again.
    """

    payloads: list[Any]
    arrays: dict[Key, NDArray[Any]]
    fields: dict[str, Any] = field(default_factory=dict)
    ids: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))


@dataclass(frozen=True, slots=True)
class Tail:
    """The finish step, to be run by the consumer on its own stream: the step, and its parameters for each sample.

    The parameters are NumPy arrays, or have been sent to the device: `dali_feed.engines.gpu.parcel.Sent`.
    """

    finish: Finish
    flip_x: Any | None
    flip_y: Any | None
    erase: Any | None = None
    adjust: Any | None = None

    @classmethod
    def of(cls, finish: Finish | None, arrays: Arrays) -> Tail | None:
        """The tail of a batch with these parameters; None where nothing is left to finish."""
        rows = (arrays.get(name) for name in (FLIPS["x"], FLIPS["y"], ERASE, ADJUST))
        return None if finish is None else cls(finish, *rows)


@dataclass(slots=True)
class Result:
    """A batch that is done.

    images  a dense array with `__dlpack__` (n, 3, height, width), or, with a `tail`, uint8
            (n, height, width, 3) on the device; where `bad` is not empty, an object that the engine needs for `redo`
    bad     slot -> why its payload cannot be decoded
    more    further results, each with the tail that is left to do: further views of the images, further image
            columns, or what a user's pipeline gives after its first output
    columns what follows the images, by column a value per slot
    names   of the columns that `more` holds, where it holds columns
    """

    images: Any | None
    bad: dict[int, str] = field(default_factory=dict)
    tail: Tail | None = None
    more: tuple[tuple[Any, Tail | None], ...] = ()
    columns: dict[str, list[Any]] = field(default_factory=dict)
    names: tuple[str, ...] = ()


class Engine(Protocol):
    """A program made ready to run."""

    name: str
    depth: int

    def enter(self) -> None:
        """Called once by a thread before it uses the engine: the engine's CUDA device becomes the thread's."""
        ...

    def prepare(self, payloads: list[memoryview]) -> list[Any]:
        """Payloads in the form that the engine needs, without a copy; cheapest for many at a time."""
        ...

    def submit(self, work: Work) -> None:
        """Start a batch. At most `depth` may be in flight."""
        ...

    def take(self) -> Result:
        """The oldest batch in flight, once it is done. Raises EngineError for a failure that is no record's fault."""
        ...

    def discard(self) -> None:
        """Wait for the oldest batch in flight and drop it, whether it failed or not."""
        ...

    def redo(self, work: Work, failed: Result | None = None, slots: Sequence[int] = ()) -> Result:
        """Run one batch at once, beside those in flight; equal input gives equal output.

        `failed` is the batch's result before, if any, which need not have anything bad; then `work` differs from the
        earlier one only in `slots`.
        """
        ...

    def halt(self) -> None:
        """Finish only what cannot be stopped: `take` and `redo`, now or later, raise ClosedError. For any thread."""
        ...

    def resume(self) -> None:
        """Be ready again, once no thread waits for halted work."""
        ...

    def at_work(self) -> Sequence[int]:
        """The slots being worked on, of the batch that `take` or `redo` waits for, where the engine can say."""
        ...

    def close(self) -> None:
        """Drop what is in flight and release threads and device memory. Safe to call twice."""
        ...


# What an engine's own threads have worked, where it can say.


@dataclass(frozen=True, slots=True)
class EngineWork:
    """Since the engine was made: its threads, the seconds that they worked all together, and the images they made."""

    threads: int
    seconds: float
    images: int


@runtime_checkable
class Clocked(Protocol):
    """An engine whose threads count their time."""

    def worked(self) -> EngineWork | None:
        """For any thread. None where what it is made of cannot say."""
        ...


def work_of(engine: object) -> EngineWork | None:
    """What an engine's threads have worked; None where it cannot say."""
    return engine.worked() if isinstance(engine, Clocked) else None


# An engine around another one.


class Wrapping:
    """Does as the engine in it does, wherever it is not said otherwise. See `Engine`."""

    def __init__(self, inner: Engine) -> None:
        self.name, self.depth = inner.name, inner.depth
        self._inner = inner

    def enter(self) -> None:
        """As the engine does."""
        self._inner.enter()

    def prepare(self, payloads: list[memoryview]) -> list[Any]:
        """As the engine takes them."""
        return self._inner.prepare(payloads)

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
        """As the engine does."""
        self._inner.close()


# The engine of records without an image: no pixels are left to make.


class NoImageEngine:
    """Batches come out as they went in. See `engines.engine.Engine`."""

    name = "none"

    def __init__(self, program: object, *, batch_size: int, device: int | None, tuning: Tuning) -> None:
        self.depth = tuning.prefetch
        self._flying: deque[Work] = deque()

    def enter(self) -> None:
        """Nothing of a device is used."""

    def prepare(self, payloads: list[memoryview]) -> list[Any]:
        """Payloads are empty."""
        return list(payloads)

    def submit(self, work: Work) -> None:
        """Nothing is started."""
        self._flying.append(work)

    def take(self) -> Result:
        """A result without images."""
        self._flying.popleft()
        return Result(None)

    def discard(self) -> None:
        """The oldest one is dropped."""
        self._flying.popleft()

    def redo(self, work: Work, failed: Result | None = None, slots: Sequence[int] = ()) -> Result:
        """The same."""
        return Result(None)

    def halt(self) -> None:
        """Nothing waits."""

    def resume(self) -> None:
        """Nothing did."""

    def at_work(self) -> Sequence[int]:
        """Nobody is."""
        return ()

    def close(self) -> None:
        """Nothing is held."""
        self._flying.clear()
