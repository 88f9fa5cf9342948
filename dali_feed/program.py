"""Program: a recipe compiled to the steps an engine runs and the numbers each sample takes into them.

The law: augmentation is pure. Parameters come from (seed, epoch, sample id) and the size in the image's
header, so they can be computed before anything is decoded, and again for any sample at any time.

Crops are folded into what reads pixels anyway: before the first resize they narrow the decoded window,
after one they narrow the region it samples. Flips are folded into the last step; what stands between
sees mirrored windows and negated angles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dali_feed.batch_draws import BatchDraws
from dali_feed.colour import jitter_steps, steps_of
from dali_feed.errors import TransformError
from dali_feed.geometry import Window, center_window, resized
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

__all__ = [
    "Colour",
    "CustomStep",
    "Decode",
    "Finish",
    "Parameters",
    "Program",
    "Resample",
    "Rotate",
    "Slice",
    "Step",
    "compile_recipe",
]

Ints = NDArray[np.int64]
STREAMS_PER_OP = 16


@dataclass(frozen=True, slots=True)
class Decode:
    """Payload to RGB. With `window`, only window (int32: y, x, height, width) of it."""

    window: bool


@dataclass(frozen=True, slots=True)
class Resample:
    """To `size`, or per-sample size{k} (float32: height, width); `roi`: from roi{k} (float32: y0, x0, y1, x1) only."""

    k: int
    size: tuple[int, int] | None
    roi: bool
    interpolation: Interpolation
    antialias: bool


@dataclass(frozen=True, slots=True)
class Slice:
    """`size` pixels from anchor{k} (int32: y, x) on, black outside the image."""

    k: int
    size: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Rotate:
    """By angle{k} (float32, degrees, counter-clockwise) about the centre."""

    k: int
    interpolation: str
    fill: float


@dataclass(frozen=True, slots=True)
class Colour:
    """`steps` colour steps, colour{k} (float32: steps, 12), with or without a mean and a hue; see dali_feed.colour."""

    k: int
    steps: int
    contrast: bool
    hue: bool


@dataclass(frozen=True, slots=True)
class Finish:
    """flip_x, flip_y (int32) where there are any; value * scale + bias per channel; cast; to CHW."""

    dtype: DType
    scale: tuple[float, float, float]
    bias: tuple[float, float, float]
    flip_x: bool
    flip_y: bool


class CustomStep(Protocol):
    """A step that an engine knows by its own type."""

    def call(self, image: Any, make_input: Callable[[str], Any]) -> Any:
        """Build it on an engine's image."""
        ...


Step = Decode | Resample | Slice | Rotate | Colour | Finish | CustomStep


@dataclass(slots=True)
class Parameters:
    """arrays: per name a row per sample; sizes: int64 (n, 2), height and width that come out."""

    arrays: dict[str, NDArray[Any]]
    sizes: Ints


class _Run(BatchDraws):
    """What is known about a batch while its parameters are computed."""

    def __init__(self, program: Program, sizes: NDArray[Any], ids: Ints, seed: int, epoch: int) -> None:
        super().__init__(ids, seed, epoch, program.streams)
        self.h, self.w = sizes[:, 0].astype(np.int64), sizes[:, 1].astype(np.int64)
        zero = np.zeros_like(self.h)
        self.window: Window = (zero, zero, self.h, self.w)
        self.roi: tuple[NDArray[np.float64], ...] = ()
        self.mirror = {"x": np.zeros(len(ids), bool), "y": np.zeros(len(ids), bool)}
        self.arrays: dict[str, NDArray[Any]] = {}

    def as_shown(self, window: Window) -> Window:
        """A window that was chosen in the mirrored image, in the image as it is stored so far."""
        y, x, h, w = window
        x = np.where(self.mirror["x"], self.w - x - w, x)
        y = np.where(self.mirror["y"], self.h - y - h, y)
        return y, x, h, w

    def narrow_roi(self, window: Window) -> None:
        y0, x0, y1, x1 = self.roi
        y, x, h, w = window
        sy, sx = (y1 - y0) / self.h, (x1 - x0) / self.w
        y0, x0 = y0 + y * sy, x0 + x * sx
        self.roi = (y0, x0, y0 + h * sy, x0 + w * sx)
        self.h, self.w = h, w


Maker = Callable[[_Run], None]


@dataclass(slots=True)
class Program:
    """Steps to run and how to compute what they take.

    size     (height, width) of every image that comes out, or None where it follows the input's
    fixed    whether `Parameters.sizes` tells what comes out (not so behind a user's own graph)
    streams  the draws that every sample needs
    """

    steps: list[Step] = field(default_factory=list)
    size: tuple[int, int] | None = None
    fixed: bool = True
    streams: list[int] = field(default_factory=list)
    makers: list[Maker] = field(default_factory=list)

    @property
    def dtype(self) -> DType | None:
        """Of the pixels that come out, where the last step is ours."""
        return None if self.finish is None else self.finish.dtype

    @property
    def finish(self) -> Finish | None:
        """The last step, where it is ours."""
        last = self.steps[-1]
        return last if isinstance(last, Finish) else None

    def parameters(self, sizes: NDArray[Any], ids: Ints, seed: int, epoch: int) -> Parameters:
        """What samples `ids`, whose headers say `sizes` (n, 2: height, width), take into the steps."""
        run = _Run(self, sizes, ids, seed, epoch)
        for make in self.makers:
            make(run)
        arrays = {name: np.ascontiguousarray(rows) for name, rows in run.arrays.items()}  # engines take dense memory
        return Parameters(arrays, np.stack([run.h, run.w], axis=1))


class _Compiler:
    """Walks the ops once; `open` is the resize that a following crop can still narrow."""

    def __init__(self, *, region_decode: bool) -> None:
        self.region_decode = region_decode
        self.program = Program()
        self.at_source, self.window = True, False
        self.open: Resample | None = None
        self.least: tuple[int, int] | None = None  # every image is at least this large here
        self.k = 0
        self.dtype: DType = "uint8"
        self.scale, self.bias = np.ones(3), np.zeros(3)
        self.normalized = False
        self.flips = {"x": False, "y": False}

    def maker(self, make: Maker) -> None:
        self.program.makers.append(make)

    def begin(self, op: Op) -> None:
        if self.normalized and not isinstance(op, Flip | ToFloat | Normalize):
            name = "RandomRotation" if isinstance(op, Rotation) else type(op).__name__
            msg = f"{name}: pixels are resampled and recoloured before Normalize; move it in front of it"
            raise TransformError(msg)

    def close(self) -> None:
        """Whatever follows cannot be folded into the open resize any more."""
        self.at_source = False
        if self.open is None:
            return
        done, self.open = self.open, None
        self.program.steps.append(done)

        def make(run: _Run) -> None:
            if done.size is None:
                run.arrays[f"size{done.k}"] = np.stack([run.h, run.w], axis=1).astype(np.float32)
            if done.roi:
                run.arrays[f"roi{done.k}"] = np.stack(run.roi, axis=1).astype(np.float32)

        self.maker(make)

    def resample(self, op: RandomResizedCrop | Resize, choose: Callable[[_Run], Window] | None = None) -> None:
        """Open a resize of what is there now, or of the window of it that `choose` gives."""
        at_decoder = choose is not None and self.at_source and self.region_decode
        self.close()
        self.window |= at_decoder
        self.k += 1
        size, most = op.size, getattr(op, "max_size", None)
        fixed = None if isinstance(size, int) else size
        self.open = Resample(self.k, fixed, choose is not None and not at_decoder, op.interpolation, op.antialias)
        self.program.size = fixed
        self.least = fixed or (None if most or not isinstance(size, int) else (size, size))

        def make(run: _Run) -> None:
            zero = np.zeros_like(run.h)
            y, x, h, w = run.as_shown(choose(run)) if choose else (zero, zero, run.h, run.w)
            if at_decoder:
                run.window, y, x = (y, x, h, w), zero, zero
            run.roi = tuple(edge.astype(np.float64) for edge in (y, x, y + h, x + w))
            run.h, run.w = resized(h, w, size, most)

        self.maker(make)

    def op(self, op: Op, first: int) -> None:
        """Add one op whose draws are streams first..first+15."""
        self.begin(op)
        match op:
            case RandomResizedCrop():
                self.random_resized_crop(op, first)
            case Resize():
                self.resample(op)
            case CenterCrop():
                self.center_crop(op)
            case Flip():
                self.flip(op, first)
            case ColorJitter():
                self.color_jitter(op, first)
            case Rotation():
                self.rotation(op, first)
            case ToFloat():
                self.to_float(op)
            case Normalize():
                self.normalize(op)

    def random_resized_crop(self, op: RandomResizedCrop, first: int) -> None:
        self.program.streams.append(first)

        self.resample(op, lambda run: run.windows(op, first, run.h, run.w))

    def center_crop(self, op: CenterCrop) -> None:
        size, least = op.size, self.least
        if self.open is not None and least is not None and size[0] <= least[0] and size[1] <= least[1]:
            self.open = replace(self.open, size=size, roi=True)
            self.maker(lambda run: run.narrow_roi(run.as_shown(center_window(run.h, run.w, size))))
        else:
            self.close()
            self.k += 1
            anchor = f"anchor{self.k}"
            self.program.steps.append(Slice(self.k, size))

            def make(run: _Run) -> None:
                y, x, run.h, run.w = run.as_shown(center_window(run.h, run.w, size))
                run.arrays[anchor] = np.stack([y, x], axis=1).astype(np.int32)

            self.maker(make)
        self.program.size = self.least = size

    def flip(self, op: Flip, first: int) -> None:
        self.program.streams.append(first)
        self.flips[op.axis] = True

        def make(run: _Run) -> None:
            run.mirror[op.axis] ^= run.draw(first)[0] < op.p

        self.maker(make)

    def color_jitter(self, op: ColorJitter, first: int) -> None:
        names = steps_of(op)
        if not names:
            return
        self.close()
        self.k += 1
        key = f"colour{self.k}"
        self.program.steps.append(Colour(self.k, len(names), "contrast" in names, "hue" in names))
        self.program.streams += [first, first + 1]

        def make(run: _Run) -> None:
            run.arrays[key] = jitter_steps(op, run.draw(first), run.draw(first + 1))

        self.maker(make)

    def rotation(self, op: Rotation, first: int) -> None:
        self.close()
        self.k += 1
        key, (low, high) = f"angle{self.k}", op.degrees
        fill = op.fill / float(self.scale[0])  # given in the units that pixels have here, applied in 0..255
        self.program.steps.append(Rotate(self.k, op.interpolation, fill))
        self.program.streams.append(first)

        def make(run: _Run) -> None:
            angle = low + (high - low) * run.draw(first)[0]
            run.arrays[key] = np.where(run.mirror["x"] ^ run.mirror["y"], -angle, angle).astype(np.float32)

        self.maker(make)

    def to_float(self, op: ToFloat) -> None:
        if self.dtype == "uint8" and op.dtype != "uint8" and op.scale:
            self.scale = self.scale / 255
        elif self.dtype != "uint8" and op.dtype == "uint8":
            msg = f"ToDtype: {self.dtype} pixels cannot become uint8 again; leave out the first conversion"
            raise TransformError(msg)
        self.dtype = op.dtype

    def normalize(self, op: Normalize) -> None:
        if self.dtype == "uint8":
            msg = "Normalize: needs float pixels; found uint8. Put ToTensor or ToDtype(torch.float32, scale=True) first"
            raise TransformError(msg)
        mean, std = np.broadcast_to(op.mean, 3), np.broadcast_to(op.std, 3)
        self.scale, self.bias = self.scale / std, (self.bias - mean) / std
        self.normalized = True

    def done(self) -> Program:
        self.close()
        program = self.program
        program.steps.insert(0, Decode(self.window))
        if self.window:
            self.maker(lambda run: run.arrays.update(window=np.stack(run.window, axis=1).astype(np.int32)))
        flips = [axis for axis, used in self.flips.items() if used]
        if flips:
            self.maker(lambda run: run.arrays.update({f"flip_{a}": run.mirror[a].astype(np.int32) for a in flips}))
        r, g, b = (float(v) for v in self.scale)
        br, bg, bb = (float(v) for v in self.bias)
        program.steps.append(Finish(self.dtype, (r, g, b), (br, bg, bb), self.flips["x"], self.flips["y"]))
        return program


def compile_recipe(recipe: Recipe, *, region_decode: bool) -> Program:
    """Compile; `region_decode` says that the decoder is given windows (else the first resize is).

    Raises TransformError where ops stand in an order that has no meaning (Normalize of uint8, ...).
    """
    compiler = _Compiler(region_decode=region_decode)
    for n, op in enumerate(recipe.ops):
        compiler.op(op, n * STREAMS_PER_OP)
    return compiler.done()
