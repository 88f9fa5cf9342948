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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.compiler.dali_effects import effect
from dali_feed.compiler.dali_fit import fit, modes
from dali_feed.compiler.finish import erased_at, finish_at, last_erasing, place_behind
from dali_feed.compiler.outline import outline
from dali_feed.compiler.steps import Colour, Colours, Decode, Finish, Resample, Rotate, Slice, Step, Warp
from dali_feed.errors import TransformError
from dali_feed.plan.streams import STREAMS_PER_OP
from dali_feed.transforms.affine import affine_draws, source_matrices
from dali_feed.transforms.colours import jitter_steps, only, steps_of
from dali_feed.transforms.effects import Effect
from dali_feed.transforms.erasing import RandomErasing, erased
from dali_feed.transforms.fit import Fit, ResizeKeepRatio
from dali_feed.transforms.geometry import Window, center_window, crop_windows, padded, resized
from dali_feed.transforms.nest import numbered, picks
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
    RandomOrder,
    RandomResizedCrop,
    Recipe,
    Resize,
    Rotation,
    ToFloat,
)
from dali_feed.transforms.rules import DType, Fill, PadMode
from dali_feed.transforms.run import Run
from dali_feed.transforms.units import Place

__all__ = ["Parameters", "Program", "compile_recipe"]

Ints = NDArray[np.int64]


@dataclass(slots=True)
class Parameters:
    """arrays: per name a row per sample; sizes: int64 (n, 2), height and width that come out."""

    arrays: dict[str, NDArray[Any]]
    sizes: Ints


Maker = Callable[[Run], None]


@dataclass(slots=True)
class Program:
    """Steps to run and how to compute what they take.

    recipe   what it was made of
    size     (height, width) of every image that comes out, or None where it follows the input's
    fixed    whether `Parameters.sizes` tells what comes out (not so behind a user's own graph)
    streams  the draws that every sample needs
    """

    recipe: Recipe = field(default_factory=Recipe)
    steps: list[Step] = field(default_factory=list)
    size: tuple[int, int] | None = None
    fixed: bool = True
    streams: list[int] = field(default_factory=list)
    makers: list[Maker] = field(default_factory=list)

    @property
    def views(self) -> tuple[Program, ...]:
        """What is made of one decoded image: itself."""
        return (self,)

    @property
    def dtype(self) -> DType | None:
        """Of the pixels that come out, where the last step is ours."""
        return None if self.finish is None else self.finish.dtype

    @property
    def window(self) -> bool:
        """Whether the decoder is given windows."""
        return isinstance(self.steps[0], Decode) and self.steps[0].window

    @property
    def finish(self) -> Finish | None:
        """The last step, where it is ours."""
        last = self.steps[-1]
        return last if isinstance(last, Finish) else None

    def parameters(self, sizes: NDArray[Any], ids: Ints, seed: int, epoch: int) -> Parameters:
        """What samples `ids`, whose headers say `sizes` (n, 2: height, width), take into the steps."""
        run = Run(self.streams, sizes, ids, seed, epoch)
        for make in self.makers:
            make(run)
        arrays = {name: np.ascontiguousarray(rows) for name, rows in run.arrays.items()}  # engines take dense memory
        return Parameters(arrays, np.stack([run.h, run.w], axis=1))


class _Compiler:
    """Walks the ops once; `open` is the resize that a following crop can still narrow."""

    def __init__(self, recipe: Recipe, *, region_decode: bool) -> None:
        self.region_decode = region_decode
        known = outline(recipe)
        self.program = Program(recipe, size=known.size, streams=known.streams)
        self.at_source, self.window = True, False
        self.open: Resample | None = None
        self.least: tuple[int, int] | None = None  # every image is at least this large here
        self.k = 0
        self.place = Place()
        self.flips = {"x": False, "y": False}
        self.last_erasing = last_erasing(recipe.ops)
        self.erasing: tuple[RandomErasing, Place] | None = None

    def maker(self, make: Maker) -> None:
        self.program.makers.append(make)

    def step(self, make: Callable[[int], Step], fill: Maker) -> None:
        """Add a step, given its number, with the maker of its arrays. Nothing is folded into what was before."""
        self.close()
        self.k += 1
        self.program.steps.append(make(self.k))
        self.maker(fill)

    def close(self) -> None:
        """Whatever follows cannot be folded into the open resize any more."""
        self.at_source = False
        if self.open is None:
            return
        done, self.open = self.open, None
        self.program.steps.append(done)

        def make(run: Run) -> None:
            if done.size is None:
                run.arrays[f"size{done.k}"] = np.stack([run.h, run.w], axis=1).astype(np.float32)
            if done.roi:
                run.arrays[f"roi{done.k}"] = np.stack(run.roi, axis=1).astype(np.float32)

        self.maker(make)

    def op(self, op: Op, first: int) -> None:
        """Add one op whose draws are streams first..first+15."""
        if isinstance(op, RandomErasing) and first // STREAMS_PER_OP == self.last_erasing:
            self.finish_erases(op, first)
        elif isinstance(op, Effect):
            make, fill = effect(op, self.place, self.k + 1, first)
            self.step(lambda _: make, fill)
        elif isinstance(op, Nest):
            self.nest(op, first)
        elif isinstance(op, Fit):
            fit(self, op, first)
        else:
            self.own_op(op, first)

    def own_op(self, op: Op, first: int) -> None:
        """An op that has a case of its own here."""
        match op:
            case RandomResizedCrop():
                self.resample(op, lambda run: run.windows(op, first, run.h, run.w))
                modes(self, op, first)
            case Resize():
                self.resample(op)
            case CenterCrop():
                self.center_crop(op)
            case RandomCrop():
                self.random_crop(op, first)
            case Pad():
                self.pad(op)
            case Flip():
                self.flip(op, first)
            case ColorJitter():
                self.color_jitter(op, first)
            case Rotation():
                self.rotation(op, first)
            case RandomAffine():
                self.affine(op, first)
            case ToFloat() | Normalize():
                self.place = place_behind(self.place, op)

    def nest(self, op: Nest, first: int) -> None:
        """Inner ops as if they stood alone, and without effect on the samples that did not pick them."""
        if isinstance(op, RandomOrder):
            rule = "RandomOrder: the dali engine runs transforms in one order"
            msg = f"{rule}; found {len(op.branches)} to reorder. The host engine takes it"
            raise TransformError(msg)

        def leave(run: Run) -> None:
            run.picked.pop()

        for k, branch in enumerate(numbered(op, first // STREAMS_PER_OP)):

            def enter(run: Run, k: int = k) -> None:
                run.picked.append(picks(op, run.draw(first))[:, 0] == k)

            self.maker(enter)
            for number, inner in branch:
                self.op(inner, number * STREAMS_PER_OP)
            self.maker(leave)

    def center_crop(self, op: CenterCrop) -> None:
        size = op.size
        fits = self.least is not None and size[0] <= self.least[0] and size[1] <= self.least[1]
        self.crop(size, lambda run: center_window(run.h, run.w, size), inside=fits)

    def random_crop(self, op: RandomCrop, first: int) -> None:
        fill = self.fill(op, op.fill, op.mode if op.pads else "constant")
        self.crop(op.size, lambda run: crop_windows(run.h, run.w, op, run.draw(first)), inside=not op.pads, fill=fill)

    def resample(
        self,
        op: RandomResizedCrop | Resize | ResizeKeepRatio,
        choose: Callable[[Run], Window] | None = None,
        sizes: Callable[[Run, Ints, Ints], tuple[Ints, Ints]] | None = None,
    ) -> None:
        """Open a resize of what is there now, or of the window of it that `choose` gives; to `size`, or to `sizes`."""
        at_decoder = choose is not None and self.at_source and self.region_decode
        self.close()
        self.window |= at_decoder
        self.k += 1
        size, most = op.size, getattr(op, "max_size", None)
        fixed = None if isinstance(size, int) or sizes is not None else size
        self.open = Resample(
            self.k, fixed, choose is not None and not at_decoder, op.interpolation, getattr(op, "antialias", True)
        )
        self.least = fixed or (None if most or not isinstance(size, int) else (size, size))

        def make(run: Run) -> None:
            zero = np.zeros_like(run.h)
            y, x, h, w = run.as_shown(choose(run)) if choose else (zero, zero, run.h, run.w)
            if at_decoder:
                run.window, y, x = (y, x, h, w), zero, zero
            run.roi = tuple(edge.astype(np.float64) for edge in (y, x, y + h, x + w))
            run.h, run.w = resized(h, w, size, most) if sizes is None else sizes(run, h, w)

        self.maker(make)

    def crop(
        self,
        size: tuple[int, int],
        choose: Callable[[Run], Window],
        *,
        inside: bool,
        fill: tuple[float, float, float] = (0.0, 0.0, 0.0),
    ) -> None:
        """The window that `choose` gives; `inside` says that it cannot leave the image."""
        self.least = size
        if self.open is not None and inside:
            self.open = replace(self.open, size=size, roi=True)
            self.maker(lambda run: run.narrow_roi(run.as_shown(choose(run))))
        elif inside and self.at_source and self.region_decode:
            self.at_source, self.window = False, True

            def narrow(run: Run) -> None:
                run.window = run.as_shown(choose(run))
                run.h, run.w = run.window[2:]

            self.maker(narrow)
        else:
            self.step(lambda k: Slice(k, size, fill), self.slicer(choose))

    def slicer(self, choose: Callable[[Run], Window], *, shape: bool = False) -> Maker:
        key = self.k + 1

        def make(run: Run) -> None:
            y, x, h, w = run.as_shown(choose(run))
            run.arrays[f"anchor{key}"] = np.stack([y, x], axis=1).astype(np.int32)
            run.h, run.w = h, w
            if shape:
                run.arrays[f"shape{key}"] = np.stack([h, w], axis=1).astype(np.int32)

        return make

    def pad(self, op: Pad) -> None:
        fill = self.fill(op, op.fill, op.mode)

        def choose(run: Run) -> Window:
            left, top, right, bottom = padded(run.h, run.w, op)
            return -top, -left, run.h + top + bottom, run.w + left + right

        self.least = None
        self.step(lambda k: Slice(k, None, fill), self.slicer(choose, shape=True))

    def fill(self, op: Op, fill: Fill, mode: PadMode = "constant") -> tuple[float, float, float]:
        """Given in the units that pixels have here, applied in 0..255."""
        if mode != "constant":
            rule = 'the dali engine knows padding_mode="constant"'
            msg = f'{type(op).__name__}: {rule}; found "{mode}". The host engine takes it'
            raise TransformError(msg)
        red, green, blue = np.broadcast_to(fill, 3) / self.place.scale
        return float(red), float(green), float(blue)

    def one_fill(self, name: str, op: Rotation | RandomAffine) -> float:
        if not isinstance(op.fill, int | float) and len(set(op.fill)) != 1:
            msg = f"{name}: the dali engine takes one fill for all channels; found {op.fill}. The host engine takes it"
            raise TransformError(msg)
        return self.fill(op, op.fill)[0]

    def flip(self, op: Flip, first: int) -> None:
        self.flips[op.axis] = True

        def make(run: Run) -> None:
            run.mirror[op.axis] ^= run.on & (run.draw(first)[0] < op.p)

        self.maker(make)

    def color_jitter(self, op: ColorJitter, first: int) -> None:
        names = steps_of(op)
        if not names:
            return
        key = f"colour{self.k + 1}"

        def make(run: Run) -> None:
            run.arrays[key] = only(run.on, jitter_steps(op, run.draw(first), run.draw(first + 1)))

        self.step(lambda k: Colour(k, len(names), "contrast" in names, "hue" in names), make)

    def finish_erases(self, op: RandomErasing, first: int) -> None:
        self.erasing = op, self.place
        self.maker(lambda run: run.arrays.update(erase=_rows(run.as_shown(erased(op, run, first, run.h, run.w)))))

    def rotation(self, op: Rotation, first: int) -> None:
        key, (low, high) = f"angle{self.k + 1}", op.degrees
        fill = self.one_fill("RandomRotation", op)

        def make(run: Run) -> None:
            angle = low + (high - low) * run.draw(first)[0]
            turned = np.where(run.mirror["x"] ^ run.mirror["y"], -angle, angle)
            run.arrays[key] = np.where(run.on, turned, 0).astype(np.float32)

        self.step(lambda k: Rotate(k, op.interpolation, fill), make)

    def affine(self, op: RandomAffine, first: int) -> None:
        key = f"matrix{self.k + 1}"
        fill = self.one_fill("RandomAffine", op)

        def make(run: Run) -> None:
            draws = affine_draws(op, run.h, run.w, np.concatenate([run.draw(first), run.draw(first + 1)]))
            mirror = run.mirror["x"], run.mirror["y"]
            matrices = source_matrices(draws, run.h, run.w, op.center, mirror)
            run.arrays[key] = np.where(run.on[:, None, None], matrices, np.eye(2, 3, dtype=np.float32))

        self.step(lambda k: Warp(k, op.interpolation, fill), make)

    def done(self) -> Program:
        self.close()
        program = self.program
        program.steps.insert(0, Decode(self.window))
        if self.window:
            self.maker(lambda run: run.arrays.update(window=np.stack(run.window, axis=1).astype(np.int32)))
        flips = [axis for axis, used in self.flips.items() if used]
        if flips:
            self.maker(lambda run: run.arrays.update({f"flip_{a}": run.mirror[a].astype(np.int32) for a in flips}))
        value: Colours | None = None
        if self.erasing is not None:
            op, place = self.erasing
            value = erased_at(place, op, self.place)
            self.maker(lambda run: run.arrays.update(erase=_rows(run.as_shown(tuple(run.arrays["erase"].T)))))
        program.steps.append(finish_at(self.place, flips, program.recipe.layout, value))
        return program


def _rows(window: Window) -> NDArray[np.int32]:
    return np.stack(window, axis=1).astype(np.int32)


def compile_recipe(recipe: Recipe, *, region_decode: bool) -> Program:
    """Compile; `region_decode` says that the decoder is given windows (else the first resize is).

    Raises TransformError where ops stand in an order that has no meaning (Normalize of uint8, ...), or DALI has no
    operator for one.
    """
    compiler = _Compiler(recipe, region_decode=region_decode)
    for n, op in enumerate(recipe.ops):
        compiler.op(op, n * STREAMS_PER_OP)
    return compiler.done()
