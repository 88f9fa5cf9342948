"""Effects as DALI computes them: on uint8, whatever the pixels are called where the op stands.

What an effect is not for goes through it unchanged: an identity matrix, a kernel of one pixel, all bits, a
level that no value reaches, an empty rectangle.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from dali_feed.compiler.host_effects import whether
from dali_feed.compiler.steps import Colour, Step
from dali_feed.errors import TransformError
from dali_feed.transforms import base
from dali_feed.transforms.colours import gray_steps, only
from dali_feed.transforms.effects import Effect, Grayscale, RandomGrayscale
from dali_feed.transforms.run import Run
from dali_feed.transforms.units import Place

__all__ = ["effect"]


def _refuse(op: Effect, rule: str, found: object) -> NoReturn:
    msg = f"{type(op).__name__}: the dali engine {rule}; found {found}. The host engine takes it"
    raise TransformError(msg)


def effect(op: Effect, place: Place, k: int, first: int) -> tuple[Step, Callable[[Run], None]]:
    """Step number k for the op, and what fills its array. TransformError where DALI has no operator for it."""
    step: Step
    if isinstance(op, base.Effect):
        step, rows = op.graph(place, k, first)
        name = step.name
    else:
        step, name, rows = _lowered(op, place, k, first)

    def fill(run: Run) -> None:
        run.arrays[f"{name}{k}"] = rows(run)

    return step, fill


def _lowered(op: Effect, place: Place, k: int, first: int) -> tuple[Step, str, Callable[[Run], NDArray[Any]]]:
    def on(run: Run) -> NDArray[np.bool_]:
        return run.on & whether(op, run, first)

    match op:
        case Grayscale() | RandomGrayscale():
            step = Colour(k, 1, contrast=False, hue=False)
            return step, "colour", lambda run: only(on(run), gray_steps(len(run.ids), cut=place.dtype == "uint8"))
        case _:
            _refuse(op, "has no operator for it", type(op).__name__)
