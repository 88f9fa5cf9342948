"""A recipe compiled for the host engine: torchvision's own steps, in the recipe's own order.

In front of a GPU the flips, float steps and the RandomErasing that a recipe ends in are left to the finish
kernel there, and what comes out is uint8, channels last.

Where `dali_feed.compiler.dali` folds crops and flips into what reads the pixels, nothing is folded here but a
window that the recipe begins with, which the decoder takes: integer and float steps keep torchvision's order,
and so pixels can equal its bit for bit. Draws, windows and sizes are those of the other compiler.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.compiler.dali import Ints, Parameters
from dali_feed.compiler.finish import erased_at, finish_at, last_erasing, place_behind
from dali_feed.compiler.host_effects import EffectStep, effect_rows, effect_step
from dali_feed.compiler.outline import outline
from dali_feed.compiler.reduction import reductions
from dali_feed.compiler.steps import Finish
from dali_feed.plan.streams import STREAMS_PER_OP
from dali_feed.transforms import base
from dali_feed.transforms.affine import affine_draws
from dali_feed.transforms.batch_draws import BatchDraws
from dali_feed.transforms.colours import jitter_draws, steps_of
from dali_feed.transforms.effects import Effect
from dali_feed.transforms.erasing import RandomErasing
from dali_feed.transforms.fit import CropOrPad, Fit, ResizeKeepRatio, TrimBorder
from dali_feed.transforms.geometry import center_window, crop_windows, padded, resized
from dali_feed.transforms.geometry_fit import kept_ratio, lacking, placed, trimmed
from dali_feed.transforms.nest import numbered, pick_streams, picks
from dali_feed.transforms.recipe import (
    CenterCrop,
    ColorJitter,
    Flip,
    Nest,
    Normalize,
    Op,
    Pad,
    RandomAffine,
    RandomCrop,
    RandomResizedCrop,
    Recipe,
    Resize,
    Rotation,
    ToFloat,
)
from dali_feed.transforms.rules import Drawn, DType, Fill, Interpolation, Layout, PadMode
from dali_feed.transforms.units import Place

__all__ = [
    "Crop",
    "HostProgram",
    "HostStep",
    "Jitter",
    "Margin",
    "Mirror",
    "Move",
    "Pick",
    "Scale",
    "Turn",
    "compile_host",
]


@dataclass(frozen=True, slots=True)
class Crop:
    """Rows y, x, height, width (int32) of `key`; `fill` outside the image."""

    key: str
    fill: Fill = 0.0


@dataclass(frozen=True, slots=True)
class Margin:
    """Rows left, top, right, bottom (int32) of `key` put around the image."""

    key: str
    fill: Fill
    mode: PadMode


@dataclass(frozen=True, slots=True)
class Scale:
    """To the height and width (int32) of row `key`; where the interpolation is drawn, its number is the third."""

    key: str
    interpolation: Interpolation | Drawn
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
    fill: Fill


@dataclass(frozen=True, slots=True)
class Move:
    """By row `key` (float64): angle, x and y translation, scale, x and y shear; see dali_feed.transforms.affine."""

    key: str
    interpolation: str
    fill: Fill
    center: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class Pick:
    """The branches that row `key` (int64) names, in its order; -1 is none."""

    key: str
    branches: tuple[tuple[HostStep, ...], ...]


HostStep = Crop | Margin | Scale | Mirror | Jitter | Turn | Move | EffectStep | Pick | ToFloat | Normalize


class _Run(BatchDraws):
    """Draws, and sizes on their way through the ops."""

    def __init__(self, sizes: NDArray[np.int32], ids: Ints, seed: int, epoch: int, streams: list[int]) -> None:
        super().__init__(ids, seed, epoch, streams)
        self.h, self.w = sizes[:, 0].astype(np.int64), sizes[:, 1].astype(np.int64)


@dataclass(slots=True)
class HostProgram:
    """What the host engine runs, and how to compute what it takes.

    recipe   what it was made of; op n draws from streams 16n..16n+15
    steps    the same for the engine; `window`: the decoder takes row "window" (y, x, height, width) first
    reduce   row "reduce" (int32) says by how much an image may be decoded smaller; the first step is then a Scale
    size     (height, width) of every image that comes out, or None where row "size" says it
    dtype    of the pixels that come out, in `layout`
    finish   what is left to do on a GPU, where there is one and the recipe allows it
    """

    recipe: Recipe
    size: tuple[int, int] | None
    dtype: DType
    layout: Layout = "NCHW"
    finish: Finish | None = None
    window: bool = False
    reduce: bool = False
    steps: list[HostStep] = field(default_factory=list)
    streams: list[int] = field(default_factory=list)
    on_cpu: int = 0  # ops that are not left to the finish
    begin: int = 0  # ops that were another engine's; images are as these leave them
    fixed: bool = True

    @property
    def views(self) -> tuple[HostProgram, ...]:
        """What is made of one decoded image: itself."""
        return (self,)

    def parameters(self, sizes: NDArray[np.int32], ids: Ints, seed: int, epoch: int) -> Parameters:
        """What samples `ids`, whose headers say `sizes` (n, 2: height, width), take into the steps."""
        run = _Run(sizes, ids, seed, epoch, self.streams)
        arrays: dict[str, NDArray[np.generic]] = {}
        for n in range(self.begin, len(self.recipe.ops)):
            _compute(run, arrays, self.recipe.ops[n], n, window=self.window and n == 0)
        if self.reduce:
            h, w = sizes[:, 0].astype(np.int64), sizes[:, 1].astype(np.int64)
            y, x, wh, ww = arrays["window"].T.astype(np.int64) if self.window else (0 * h, 0 * w, h, w)
            arrays["reduce"] = reductions(h, w, (y, x, wh, ww), *arrays["scale0"].T[:2].astype(np.int64))
        out = np.stack([run.h, run.w], axis=1)
        if self.size is None:
            arrays["size"] = out
        if self.finish is not None:
            self._leave(arrays, out)
        return Parameters(arrays, out)

    def _leave(self, arrays: dict[str, NDArray[Any]], sizes: Ints) -> None:
        """Rows of the ops that the finish does, as it takes them; rectangles are those of what comes out."""
        turned: dict[str, NDArray[np.bool_]] = {}
        for n, op in enumerate(self.recipe.ops):
            if n < self.on_cpu or not isinstance(op, Flip | RandomErasing):
                continue
            if isinstance(op, RandomErasing):
                arrays["erase"] = arrays.pop(f"effect{n}")
                continue
            flips = arrays.pop(f"flip{n}")
            turned[op.axis] = turned.get(op.axis, False) ^ flips
            if "erase" in arrays:
                rows, k = arrays["erase"], "yx".index(op.axis)
                rows[flips, k] = (sizes[:, k] - rows[:, k] - rows[:, k + 2])[flips]
        arrays.update({f"flip_{axis}": rows.astype(np.int32) for axis, rows in turned.items()})


def _rows(*columns: Ints) -> NDArray[np.int32]:
    return np.stack(columns, axis=1).astype(np.int32)


def _compute(run: _Run, arrays: dict[str, NDArray[np.generic]], op: Op, n: int, *, window: bool) -> None:
    first = n * STREAMS_PER_OP
    if isinstance(op, Effect):
        arrays[f"effect{n}"] = effect_rows(op, run, first, run.h, run.w)
        if isinstance(op, base.Effect):
            arrays |= {f"effect{n}{name}": rows for name, rows in op.more(run, first).items()}
    elif isinstance(op, Nest):
        drawn = np.concatenate([run.draw(first + k) for k in range(pick_streams(op))])
        arrays[f"pick{n}"] = picks(op, drawn)
        for number, inner in (one for branch in numbered(op, n) for one in branch):
            _compute(run, arrays, inner, number, window=False)
    elif isinstance(op, Fit):
        _fit(run, arrays, op, n)
    else:
        _compute_own(run, arrays, op, n, window=window)


def _compute_own(run: _Run, arrays: dict[str, NDArray[np.generic]], op: Op, n: int, *, window: bool) -> None:
    first = n * STREAMS_PER_OP
    crop = "window" if window else f"crop{n}"
    match op:
        case RandomResizedCrop():
            arrays[crop] = _rows(*run.windows(op, first, run.h, run.w))
            run.h, run.w = np.full_like(run.h, op.size[0]), np.full_like(run.w, op.size[1])
            arrays[f"scale{n}"] = _rows(run.h, run.w, *run.interpolations(op, first))
        case Resize():
            run.h, run.w = resized(run.h, run.w, op.size, op.max_size)
            arrays[f"scale{n}"] = _rows(run.h, run.w)
        case CenterCrop():
            y, x, run.h, run.w = center_window(run.h, run.w, op.size)
            arrays[crop] = _rows(y, x, run.h, run.w)
        case RandomCrop():
            edges = padded(run.h, run.w, op)
            y, x, run.h, run.w = crop_windows(run.h, run.w, op, run.draw(first))
            if op.mode != "constant":
                arrays[f"margin{n}"] = _rows(*edges)
                y, x = y + edges[1], x + edges[0]
            arrays[crop] = _rows(y, x, run.h, run.w)
        case Pad():
            left, top, right, bottom = edges = padded(run.h, run.w, op)
            arrays[f"margin{n}"] = _rows(*edges)
            run.h, run.w = run.h + top + bottom, run.w + left + right
        case Flip():
            arrays[f"flip{n}"] = run.draw(first)[0] < op.p
        case ColorJitter() if steps_of(op):
            factors, order = jitter_draws(op, run.draw(first), run.draw(first + 1))
            arrays[f"jitter{n}"], arrays[f"jitter{n}_order"] = factors, order
        case Rotation():
            low, high = op.degrees
            arrays[f"angle{n}"] = (low + (high - low) * run.draw(first)[0]).astype(np.float32)
        case RandomAffine():
            drawn = np.concatenate([run.draw(first), run.draw(first + 1)])
            arrays[f"move{n}"] = affine_draws(op, run.h, run.w, drawn)
        case _:
            pass  # the same for every sample


def _fit(run: _Run, arrays: dict[str, NDArray[np.generic]], op: Fit, n: int) -> None:
    first = n * STREAMS_PER_OP
    if isinstance(op, ResizeKeepRatio):
        run.h, run.w = kept_ratio(op, run.h, run.w, run.draw(first))
        arrays[f"scale{n}"] = _rows(run.h, run.w, *run.interpolations(op, first))
        return
    if isinstance(op, TrimBorder):
        y, x, h, w = trimmed(op, run.h, run.w)
    else:
        y, x, h, w = window = placed(op, run.h, run.w, run.draw(first))
        if op.mode != "constant":
            edges = lacking(run.h, run.w, window)
            arrays[f"margin{n}"] = _rows(*edges)
            y, x = y + edges[1], x + edges[0]
    arrays[f"crop{n}"] = _rows(y, x, h, w)
    run.h, run.w = h, w


def _steps(op: Op, n: int, *, window: bool) -> list[HostStep]:
    """What the op does to pixels; nothing is left of a crop whose window the decoder takes."""
    if isinstance(op, Effect):
        return [effect_step(op, f"effect{n}")]
    if isinstance(op, Nest):
        return [Pick(f"pick{n}", tuple(_branch(branch) for branch in numbered(op, n)))]
    return _own_steps(op, n, window=window)


def _own_steps(op: Op, n: int, *, window: bool) -> list[HostStep]:
    fill = op.fill if isinstance(op, RandomCrop | CropOrPad) else 0.0
    crop: list[HostStep] = [] if window else [Crop(f"crop{n}", fill)]
    steps: list[HostStep] = []
    match op:
        case RandomResizedCrop():
            steps = [*crop, Scale(f"scale{n}", op.interpolation, op.antialias)]
        case ResizeKeepRatio():
            steps = [Scale(f"scale{n}", op.interpolation, antialias=True)]
        case Resize():
            steps = [Scale(f"scale{n}", op.interpolation, op.antialias)]
        case CenterCrop() | TrimBorder():
            steps = crop
        case RandomCrop() | CropOrPad():
            steps = crop if op.mode == "constant" else [Margin(f"margin{n}", op.fill, op.mode), *crop]
        case Pad():
            steps = [Margin(f"margin{n}", op.fill, op.mode)]
        case Flip():
            steps = [Mirror(f"flip{n}", op.axis)]
        case ColorJitter() if steps_of(op):
            steps = [Jitter(f"jitter{n}", steps_of(op))]
        case Rotation():
            steps = [Turn(f"angle{n}", op.interpolation, op.fill)]
        case RandomAffine():
            steps = [Move(f"move{n}", op.interpolation, op.fill, op.center)]
        case ToFloat() | Normalize():
            steps = [op]
    return steps


def _branch(ops: list[tuple[int, Op]]) -> tuple[HostStep, ...]:
    return tuple(step for number, op in ops for step in _steps(op, number, window=False))


def _finish(recipe: Recipe, on_cpu: int) -> Finish:
    """What the ops from `on_cpu` on come to, of uint8 pixels."""
    place, left = Place(), recipe.ops[on_cpu:]
    erasing: tuple[RandomErasing, Place] | None = None
    for op in left:
        place = place_behind(place, op) if isinstance(op, ToFloat | Normalize) else place
        erasing = (op, place) if isinstance(op, RandomErasing) else erasing
    value = None if erasing is None else erased_at(erasing[1], erasing[0], place)
    return finish_at(place, {op.axis for op in left if isinstance(op, Flip)}, recipe.layout, value)


def compile_host(recipe: Recipe, *, on_gpu: bool = False, begin: int = 0) -> HostProgram:
    """Compile, from op `begin` on; `on_gpu`: a GPU finishes.

    Raises TransformError where ops stand in an order that has no meaning.
    """
    known = outline(recipe)
    erasing = last_erasing(recipe.ops)
    on_cpu = len(recipe.ops)
    while on_gpu and on_cpu > begin:
        if on_cpu - 1 != erasing and not isinstance(recipe.ops[on_cpu - 1], Flip | ToFloat | Normalize):
            break
        on_cpu -= 1
    bytes_to_gpu = on_gpu and not any(isinstance(op, ToFloat) and op.dtype != "uint8" for op in recipe.ops[:on_cpu])
    if not bytes_to_gpu:
        on_cpu = len(recipe.ops)
    first = recipe.ops[0] if recipe.ops and not begin else None
    window = isinstance(first, RandomResizedCrop) or (isinstance(first, RandomCrop) and not first.pads)
    smooth = (
        isinstance(first, RandomResizedCrop | Resize) and first.antialias and first.interpolation != "nearest-exact"
    )
    reduce = recipe.decode == "reduced" and smooth
    numbered_ops = list(enumerate(recipe.ops))[begin:on_cpu]
    steps = [step for n, op in numbered_ops for step in _steps(op, n, window=window and n == 0)]
    program = HostProgram(
        recipe,
        known.size,
        known.dtype,
        layout=recipe.layout,
        window=window,
        reduce=reduce,
        steps=steps,
        streams=known.streams,
        on_cpu=on_cpu,
        begin=begin,
    )
    if bytes_to_gpu:
        program.finish = _finish(recipe, on_cpu)
        program.dtype, program.layout = "uint8", "NHWC"
    return program
