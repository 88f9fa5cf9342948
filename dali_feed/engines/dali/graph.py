"""The DALI graph of a recipe, and the arithmetic that folds each sample's rows into it.

Crops are folded into steps that read pixels anyway: before the first resize they narrow the decoded window, after one
they narrow the region it samples. Flips are folded into the last step; the steps between get mirrored windows and
negated angles.

All random numbers enter as inputs; no stateful random operator is used. The device is an argument: the same graph runs
on DALI's CPU backend, where it ends with the normalized batch. On a GPU it ends with dense uint8 HWC, and our finish
kernel does the rest on the consumer's stream. DALI is imported when a graph is built.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dali_feed.kernels.launch import compiles
from dali_feed.transforms.colour import KIND, MAX_STEPS
from dali_feed.transforms.op import (
    ADJUST,
    AUGMENT,
    ERASE,
    FLIPS,
    TURN,
    WINDOW,
    Draws,
    Floats,
    Key,
    Op,
    Place,
    Recipe,
    Window,
    columns,
    numbered,
    of_op,
    viewed,
)
from dali_feed.transforms.program import (
    Colours,
    Finish,
    ImageProgram,
    Parameters,
    finish_of,
    last_erasing,
    outline,
    stored,
    turns,
)
from dali_feed.transforms.settings import DRAWN, Drawn, Interpolation

PAYLOAD = Key("payload")
NOTHING_BEFOREHAND = {
    "device_memory_padding": 0,
    "host_memory_padding": 0,
}  # DALI's defaults: 16 MB and twice 8 MB for each thread

_INTERPOLATION = {  # by name: that of `nvidia.dali.types`
    "nearest-exact": "INTERP_NN",
    "bilinear": "INTERP_LINEAR",
    "bicubic": "INTERP_CUBIC",
}
_DTYPE = {
    "uint8": "UINT8",
    "float32": "FLOAT",
    "float16": "FLOAT16",
    "bfloat16": "FLOAT",  # not a DALI type: cast where the batch becomes a tensor
}


class Fold:
    """The samples of a batch on their way through a graph: rows become what its steps take.

    drawn   the rows of all ops
    h, w    heights and widths at this point, int64 (n,)
    window  of the stored image, that the decoder takes
    roi     of the image at the last resize, that it samples: y0, x0, y1, x1
    mirror  which images are stored mirrored at this point, along each axis, for the last step to mirror them
    arrays  of the graph's inputs, by name
    """

    def __init__(self, draws: Draws) -> None:
        self.draws, self.drawn = draws, draws.arrays
        self.h, self.w = draws.sizes[:, 0].astype(np.int64), draws.sizes[:, 1].astype(np.int64)
        zero = np.zeros_like(self.h)
        self.window: Window = (zero, zero, self.h, self.w)
        self.roi: tuple[Floats, ...] = ()
        self.mirror = {"x": np.zeros(len(self.h), bool), "y": np.zeros(len(self.h), bool)}
        self.picked: list[NDArray[np.bool_]] = []  # by each nest around the op
        self.arrays: dict[Key, NDArray[Any]] = {}

    @property
    def on(self) -> NDArray[np.bool_]:
        """Which samples the op applies to: those that every nest around it picked."""
        every: NDArray[np.bool_] = np.logical_and.reduce([np.ones(len(self.h), bool), *self.picked])
        return every

    def leave(self) -> None:
        """A nest ends."""
        self.picked.pop()

    def turn_back(self) -> NDArray[np.bool_]:
        """Which images are stored mirrored, x and y (n, 2). Whoever asks mirrors them: behind it none is."""
        mirrored = np.stack([self.mirror["x"], self.mirror["y"]], axis=1)
        self.mirror = {axis: np.zeros(len(self.h), bool) for axis in self.mirror}
        return mirrored

    def as_shown(self, windows: NDArray[Any]) -> Window:
        """Windows (n, 4) that were chosen in the mirrored image, in coordinates of the image as it is stored so far."""
        y, x, h, w = windows.T.astype(np.int64)
        x = np.where(self.mirror["x"], self.w - x - w, x)
        y = np.where(self.mirror["y"], self.h - y - h, y)
        return y, x, h, w

    def narrow(self, window: Window) -> None:
        """Let the last resize read that window alone."""
        y0, x0, y1, x1 = self.roi
        y, x, h, w = window
        sy, sx = (y1 - y0) / self.h, (x1 - x0) / self.w
        y0, x0 = y0 + y * sy, x0 + x * sx
        self.roi = (y0, x0, y0 + h * sy, x0 + w * sx)
        self.h, self.w = h, w


Inputs = Callable[[Key, str, int], Any]  # an array's node, by its name, dtype (a name of `nvidia.dali.types`) and axes
Part = Callable[[Fold], None]  # of the arithmetic


@dataclass(frozen=True, slots=True)
class Step:
    """`build` makes a node of the image's node (uint8, height, width, 3) and of what it takes from `inputs`.

    `colours` is how many steps of colour it is, whose rows are array `key`. One that `augments` is no part of a graph.
    """

    build: Callable[[Any, Inputs], Any]
    key: Key | None = None
    colours: int = 0
    augments: bool = False


@dataclass(slots=True)
class DaliProgram(ImageProgram):
    """A graph, and how to fill its inputs. See `ImageProgram`.

    steps    behind decoding
    parts    of the arithmetic, in order
    """

    steps: list[Step] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)

    def taken(self, draws: Draws) -> Parameters:
        """The same of what the recipe's ops have drawn."""
        fold = Fold(draws)
        for part in self.parts:
            part(fold)
        if (ways := turns(draws.sizes)) is not None:
            fold.arrays[TURN] = ways
            if WINDOW in fold.arrays:
                fold.arrays[WINDOW] = stored(fold.arrays[WINDOW], ways)
        arrays = {name: np.ascontiguousarray(rows) for name, rows in fold.arrays.items()}  # engines take dense memory
        return Parameters(arrays, np.stack([draws.h, draws.w], axis=1))


@dataclass(slots=True)
class _Resize:
    """Step k: to `size`, or to each sample's own; `roi`: from a part of the image only."""

    k: int
    size: tuple[int, int] | None
    roi: bool
    interpolation: Interpolation | Drawn
    antialias: bool

    def build(self, image: Any, inputs: Inputs) -> Any:
        from nvidia.dali import fn, types

        if self.interpolation == "random":
            first, second = (int(getattr(types, _INTERPOLATION[name])) for name in DRAWN)
            # DALI has no look-up; there are two, and their codes are numbers.
            code = inputs(numbered("mode", self.k), "INT32", 0) * (second - first) + first
            mode = fn.reinterpret(code, dtype=types.INTERP_TYPE)
        else:
            mode = getattr(types, _INTERPOLATION[self.interpolation])
        options: dict[str, Any] = {"interp_type": mode, "antialias": self.antialias}
        options["size"] = self.size or inputs(numbered("size", self.k), "FLOAT", 1)
        if self.roi:
            roi = inputs(numbered("roi", self.k), "FLOAT", 1)
            options.update(roi_start=roi[0:2], roi_end=roi[2:4])
        return fn.resize(image, **options)

    def fill(self, fold: Fold) -> None:
        """Fill its arrays, once all that is folded into it has been."""
        if self.size is None:
            fold.arrays[numbered("size", self.k)] = np.stack([fold.h, fold.w], axis=1).astype(np.float32)
        if self.roi:
            fold.arrays[numbered("roi", self.k)] = np.stack(fold.roi, axis=1).astype(np.float32)


class Graph:
    """A graph as it grows, op by op; `Op.dali` calls its methods, which speak of the rows of the op whose turn it is.

    place   dtype and units of pixels in front of the op
    n       the op's number
    on_gpu  whether the graph runs on a GPU
    """

    def __init__(self, recipe: Recipe, *, on_gpu: bool, region_decode: bool) -> None:
        self.on_gpu, self.n, self.place = on_gpu, 0, Place()
        known = outline(recipe)
        self._program = DaliProgram(recipe, known.size, streams=known.streams)
        self._names: tuple[str, ...] = ()  # of the op's rows
        self._region_decode = region_decode
        self._at_source = True  # nothing but flips has been done to the decoded image
        self._open: _Resize | None = None  # the resize that a crop can narrow
        self._covered: tuple[int, int] | None = None  # every image is at least that large at this point
        self._k = 0  # the number of the last step
        self._flips: list[Literal["x", "y"]] = []
        self._last_erasing = last_erasing(recipe.ops)
        self._augmenting: Op | None = None  # the last op that is left to the kernel `augment`

    def ops(self, ops: Sequence[tuple[int, Op]]) -> None:
        """Add ops, each with its number."""
        for n, op in ops:
            self.n, self._names = n, op.names
            if n == self._last_erasing:
                self._erase_last()
            else:
                op.dali(self)
            self.place = op.output_place(self.place)

    def _erase_last(self) -> None:
        """Left for the last step, in coordinates of the image as it is stored."""
        key = of_op("effect", self.n)
        self._part(lambda fold: fold.arrays.update({ERASE: columns(*fold.as_shown(fold.drawn[key]))}))

    def _part(self, part: Part) -> None:
        self._program.parts.append(part)

    def branch(self, k: int, ops: Sequence[tuple[int, Op]]) -> None:
        """Add ops as if they stood alone, without effect on the samples for which the op does not pick branch `k`."""
        n, names = self.n, self._names
        key = of_op("pick", n)
        self._part(lambda fold: fold.picked.append(fold.drawn[key][:, 0] == k))
        self.ops(ops)
        self._part(lambda fold: fold.leave())
        self.n, self._names = n, names

    def step(
        self,
        name: str,
        dtype: str,
        ndim: int,
        build: Callable[[Any, Any], Any],
        fold: Callable[..., NDArray[Any]],
        *,
        colours: int = 0,
        augments: bool = False,
    ) -> None:
        """Add a step of the op's own. Nothing later is folded into steps before it.

        Args:
            name: of the array that it takes, before its number.
            dtype: of that array, a name of `nvidia.dali.types`.
            ndim: axes of a sample of it.
            build: makes a node of the image's (uint8, height, width, 3) and of the array's.
            fold: makes the array of a `Fold` and the op's rows.
            colours: how many steps of colour it is.
            augments: it is left to the kernel `augment`, and `build` is not called.
        """
        self._close()
        self._k += 1
        key, rows = numbered(name, self._k), [of_op(each, self.n) for each in self._names]

        def fill(one: Fold) -> None:
            one.arrays[key] = fold(one, *[one.drawn[each] for each in rows])

        self._add(Step(lambda image, inputs: build(image, inputs(key, dtype, ndim)), key, colours, augments), fill)

    @property
    def augments(self) -> bool:
        """Whether the kernel `augment` can do something: it is for three channels, behind a graph on a GPU."""
        return self.on_gpu and self._program.recipe.channels == 3 and compiles()

    @property
    def augmenting(self) -> bool:
        """Whether an op before this one is left to it."""
        return self._augmenting is not None

    def augment(self, op: Op, stages: Callable[..., NDArray[Any]]) -> None:
        """Leave `op` to the kernel `augment`; `stages` makes what it takes of a `Fold`, turned back, and the op's rows.

        The flips before it are done there.
        """
        if self._augmenting is not None and (self._augmenting.inner() or op.inner()):
            op.refuse("mixes the chains of one transform alone", f"another one, {self._augmenting.title}, before it")
        self._augmenting, self._flips = op, []
        self.step("augment", "FLOAT", 3, lambda image, _: image, stages, augments=True)

    def _add(self, step: Step, fill: Part) -> None:
        self._program.steps.append(step)
        self._part(fill)

    def _close(self) -> None:
        """Close the open resize: nothing that follows can be folded into it."""
        self._at_source = False
        if self._open is not None:
            self._add(Step(self._open.build), self._open.fill)
            self._open = None

    def resize(
        self,
        interpolation: Interpolation | Drawn,
        *,
        antialias: bool,
        fixed: tuple[int, int] | None,
        covered: tuple[int, int] | None,
        window: bool,
    ) -> None:
        """Open a resize of the current image, or of the `window` that the op has drawn, to the sizes that it has drawn.

        `fixed` is the size of every image behind it, `covered` one that none is below, where these are known.
        """
        at_decoder = window and self._at_source and self._region_decode
        self._close()
        self._program.window |= at_decoder
        self._k += 1
        k, cut, scale = self._k, of_op("crop", self.n), of_op("scale", self.n)
        self._open, self._covered = _Resize(k, fixed, window and not at_decoder, interpolation, antialias), covered

        def part(fold: Fold) -> None:
            zero = np.zeros_like(fold.h)
            y, x, h, w = fold.as_shown(fold.drawn[cut]) if window else (zero, zero, fold.h, fold.w)
            if at_decoder:
                fold.window, y, x = (y, x, h, w), zero, zero
            fold.roi = tuple(edge.astype(np.float64) for edge in (y, x, y + h, x + w))
            fold.h, fold.w, *which = fold.drawn[scale].T.astype(np.int64)
            if which:
                fold.arrays[numbered("mode", k)] = which[0].astype(np.int32)

        self._part(part)

    def covers(self, size: tuple[int, int]) -> bool:
        """Whether every image is at least that large at this point."""
        return self._covered is not None and size[0] <= self._covered[0] and size[1] <= self._covered[1]

    def crop(self, size: tuple[int, int] | None, *, inside: bool, fill: Colours) -> None:
        """The window that the op has drawn: folded into resize or decoder where it is always `inside` the image.

        Else it is a slice, `fill` outside the image; of a size that differs from image to image where `size` is None.
        """
        cut, resize = of_op("crop", self.n), self._open
        self._covered = size
        if size is not None and inside and resize is not None:
            resize.size, resize.roi = size, True
            self._part(lambda fold: fold.narrow(fold.as_shown(fold.drawn[cut])))
        elif size is not None and inside and self._at_source and self._region_decode:
            self._at_source, self._program.window = False, True

            def decoded(fold: Fold) -> None:
                fold.window = fold.as_shown(fold.drawn[cut])
                fold.h, fold.w = fold.window[2:]

            self._part(decoded)
        else:
            self._slice(cut, size, fill)

    def _slice(self, cut: Key, size: tuple[int, int] | None, fill: Colours) -> None:
        self._close()
        self._k += 1
        anchor, shape = numbered("anchor", self._k), numbered("shape", self._k)

        def build(image: Any, inputs: Inputs) -> Any:
            from nvidia.dali import fn

            start, edges = inputs(anchor, "INT32", 1), size or inputs(shape, "INT32", 1)
            how = {"axes": [0, 1], "out_of_bounds_policy": "pad", "fill_values": list(fill)}
            return fn.slice(image, start=start, shape=edges, **how)

        def part(fold: Fold) -> None:
            y, x, h, w = fold.as_shown(fold.drawn[cut])
            fold.arrays[anchor] = columns(y, x)
            fold.h, fold.w = h, w
            if size is None:
                fold.arrays[shape] = columns(h, w)

        self._add(Step(build), part)

    def flip(self, axis: Literal["x", "y"]) -> None:
        """Left for the last step."""
        key = of_op("flip", self.n)
        if axis not in self._flips:
            self._flips.append(axis)

        def part(fold: Fold) -> None:
            fold.mirror[axis] ^= fold.on & fold.drawn[key]

        self._part(part)

    def done(self) -> DaliProgram:
        """The program, with the last step."""
        self._close()
        program, flips = self._program, self._flips
        if program.window:
            self._part(lambda fold: fold.arrays.update({WINDOW: columns(*fold.window)}))
        self._part(lambda fold: fold.arrays.update({FLIPS[a]: fold.mirror[a].astype(np.int32) for a in flips}))
        if self._last_erasing is not None:
            self._part(lambda fold: fold.arrays.update({ERASE: columns(*fold.as_shown(fold.arrays[ERASE]))}))
        program.finish = finish_of(program.recipe, flips)
        program.dtype = program.finish.dtype
        if self.on_gpu and compiles():
            _leave_colour(program, program.finish)
            _leave_augmented(program, program.finish)
        if self._augmenting is not None and any(step.augments for step in program.steps):
            self._augmenting.refuse("does it behind all that it does in a graph", "another transform behind it")
        return program


def compile_dali(recipe: Recipe, *, on_gpu: bool = False, region_decode: bool = True) -> DaliProgram:
    """The program of the dali engine, all of it a graph but for the finish step.

    `region_decode` says that the decoder gets the crop windows, on the CPU alone (else the first resize does).

    Raises TransformError where ops stand in an order that has no meaning (Normalize of uint8, ...), or DALI has no
    operator for one.
    """
    graph = Graph(recipe, on_gpu=on_gpu, region_decode=region_decode and not on_gpu)
    graph.ops(list(enumerate(recipe.ops)))
    return graph.done()


def _leave_colour(program: DaliProgram, finish: Finish) -> None:
    """Move the last colour steps, as many as the kernel `jitter` takes, to the finish step.

    It does only those directly before the finish step, for there the batch is dense uint8. A colour step that is
    followed by another step, such as a blur, stays in the graph, and so does every one on DALI's CPU backend.
    """
    keys: list[Key] = []
    count = 0
    while program.steps and (step := program.steps[-1]).colours and count + step.colours <= MAX_STEPS:
        program.steps.pop()
        keys = [key for key in (step.key,) if key] + keys
        count += step.colours
    if not keys:
        return
    program.finish = replace(finish, adjusts=count)

    def gather(fold: Fold) -> None:
        fold.arrays[ADJUST] = np.concatenate([fold.arrays.pop(key)[..., KIND] for key in keys], axis=1)

    program.parts.append(gather)


def _leave_augmented(program: DaliProgram, finish: Finish) -> None:
    """Move the last steps that the kernel `augment` does to the finish step."""
    keys: list[Key] = []
    while program.steps and program.steps[-1].augments:
        keys = [key for key in (program.steps.pop().key,) if key] + keys
    if not keys:
        return
    program.finish = replace(finish, augments=True)

    def gather(fold: Fold) -> None:
        fold.arrays[AUGMENT] = np.concatenate([fold.arrays.pop(key) for key in keys], axis=2)

    program.parts.append(gather)


# The nodes of DALI.


def _inputs_of(view: int) -> Inputs:

    def node(key: Key, dtype: str, ndim: int) -> Any:
        from nvidia.dali import fn, types

        return fn.external_source(name=viewed(key, view), no_copy=True, dtype=getattr(types, dtype), ndim=ndim)

    return node


def _decode(program: DaliProgram, inputs: Inputs, own: Mapping[str, Any]) -> Any:
    """`own`: a mixed decoder's options; on the CPU there are none."""
    from nvidia.dali import fn, types

    payload = inputs(PAYLOAD, "UINT8", 1)
    options: dict[str, Any] = {
        "device": "mixed" if own else "cpu",
        "output_type": types.RGB,
        "adjust_orientation": False,  # DALI reads some EXIF blocks otherwise than the screen, which sizes come from
        "jpeg_fancy_upsampling": True,  # libjpeg's own method, as in torchvision
        **own,
    }
    if program.window:
        window = inputs(WINDOW, "INT32", 1)
        image = fn.decoders.image_slice(payload, start=window[0:2], shape=window[2:4], axis_names="HW", **options)
    else:
        image = fn.decoders.image(payload, **options)
    return _turned(image, inputs(TURN, "INT32", 1)) if program.recipe.exif else image


def _turned(image: Any, turn: Any) -> Any:
    """Turned where that is needed. Others are passed by, without a copy: these two operators are an `if` of DALI's."""
    from nvidia.dali import fn

    split, merge = fn._conditional.split, fn._conditional.merge
    mirrored, sideways = (turn[0] + turn[1]) > 0, turn[2] > 0
    some, others = split(image, predicate=mirrored)
    ways, _ = split(turn, predicate=mirrored)
    image = merge(fn.flip(some, vertical=ways[0], horizontal=ways[1]), others, predicate=mirrored)
    some, others = split(image, predicate=sideways)
    return merge(fn.transpose(some, perm=[1, 0, 2], transpose_layout=False), others, predicate=sideways)


def _finished(step: Finish, image: Any, inputs: Inputs) -> Any:
    from nvidia.dali import fn, types

    if step.adjusts:
        raise TypeError(f"dali engine: a graph on the CPU does its own colour; found {step!r}, made for a GPU")
    flip_x = inputs(FLIPS["x"], "INT32", 0) if step.flip_x else 0
    if step.flip_y:
        image = fn.flip(image, horizontal=0, vertical=inputs(FLIPS["y"], "INT32", 0))
    mean = [-b / s for s, b in zip(step.scale, step.bias, strict=True)]
    std = [1 / s for s in step.scale]
    dtype = getattr(types, _DTYPE[step.dtype])
    image = fn.crop_mirror_normalize(
        image, mirror=flip_x, dtype=dtype, output_layout=step.layout[1:], mean=mean, std=std
    )
    if step.erase is None:
        return image
    rect = fn.cast(inputs(ERASE, "INT32", 1), dtype=types.FLOAT)
    return fn.erase(image, anchor=rect[0:2], shape=rect[2:4], axis_names="HW", fill_value=list(step.erase))


def build_graph(programs: Sequence[DaliProgram], *, gpu: bool, spare: bool = False) -> list[Any]:
    """The output nodes of programs of one decoded image; call it with a pipeline as the current one.

    `spare`: of the twin.
    """
    own: dict[str, Any] = {}
    if gpu:  # all else is DALI's default, but for its 0.65: a sample's pixels would depend on the rest of its batch
        own = {"hw_decoder_load": programs[0].recipe.hardware, **(NOTHING_BEFOREHAND if spare else {})}
    decoded, out = _decode(programs[0], _inputs_of(0), own), []
    for number, program in enumerate(programs):
        image, inputs = decoded, _inputs_of(number)
        for step in program.steps:
            image = step.build(image, inputs)
        out.append(image if gpu or program.finish is None else _finished(program.finish, image, inputs))
    return out
