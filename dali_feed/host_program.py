"""A recipe compiled for the host engine: torchvision's own steps, in the recipe's own order.

Where `dali_feed.program` folds crops and flips into what reads the pixels, nothing is folded here but a
window that the recipe begins with, which the decoder takes: integer and float steps keep torchvision's order,
and so pixels can equal its bit for bit. Draws, windows and sizes are those of the other compiler.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dali_feed.batch_draws import BatchDraws
from dali_feed.colour import jitter_draws, steps_of
from dali_feed.geometry import center_window, resized
from dali_feed.program import STREAMS_PER_OP, Ints, Parameters, compile_recipe
from dali_feed.recipe import (
    CenterCrop,
    ColorJitter,
    DType,
    Flip,
    Interpolation,
    Normalize,
    Op,
    RandomResizedCrop,
    Recipe,
    Resize,
    Rotation,
    ToFloat,
)

__all__ = ["Crop", "HostProgram", "HostStep", "Jitter", "Mirror", "Scale", "Turn", "compile_host"]


@dataclass(frozen=True, slots=True)
class Crop:
    """Rows y, x, height, width (int32) of `key`; black outside the image."""

    key: str


@dataclass(frozen=True, slots=True)
class Scale:
    """To the height and width (int32) of row `key`."""

    key: str
    interpolation: Interpolation
    antialias: bool


@dataclass(frozen=True, slots=True)
class Mirror:
    """Along `axis` where the bool of row `key` says so."""

    key: str
    axis: str


@dataclass(frozen=True, slots=True)
class Jitter:
    """Adjustments `names` by the factors (float32) of row `key`, in the order (int64) of row `key` + "_order"."""

    key: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Turn:
    """By row `key` (float32, degrees, counter-clockwise) about the centre."""

    key: str
    interpolation: str
    fill: float


HostStep = Crop | Scale | Mirror | Jitter | Turn | ToFloat | Normalize


class _Run(BatchDraws):
    """Draws, and sizes on their way through the ops."""

    def __init__(self, sizes: NDArray[np.int32], ids: Ints, seed: int, epoch: int, streams: list[int]) -> None:
        super().__init__(ids, seed, epoch, streams)
        self.h, self.w = sizes[:, 0].astype(np.int64), sizes[:, 1].astype(np.int64)


@dataclass(slots=True)
class HostProgram:
    """What the host engine runs, and how to compute what it takes.

    ops      of the recipe, each with its first stream
    steps    the same for the engine; `window`: the decoder takes row "window" (y, x, height, width) first
    size     (height, width) of every image that comes out, or None where row "size" says it
    dtype    of the pixels that come out
    """

    ops: list[tuple[Op, int]]
    size: tuple[int, int] | None
    dtype: DType
    window: bool = False
    steps: list[HostStep] = field(default_factory=list)
    streams: list[int] = field(default_factory=list)
    fixed: bool = True

    def parameters(self, sizes: NDArray[np.int32], ids: Ints, seed: int, epoch: int) -> Parameters:
        """What samples `ids`, whose headers say `sizes` (n, 2: height, width), take into the steps."""
        run = _Run(sizes, ids, seed, epoch, self.streams)
        arrays: dict[str, NDArray[np.generic]] = {}
        for n, (op, first) in enumerate(self.ops):
            _compute(run, arrays, op, n, first, window=self.window and n == 0)
        out = np.stack([run.h, run.w], axis=1)
        if self.size is None:
            arrays["size"] = out
        return Parameters(arrays, out)


def _compute(run: _Run, arrays: dict[str, NDArray[np.generic]], op: Op, n: int, first: int, *, window: bool) -> None:
    match op:
        case RandomResizedCrop():
            crops = np.stack(run.windows(op, first, run.h, run.w), axis=1)
            arrays["window" if window else f"crop{n}"] = crops.astype(np.int32)
            run.h, run.w = np.full_like(run.h, op.size[0]), np.full_like(run.w, op.size[1])
            arrays[f"scale{n}"] = np.stack([run.h, run.w], axis=1).astype(np.int32)
        case Resize():
            run.h, run.w = resized(run.h, run.w, op.size, op.max_size)
            arrays[f"scale{n}"] = np.stack([run.h, run.w], axis=1).astype(np.int32)
        case CenterCrop():
            y, x, run.h, run.w = center_window(run.h, run.w, op.size)
            arrays[f"crop{n}"] = np.stack([y, x, run.h, run.w], axis=1).astype(np.int32)
        case Flip():
            arrays[f"flip{n}"] = run.draw(first)[0] < op.p
        case ColorJitter() if steps_of(op):
            factors, order = jitter_draws(op, run.draw(first), run.draw(first + 1))
            arrays[f"jitter{n}"], arrays[f"jitter{n}_order"] = factors, order
        case Rotation():
            low, high = op.degrees
            arrays[f"angle{n}"] = (low + (high - low) * run.draw(first)[0]).astype(np.float32)
        case _:
            pass  # the same for every sample


def _steps(op: Op, n: int, *, window: bool) -> list[HostStep]:
    match op:
        case RandomResizedCrop():
            scale = Scale(f"scale{n}", op.interpolation, op.antialias)
            return [scale] if window else [Crop(f"crop{n}"), scale]
        case Resize():
            return [Scale(f"scale{n}", op.interpolation, op.antialias)]
        case CenterCrop():
            return [Crop(f"crop{n}")]
        case Flip():
            return [Mirror(f"flip{n}", op.axis)]
        case ColorJitter():
            return [Jitter(f"jitter{n}", steps_of(op))] if steps_of(op) else []
        case Rotation():
            return [Turn(f"angle{n}", op.interpolation, op.fill)]
        case ToFloat() | Normalize():
            return [op]


def compile_host(recipe: Recipe) -> HostProgram:
    """Compile. Raises TransformError where ops stand in an order that has no meaning (Normalize of uint8, ...)."""
    other = compile_recipe(recipe, region_decode=True)  # its rules, streams, size and dtype are the same
    ops = [(op, n * STREAMS_PER_OP) for n, op in enumerate(recipe.ops)]
    window = bool(ops) and isinstance(ops[0][0], RandomResizedCrop)
    steps = [step for n, (op, _) in enumerate(ops) for step in _steps(op, n, window=window and n == 0)]
    return HostProgram(ops, other.size, other.dtype or "uint8", window, steps, other.streams)
