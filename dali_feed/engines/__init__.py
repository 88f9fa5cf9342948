"""Engines: a program run on a batch of payloads. One interface, several engines.

The law: what goes in comes out, in order. A sample that an engine cannot decode comes back as a mark
with its reason, never as an exception of the batch; what is raised is nobody's record's fault.

An engine is driven by one thread. `submit` never waits for a batch to be done; up to `depth` batches may
be in flight, and `take` waits for the oldest of them.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from numpy.typing import NDArray

from dali_feed.errors import ConfigError
from dali_feed.host_program import HostProgram, compile_host
from dali_feed.options import Tuning
from dali_feed.pipeline_program import PipelineProgram
from dali_feed.program import Program
from dali_feed.recipe import Recipe
from dali_feed.screen import UNCOMMON
from dali_feed.split_program import compile_dali
from dali_feed.steps import Finish
from dali_feed.views import ViewsProgram

__all__ = [
    "ENGINES",
    "ON_CPU",
    "AnyProgram",
    "Engine",
    "Result",
    "Tail",
    "Work",
    "choose_engine",
    "compile_for",
    "make_engine",
    "refused_formats",
]


@dataclass(slots=True)
class Work:
    """A batch to run: screened payloads as `Engine.prepare` made them, and per parameter name a row per sample.

    `fields` are the source's, per name an array or list of a value per sample, for a user's pipeline that takes them.
    """

    payloads: list[Any]
    arrays: dict[str, NDArray[Any]]
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tail:
    """The finish step where the consumer runs it, on its own stream: what to do, and what each sample takes into it.

    The latter are arrays of NumPy's, or have been sent to the device: `dali_feed.engines.parcels.Sent`.
    """

    finish: Finish
    flip_x: Any | None
    flip_y: Any | None
    erase: Any | None = None
    adjust: Any | None = None

    @classmethod
    def of(cls, finish: Finish | None, arrays: Mapping[str, NDArray[Any]]) -> Tail | None:
        """The tail of a batch with these parameters, where there is something to finish."""
        rows = (arrays.get(name) for name in ("flip_x", "flip_y", "erase", "adjust"))
        return None if finish is None else cls(finish, *rows)


@dataclass(slots=True)
class Result:
    """A batch that is done.

    images  a dense array that speaks __dlpack__ (n, 3, height, width), or, with a `tail`, uint8
            (n, height, width, 3) on the device; where `bad` is not empty, what the engine keeps for `redo`
    bad     slot -> why its payload cannot be decoded
    more    what there is beside the images, each with the tail that is left to do: further views of them, or what a
            user's pipeline gives after its first output
    """

    images: Any | None
    bad: dict[int, str] = field(default_factory=dict)
    tail: Tail | None = None
    more: tuple[tuple[Any, Tail | None], ...] = ()


class Engine(Protocol):
    """A program made ready to run."""

    name: str
    depth: int

    def enter(self) -> None:
        """What a thread calls once, before it drives the engine: its CUDA device becomes the engine's."""
        ...

    def prepare(self, payloads: list[memoryview]) -> list[Any]:
        """Payloads in the form the engine takes them, without a copy; cheapest for many at a time."""
        ...

    def submit(self, work: Work) -> None:
        """Start a batch. At most `depth` may be in flight."""
        ...

    def take(self) -> Result:
        """The oldest batch in flight, once it is done. Raises EngineError for what is no record's fault."""
        ...

    def discard(self) -> None:
        """Wait for the oldest batch in flight and drop it, whatever became of it."""
        ...

    def redo(self, work: Work, failed: Result | None = None, slots: Sequence[int] = ()) -> Result:
        """Run one batch at once, beside those in flight; equal input gives equal output.

        With `failed`, what became of the batch before, `work` differs from what was run then in `slots` alone.
        """
        ...

    def at_work(self) -> Sequence[int]:
        """Slots of the batch that `take` or `redo` waits for that are being worked on, where that can be told."""
        ...

    def close(self) -> None:
        """Drop what is in flight and let go of threads and device memory. Safe to call twice."""
        ...


AnyProgram = Program | HostProgram | ViewsProgram[Program] | ViewsProgram[HostProgram]

ON_CPU = "host"  # where nobody chose
ENGINES = {"dali": ("dali_feed.engines.dali", "DaliEngine"), "host": ("dali_feed.engines.host", "HostEngine")}
_PIPELINE = ("dali_feed.engines.dali_pipeline", "PipelineEngine")  # the dali engine on a user's own pipeline


def choose_engine(name: str | None, device: int | None, *, graph: bool) -> str:
    """The engine of that name, or the one that runs where nobody chose; `device` is a CUDA device or None.

    `graph`: the transform is a user's own DALI graph. Raises ConfigError for what cannot be.
    """
    if name is None:
        return "dali" if graph or device is not None else ON_CPU
    if name not in ENGINES:
        msg = f"engine: must be one of {', '.join(map(repr, ENGINES))}, or None; found {name!r}"
        raise ConfigError(msg)
    if name == "host" and graph:
        msg = "engine: 'host' runs torchvision's transforms; found a DALI graph function. Leave engine out"
        raise ConfigError(msg)
    return name


def refused_formats(name: str) -> dict[str, str]:
    """What that engine does not take of the formats that the screen knows, each with the reason."""
    if name == "host":
        return {}
    cure = "engine='host' takes it"
    return {known: f"{known.upper()} is not supported by the {name} engine; {cure}" for known in UNCOMMON}


def compile_for(
    name: str, recipe: Recipe, device: int | None, tuning: Tuning | None = None, *, whole: bool = False
) -> Program | HostProgram:
    """What that engine runs, `whole`: on images decoded whole. Raises TransformError for a recipe without meaning."""
    on_gpu = device is not None
    if name == "host":
        return compile_host(recipe, on_gpu=on_gpu)
    if whole or not on_gpu or recipe.decode != "region":
        return compile_dali(recipe, on_gpu=on_gpu, region_decode=not on_gpu and not whole)
    from dali_feed.engines.regions import compile_regions, trouble

    return compile_regions(recipe, lambda: trouble(device, tuning or Tuning(), recipe.hw_decoder_load))


def make_engine(name: str, program: AnyProgram, *, batch_size: int, device: int | None, tuning: Tuning) -> Engine:
    """Build an engine; its libraries are imported here and not before."""
    module, kind = _PIPELINE if isinstance(program, PipelineProgram) else ENGINES[name]
    engine: Engine = getattr(importlib.import_module(module), kind)(
        program, batch_size=batch_size, device=device, tuning=tuning
    )
    return engine
