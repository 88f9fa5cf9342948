"""Which engine runs a program: the names that users give, and the modules that are imported when one is made."""

from __future__ import annotations

import importlib

from dali_feed.compiler.no_image import NoImage
from dali_feed.compiler.program import Program
from dali_feed.compiler.user_pipeline import PipelineProgram
from dali_feed.engines.engine import Engine
from dali_feed.engines.no_image import NoImageEngine
from dali_feed.errors import ConfigError
from dali_feed.options import Tuning
from dali_feed.packages import needed

__all__ = ["ENGINES", "ON_CPU", "choose_engine", "make_engine"]

ON_CPU = "host"  # where the user did not choose
ENGINES = {
    "dali": ("dali_feed.engines.dali.engine", "DaliEngine"),
    "host": ("dali_feed.engines.host.engine", "HostEngine"),
}
_PIPELINE = ("dali_feed.engines.dali.pipeline", "PipelineEngine")  # the dali engine on a user's own pipeline


def choose_engine(name: str | None, device: int | None, *, graph: bool) -> str:
    """The engine of that name, or the default where the user did not choose; `device` is a CUDA device or None.

    `graph`: the transform is a user's own DALI graph. Raises ConfigError for an engine that cannot run it.
    """
    if name is None:
        return "dali" if graph or device is not None else ON_CPU
    if name == "host" and graph:
        msg = "Decode(engine='host'): runs torchvision's transforms; found a DALI graph function. Leave it out"
        raise ConfigError(msg)
    return name


def make_engine(name: str, program: Program, *, batch_size: int, device: int | None, tuning: Tuning) -> Engine:
    """Build an engine; its libraries are imported here and not before."""
    if isinstance(program, NoImage):
        return NoImageEngine(program, batch_size=batch_size, device=device, tuning=tuning)
    module, kind = _PIPELINE if isinstance(program, PipelineProgram) else ENGINES[name]
    with needed():
        made = getattr(importlib.import_module(module), kind)
    engine: Engine = made(program, batch_size=batch_size, device=device, tuning=tuning)
    return engine
