"""A recipe compiled to the steps of a DALI graph, and the parameters of these steps for each sample.

Crops are folded into steps that read pixels anyway: before the first resize they narrow the decoded window,
after one they narrow the region it samples. Flips are folded into the last step; the steps between
get mirrored windows and negated angles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dali_feed.compiler.program import (
    Colours,
    DecodeStep,
    Finish,
    Ints,
    Parameters,
    Resample,
    Slice,
    Step,
    erased_at,
    finish_at,
    last_erasing,
    outline,
    stored,
    turns,
)
from dali_feed.draws import STREAMS_PER_OP
from dali_feed.transforms.colour import KIND, MAX_STEPS, Colour
from dali_feed.transforms.crops import rows
from dali_feed.transforms.keys import ADJUST, ERASE, FLIPS, TURN, WINDOW, Key, numbered
from dali_feed.transforms.op import BLACK, GraphStep, Op, OpRun, Place, Recipe, Window, effect_key
from dali_feed.transforms.settings import Drawn, DType, Fill, Interpolation

__all__ = ["DaliProgram", "compile_dali"]


Maker = Callable[[OpRun], None]


@dataclass(slots=True)
class DaliProgram:
    """Steps to run, and how to compute their parameters.

    recipe   what it was made of
    size     (height, width) of every output image, or None where it depends on the input's
    fixed    whether `Parameters.sizes` are the sizes of the output (not so after a user's own graph)
    streams  the random streams that every sample needs
    """

    recipe: Recipe = field(default_factory=Recipe)
    steps: list[Step] = field(default_factory=list)
    size: tuple[int, int] | None = None
    fixed: bool = True
    streams: list[int] = field(default_factory=list)
    makers: list[Maker] = field(default_factory=list)

    @property
    def dtype(self) -> DType | None:
        """The dtype of the output's pixels, where the last step is ours."""
        return None if self.finish is None else self.finish.dtype

    @property
    def finish(self) -> Finish | None:
        """The finish step, where the program ends in one."""
        last = self.steps[-1]
        return last if isinstance(last, Finish) else None

    def parameters(self, sizes: NDArray[Any], ids: Ints, seed: int, epoch: int) -> Parameters:
        """The steps' parameters for samples `ids`, whose headers say `sizes` (n, 2: height, width)."""
        run = OpRun(self.streams, sizes, ids, seed, epoch)
        for make in self.makers:
            make(run)
        if (ways := turns(sizes)) is not None:
            run.arrays[TURN] = ways
            if WINDOW in run.arrays:
                run.arrays[WINDOW] = stored(run.arrays[WINDOW], ways)
        arrays = {name: np.ascontiguousarray(found) for name, found in run.arrays.items()}  # engines take dense memory
        return Parameters(arrays, np.stack([run.h, run.w], axis=1))


class _Compiler:
    """Goes over the ops once; the `Graph` that they add themselves to. `open` is the resize that a crop can narrow."""

    def __init__(self, recipe: Recipe, *, region_decode: bool) -> None:
        self.region_decode = region_decode
        known = outline(recipe)
        self.program = DaliProgram(recipe, size=known.size, streams=known.streams)
        self.at_source, self.window = True, False
        self.open: Resample | None = None
        self.least: tuple[int, int] | None = None  # every image is at least this large at this point
        self.k = 0
        self.place = Place()
        self.flips = {"x": False, "y": False}
        self.last_erasing = last_erasing(recipe.ops)
        self.erasing: tuple[Fill, Place] | None = None

    def maker(self, make: Maker) -> None:
        self.program.makers.append(make)

    def op(self, op: Op, number: int) -> None:
        """Add one op, which draws from the streams of its number."""
        first, value = number * STREAMS_PER_OP, op.erases()
        if value is not None and number == self.last_erasing:
            self.erasing = value, self.place
            self.maker(lambda run: op.host_rows(run, number))
            self.maker(lambda run: run.arrays.update({ERASE: _shown(run, run.arrays.pop(effect_key(number)))}))
        else:
            op.in_graph(self, first)

    def branch(self, on: Callable[[OpRun], NDArray[np.bool_]], ops: Sequence[tuple[int, Op]]) -> None:
        """Add ops as if they stood alone, without effect on the samples that `on` does not choose."""

        def leave(run: OpRun) -> None:
            run.picked.pop()

        self.maker(lambda run: run.picked.append(on(run)))
        for number, op in ops:
            self.op(op, number)
        self.maker(leave)

    def step(self, step: GraphStep, found: Callable[[OpRun], NDArray[Any]]) -> None:
        """Add a step with the function that fills its array. Nothing later is folded into steps before it."""
        self.add(step, lambda run: run.arrays.update({numbered(step.name, step.k): found(run)}))

    def add(self, step: GraphStep | Slice, make: Maker) -> None:
        """Add a step with the function that fills all its arrays."""
        self.close()
        self.k = step.k
        self.program.steps.append(step)
        self.maker(make)

    def close(self) -> None:
        """Close the open resize: nothing that follows can be folded into it."""
        self.at_source = False
        if self.open is None:
            return
        done, self.open = self.open, None
        self.program.steps.append(done)

        def make(run: OpRun) -> None:
            if done.size is None:
                run.arrays[numbered("size", done.k)] = np.stack([run.h, run.w], axis=1).astype(np.float32)
            if done.roi:
                run.arrays[numbered("roi", done.k)] = np.stack(run.roi, axis=1).astype(np.float32)

        self.maker(make)

    def resample(
        self,
        sizes: Callable[[OpRun, Ints, Ints], tuple[Ints, Ints]],
        interpolation: Interpolation | Drawn,
        *,
        antialias: bool = True,
        fixed: tuple[int, int] | None = None,
        least: tuple[int, int] | None = None,
        choose: Callable[[OpRun], Window] | None = None,
        modes: Callable[[OpRun], NDArray[np.int32]] | None = None,
    ) -> None:
        """Open a resize of the current image, or of the part of it that `choose` gives."""
        at_decoder = choose is not None and self.at_source and self.region_decode
        self.close()
        self.window |= at_decoder
        self.k += 1
        self.open = Resample(self.k, fixed, choose is not None and not at_decoder, interpolation, antialias)
        self.least = least

        def make(run: OpRun) -> None:
            zero = np.zeros_like(run.h)
            y, x, h, w = run.as_shown(choose(run)) if choose else (zero, zero, run.h, run.w)
            if at_decoder:
                run.window, y, x = (y, x, h, w), zero, zero
            run.roi = tuple(edge.astype(np.float64) for edge in (y, x, y + h, x + w))
            run.h, run.w = sizes(run, h, w)

        self.maker(make)
        if modes is not None:
            key = numbered("mode", self.k)
            self.maker(lambda run: run.arrays.update({key: modes(run)}))

    def covers(self, size: tuple[int, int]) -> bool:
        """Whether every image is at least that large at this point."""
        return self.least is not None and size[0] <= self.least[0] and size[1] <= self.least[1]

    def crop(
        self, size: tuple[int, int], choose: Callable[[OpRun], Window], *, inside: bool, fill: Colours = BLACK
    ) -> None:
        """Folded into the resize or the decoder where it is always `inside` the image; else a slice."""
        self.least = size
        if self.open is not None and inside:
            self.open = replace(self.open, size=size, roi=True)
            self.maker(lambda run: run.narrow_roi(run.as_shown(choose(run))))
        elif inside and self.at_source and self.region_decode:
            self.at_source, self.window = False, True

            def narrow(run: OpRun) -> None:
                run.window = run.as_shown(choose(run))
                run.h, run.w = run.window[2:]

            self.maker(narrow)
        else:
            self.slice(size, choose, fill)

    def cut(self, choose: Callable[[OpRun], Window], fill: Colours = BLACK) -> None:
        """A slice whose size differs from image to image."""
        self.least = None
        self.slice(None, choose, fill)

    def slice(self, size: tuple[int, int] | None, choose: Callable[[OpRun], Window], fill: Colours) -> None:
        k = self.k + 1

        def make(run: OpRun) -> None:
            y, x, h, w = run.as_shown(choose(run))
            run.arrays[numbered("anchor", k)] = rows(y, x)
            run.h, run.w = h, w
            if size is None:
                run.arrays[numbered("shape", k)] = rows(h, w)

        self.add(Slice(k, size, fill), make)

    def flip(self, axis: Literal["x", "y"], on: Callable[[OpRun], NDArray[np.bool_]]) -> None:
        """Left for the last step."""
        self.flips[axis] = True

        def make(run: OpRun) -> None:
            run.mirror[axis] ^= run.on & on(run)

        self.maker(make)

    def done(self) -> DaliProgram:
        self.close()
        program = self.program
        program.steps.insert(0, DecodeStep(self.window, program.recipe.exif))
        if self.window:
            self.maker(lambda run: run.arrays.update({WINDOW: rows(*run.window)}))
        flips = [axis for axis, used in self.flips.items() if used]
        if flips:
            self.maker(lambda run: run.arrays.update({FLIPS[a]: run.mirror[a].astype(np.int32) for a in flips}))
        value: Colours | None = None
        if self.erasing is not None:
            fill, place = self.erasing
            value = erased_at(place, fill, self.place)
            self.maker(lambda run: run.arrays.update({ERASE: _shown(run, run.arrays[ERASE])}))
        program.steps.append(finish_at(self.place, flips, program.recipe.layout, value))
        return program


def _shown(run: OpRun, windows: NDArray[np.int32]) -> NDArray[np.int32]:
    """Rectangles that were chosen in the mirrored image, in coordinates of the image as it is stored so far."""
    y, x, h, w = windows.T.astype(np.int64)
    return rows(*run.as_shown((y, x, h, w)))


# The program of the dali engine; colour steps at its end, on a GPU, are left to the kernel `jitter`.
#
# It does only colour steps directly before the finish step, for there the batch is dense uint8. A colour step that
# is followed by another step, such as a blur, stays in the graph, and so does every one on DALI's CPU backend.


def compile_dali(recipe: Recipe, *, on_gpu: bool = False, region_decode: bool = True) -> DaliProgram:
    """The program of the dali engine, all of it a graph but for the finish step.

    `region_decode` says that the decoder gets the crop windows, on the CPU alone (else the first resize does).

    Raises TransformError where ops stand in an order that has no meaning (Normalize of uint8, ...), or DALI has no
    operator for one.
    """
    compiler = _Compiler(recipe, region_decode=region_decode and not on_gpu)
    for n, op in enumerate(recipe.ops):
        compiler.op(op, n)
    return with_kernel(compiler.done()) if on_gpu else compiler.done()


def with_kernel(program: DaliProgram) -> DaliProgram:
    """The program with its last colour steps, as many as the kernel takes, moved to the finish step."""
    finish, keys, count = program.finish, list[Key](), 0
    if finish is None:
        return program
    steps = program.steps[:-1]
    while isinstance(step := steps[-1], Colour) and count + step.steps <= MAX_STEPS:
        steps.pop()
        keys.insert(0, numbered(step.name, step.k))
        count += step.steps
    if not keys:
        return program

    def gather(run: OpRun) -> None:
        run.arrays[ADJUST] = np.concatenate([run.arrays.pop(key)[..., KIND] for key in keys], axis=1)

    done = replace(finish, adjusts=count)
    return replace(program, steps=[*steps, done], makers=[*program.makers, gather])
