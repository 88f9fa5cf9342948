"""The methods of a transform, with defaults. The compilers call these, and know no transform by name.

The law: importing a transform loads NumPy and nothing else. What runs on pixels imports its library when it is called.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from typing import Any, ClassVar, NoReturn, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from dali_feed.draws import DEEPEST, NEST_BITS, STREAMS_PER_OP, TOP_BITS, uniforms
from dali_feed.errors import TransformError
from dali_feed.transforms.keys import WINDOW, Arrays, Key, further, numbered
from dali_feed.transforms.settings import READ, DType, Fill, Interpolation, Layout, Rule

__all__ = [
    "BLACK",
    "DRAWN",
    "INTERPOLATION",
    "Apply",
    "Arrays",
    "Effect",
    "Given",
    "Graph",
    "GraphStep",
    "InGraph",
    "Ints",
    "OnImage",
    "Op",
    "OpRun",
    "Place",
    "Recipe",
    "SizedDraws",
    "Window",
    "center_window",
    "crop_windows",
    "effect_key",
    "inner_numbers",
    "padded",
    "random_windows",
    "resized",
    "walk",
]


# Windows and sizes of a whole batch at once, by torchvision's rules. Pure arithmetic on arrays.
#
# Heights and widths are int64 (n,); windows are (y, x, height, width) in pixels. Halves round to even, as
# Python's round does, because torchvision's arithmetic is Python's.


Ints = NDArray[np.int64]
Window = tuple[Ints, Ints, Ints, Ints]
TRIES = 10


def resized(h: Ints, w: Ints, size: int | tuple[int, int], max_size: int | None) -> tuple[Ints, Ints]:
    """Output heights and widths of Resize: both edges, or the shorter one with the ratio kept (rounded down)."""
    if not isinstance(size, int):
        return np.full_like(h, size[0]), np.full_like(w, size[1])
    short, long = np.minimum(h, w), np.maximum(h, w)
    new_long = np.floor(size * long / short).astype(np.int64)
    new_short = np.full_like(short, size)
    if max_size is not None:
        over = new_long > max_size
        fitted = np.floor(max_size * new_short / new_long).astype(np.int64)
        new_short = np.where(over, np.maximum(fitted, 1), new_short)  # torchvision computes 0 and then fails
        new_long = np.where(over, max_size, new_long)
    return np.where(h <= w, new_short, new_long), np.where(h <= w, new_long, new_short)


def center_window(h: Ints, w: Ints, size: tuple[int, int]) -> Window:
    """The middle window of `size`; it begins above or left of the image (negative) where that is smaller."""

    def first(have: Ints, want: int) -> Ints:
        inside = np.rint((have - want) / 2).astype(np.int64)
        return np.where(have < want, -((want - have) // 2), inside)

    return first(h, size[0]), first(w, size[1]), np.full_like(h, size[0]), np.full_like(w, size[1])


def padded(h: Ints, w: Ints, op: Any) -> tuple[Ints, Ints, Ints, Ints]:
    """Pixels that the op puts left, above, right and below."""
    left, top, right, bottom = (np.full_like(h, edge) for edge in op.padding)
    if getattr(op, "pad_if_needed", False):
        high = np.maximum(op.size[0] - (h + top + bottom), 0)
        wide = np.maximum(op.size[1] - (w + left + right), 0)
        left, top, right, bottom = left + wide, top + high, right + wide, bottom + high
    return left, top, right, bottom


def crop_windows(h: Ints, w: Ints, op: Any, drawn: NDArray[np.float32]) -> Window:
    """RandomCrop's windows, `drawn` (4, n): rows 0 and 1 are y and x. With padding they may leave the image."""
    left, top, right, bottom = padded(h, w, op)
    y = ((h + top + bottom - op.size[0] + 1) * drawn[0]).astype(np.int64) - top
    x = ((w + left + right - op.size[1] + 1) * drawn[1]).astype(np.int64) - left
    return y, x, np.full_like(h, op.size[0]), np.full_like(w, op.size[1])


def _tried(
    h: Ints, w: Ints, scale: tuple[float, float], ratio: tuple[float, float], drawn: NDArray[np.float32]
) -> tuple[NDArray[np.bool_], Window]:
    """Windows of one or more tries, `drawn` (..., 4, n) -> (..., n) each, and which of them fit."""
    area_u, ratio_u, y_u, x_u = (drawn[..., k, :] for k in range(4))
    low, high = math.log(ratio[0]), math.log(ratio[1])
    area = (h * w) * (scale[0] + (scale[1] - scale[0]) * area_u.astype(np.float64))
    aspect = np.exp(low + (high - low) * ratio_u.astype(np.float64))
    tw = np.rint(np.sqrt(area * aspect)).astype(np.int64)
    th = np.rint(np.sqrt(area / aspect)).astype(np.int64)
    fits = (tw > 0) & (tw <= w) & (th > 0) & (th <= h)
    y, x = ((h - th + 1) * y_u).astype(np.int64), ((w - tw + 1) * x_u).astype(np.int64)
    return fits, (y, x, th, tw)


def random_windows(
    h: Ints,
    w: Ints,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    draw: Callable[[range, Ints], NDArray[np.float32]],
) -> Window:
    """RandomResizedCrop's windows: up to ten tries of (area, ratio), each with a place of its own, then the middle.

    `draw(tries, rows)` gives the four uniforms of those tries for those rows, float32 (tries, 4, rows). Few
    rows need more than one try, so the nine others are drawn for those alone.
    """
    fits, (y, x, ch, cw) = _tried(h, w, scale, ratio, draw(range(1), np.arange(len(h)))[0])
    if fits.all():
        return y, x, ch, cw
    todo = np.flatnonzero(~fits)
    hh, ww = h[todo], w[todo]
    fits, tried = _tried(hh, ww, scale, ratio, draw(range(1, TRIES), todo))
    first = fits.argmax(axis=0)[None]
    later = (np.take_along_axis(edge, first, 0)[0] for edge in tried)
    shape = ww / hh
    # At least one pixel: torchvision's rounding gives none for a line of pixels under an extreme ratio, and then fails.
    fw = np.where(shape > ratio[1], np.maximum(np.rint(hh * ratio[1]).astype(np.int64), 1), ww)
    fh = np.where(shape < ratio[0], np.maximum(np.rint(ww / ratio[0]).astype(np.int64), 1), hh)
    middle = ((hh - fh) // 2, (ww - fw) // 2, fh, fw)
    some = fits.any(axis=0)
    for edge, found, fallen in zip((y, x, ch, cw), later, middle, strict=True):
        edge[todo] = np.where(some, found, fallen)
    return y, x, ch, cw


# What is known about a batch while the parameters of a program are computed, op by op.


DRAWN: tuple[Interpolation, ...] = ("bilinear", "bicubic")  # the interpolations that a random one is chosen from


class SizedDraws:
    """Random numbers of samples `ids`, the sizes of their images on the way through the ops, and the arrays so far.

    Those of `streams` are drawn at once; those that few samples need are drawn when used.

    windowed: the decoder decodes only the window that the first op cuts out.
    """

    def __init__(
        self,
        streams: Sequence[int],
        sizes: NDArray[Any],
        ids: Ints,
        seed: int,
        epoch: int,
        *,
        windowed: bool = False,
    ) -> None:
        self.ids, self.seed, self.epoch = ids, seed, epoch
        self._rows = {stream: 4 * n for n, stream in enumerate(streams)}
        self._drawn = uniforms(seed, epoch, ids, streams)
        self.h, self.w = sizes[:, 0].astype(np.int64), sizes[:, 1].astype(np.int64)
        self.arrays: dict[Key, NDArray[Any]] = {}
        self.windowed = windowed

    def draw(self, stream: int) -> NDArray[np.float32]:
        """A stream's four uniforms, float32 (4, n)."""
        at = self._rows[stream]
        return self._drawn[at : at + 4]

    def interpolations(self, op: Any, first: int) -> tuple[Ints, ...]:
        """Which of DRAWN each sample is resized by, where that is random: by the stream after those of ten tries."""
        if op.interpolation != "random":
            return ()
        return ((self.draw(first + TRIES)[0].astype(np.float64) * len(DRAWN)).astype(np.int64),)

    def windows(self, op: Any, first: int) -> Window:
        """Crop windows; try t draws from stream first + t."""

        def draw(tries: range, rows: Ints) -> NDArray[np.float32]:
            if tries == range(1):
                return self.draw(first)[None]
            streams = [first + t for t in tries]
            return uniforms(self.seed, self.epoch, self.ids[rows], streams).reshape(len(tries), 4, len(rows))

        return random_windows(self.h, self.w, op.scale, op.ratio, draw)

    def crop_key(self, n: int) -> Key:
        """The name of the array of windows of op number n."""
        return WINDOW if self.windowed and n == 0 else numbered("crop", n)


class OpRun(SizedDraws):
    """The same for a DALI graph: crops and flips folded into existing steps, and which samples an op applies to."""

    def __init__(self, streams: Sequence[int], sizes: NDArray[Any], ids: Ints, seed: int, epoch: int) -> None:
        super().__init__(streams, sizes, ids, seed, epoch)
        zero = np.zeros_like(self.h)
        self.window: Window = (zero, zero, self.h, self.w)
        self.roi: tuple[NDArray[np.float64], ...] = ()
        self.mirror = {"x": np.zeros(len(ids), bool), "y": np.zeros(len(ids), bool)}
        self.picked: list[NDArray[np.bool_]] = []  # by each nest around the op

    @property
    def on(self) -> NDArray[np.bool_]:
        """Which samples the op applies to: those that every nest around it picked."""
        every: NDArray[np.bool_] = np.logical_and.reduce([np.ones(len(self.ids), bool), *self.picked])
        return every

    def as_shown(self, window: Window) -> Window:
        """A window that was chosen in the mirrored image, in coordinates of the image as it is stored so far."""
        y, x, h, w = window
        x = np.where(self.mirror["x"], self.w - x - w, x)
        y = np.where(self.mirror["y"], self.h - y - h, y)
        return y, x, h, w

    def narrow_roi(self, window: Window) -> None:
        """Let the last resize read that window alone."""
        y0, x0, y1, x1 = self.roi
        y, x, h, w = window
        sy, sx = (y1 - y0) / self.h, (x1 - x0) / self.w
        y0, x0 = y0 + y * sy, x0 + x * sx
        self.roi = (y0, x0, y0 + h * sy, x0 + w * sx)
        self.h, self.w = h, w


# The units of pixels at an op's place: their dtype, and the value that a level of 0..255 has there.


@dataclass(frozen=True, slots=True)
class Place:
    """Pixels of `dtype`; a level of 0..255 has the value level * scale + bias, per channel."""

    dtype: DType = "uint8"
    scale: NDArray[np.float64] = field(default_factory=lambda: np.ones(3))
    bias: NDArray[np.float64] = field(default_factory=lambda: np.zeros(3))

    @property
    def is_unit(self) -> bool:
        """Whether inversion is 255 - level: uint8, or floats in 0..1."""
        return self.dtype == "uint8" or bool((self.scale < 1).all())

    def levels(self, fill: Fill) -> tuple[float, float, float]:
        """A value given in these units, as a level of 0..255."""
        red, green, blue = np.broadcast_to(fill, 3) / self.scale
        return float(red), float(green), float(blue)


# What a transform can add to a DALI graph: steps, and crops and flips that are folded into existing steps.


Given = Callable[[Key, str, int], Any]  # an array's node, by its name, dtype (a name of `nvidia.dali.types`) and axes

BLACK = (0.0, 0.0, 0.0)
INTERPOLATION = {  # by name: that of `nvidia.dali.types`
    "nearest": "INTERP_NN",
    "nearest-exact": "INTERP_NN",
    "bilinear": "INTERP_LINEAR",
    "bicubic": "INTERP_CUBIC",
}


class GraphStep(Protocol):
    """Step k of a DALI graph, which takes array {name}{k} and builds itself."""

    @property
    def k(self) -> int:
        """Its number."""
        ...

    @property
    def name(self) -> str:
        """The name of its array."""
        ...

    def on(self, image: Any, given: Given, *, gpu: bool) -> Any:
        """The node that it makes of the image's (uint8, height, width, 3)."""
        ...


@dataclass(frozen=True, slots=True)
class Apply:
    """Step k of a DALI graph: `build` is given the image's node, and that of array {name}{k}, `ndim` axes of `dtype`.

    `dtype` is a name of `nvidia.dali.types`.
    """

    k: int
    name: str
    dtype: str
    ndim: int
    build: Callable[[Any, Any], Any]

    def on(self, image: Any, given: Given, *, gpu: bool) -> Any:
        """Call `build`, on the CPU and on a GPU alike."""
        del gpu
        return self.build(image, given(numbered(self.name, self.k), self.dtype, self.ndim))


InGraph = tuple[GraphStep, Callable[[OpRun], NDArray[Any]]]  # the step, and a function that fills its array


# A DALI graph as it grows, op by op: the one of `dali_feed.compiler.dali`, where its methods are said, stands above.
# `place` is the next op's, `k` the number of the last step; an op adds a `step`, a `flip`, a `branch` of ops, a window
# (`crop` of one size, `cut`) or a resize (`resample`), and asks what the images so far cover (`covers`).
Graph = Any


OnImage = Callable[[Any, Arrays, int], Any]  # an image (3, height, width) of torch, the batch's arrays, the slot


def effect_key(n: int) -> Key:
    """The array of op number n, where it takes one alone."""
    return numbered("effect", n)


class Op:
    """A transform of a recipe: a frozen dataclass of its settings.

    Unless a method says otherwise it draws no random numbers, keeps size, dtype and units, and comes before Normalize.
    """

    __slots__ = ()
    streams: ClassVar[int] = 0  # how many blocks of four random numbers every sample draws
    normalized: ClassVar[bool] = False  # whether it may come after Normalize
    normalizes: ClassVar[bool] = False  # whether ops that resample or change colours must come before it
    in_nest: ClassVar[bool] = False  # whether it may be skipped for some images of a batch
    of_finish: ClassVar[bool] = False  # whether the finish step can do it
    by_level: ClassVar[bool] = False  # whether a value becomes what itself and its channel alone say, in every image
    of_pil: ClassVar[bool] = False  # works on PIL images, so the host engine runs it unless the user chose an engine
    inner_words: ClassVar[tuple[str, str]] = ("transforms", "others of its kind")  # its parts, its nest, in messages
    called: ClassVar[str] = ""  # by its users, where that is not the name of the class
    rules: ClassVar[Mapping[str, Rule]] = {}  # of its fields
    theirs: ClassVar[Mapping[str, str]] = {}  # what fields are called by torchvision, where they are called otherwise

    def __post_init__(self) -> None:
        for name, rule in self.rules.items():
            rule(self.title, self.theirs.get(name, name), getattr(self, name))
        self.agree()

    def agree(self) -> None:
        """Raise TransformError where fields that keep their rules do not go with each other."""

    @classmethod
    def of(cls, transform: Any) -> Self:
        """From torchvision's transform of the same name. TransformError for a setting that cannot be kept."""
        make: Callable[..., Self] = cls
        known: tuple[Field[Any], ...] = fields(cls)  # type: ignore[arg-type]
        return make(
            **{each.name: READ[str(each.type)](transform, cls.theirs.get(each.name, each.name)) for each in known}
        )

    @property
    def title(self) -> str:
        """What users call it."""
        return self.called or type(self).__name__

    # What is known before any sample is seen.

    def drawn(self) -> Iterable[int]:
        """The streams that every sample draws from."""
        return range(self.streams)

    def inner(self) -> int:
        """How many parts it has with streams of their own; see `numbering.inner_numbers`."""
        return 0

    @property
    def has_parts(self) -> bool:
        """Whether it may have parts with streams of their own."""
        return bool(self.inner())

    def within(self, n: int) -> list[list[tuple[int, Op]]]:
        """The lists of ops inside it, each op with its own number; it is itself op number n."""
        del n
        return []

    def check(self, dtype: str) -> None:
        """Raise TransformError where it has no meaning for pixels of this dtype."""

    def channels_behind(self) -> int | None:
        """How many channels an image has after it, 1 or 3; None: as many as before."""
        return None

    def place_behind(self, place: Place) -> Place:
        """Dtype and units of the pixels after it."""
        return place

    def size_behind(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        """(height, width) of every image after it, where all are of `size`; None where they differ."""
        return size

    def sizes_behind(self, h: Ints, w: Ints) -> tuple[Ints, Ints]:
        """Heights and widths after it, as far as they do not depend on random numbers."""
        fixed = self.size_behind(None)
        return (h, w) if fixed is None else (np.full_like(h, fixed[0]), np.full_like(w, fixed[1]))

    def unfit(self, h: Ints, w: Ints) -> list[tuple[int, str]]:
        """Rows whose images it cannot take, each with the reason."""
        return []

    def erases(self) -> Fill | None:
        """The value that it writes into one rectangle (its row: y, x, height, width), if it does just that; or None.

        The last such op of a recipe is done by the finish step.
        """
        return None

    # What the host engine does.

    def begins_with_window(self) -> bool:
        """Whether it begins by cutting out a part of the image, so that a decoder can decode that part alone."""
        return False

    def host_rows(self, run: SizedDraws, n: int) -> None:
        """Put the parameters of op number n's steps into `run.arrays`, a row per sample; update `run.h` and `run.w`."""

    def host_steps(self, n: int, *, window: bool = False) -> list[OnImage]:
        """The steps of op number n on an image, in order; `window`: without the first crop, done by the decoder."""
        del n, window
        return []

    def follow_steps(self, n: int) -> list[OnImage]:
        """What op number n does, in turn, to torchvision's tv_tensors that follow the image, with `host_rows`' arrays.

        TransformError where nothing can follow it.
        """
        del n
        return []

    def no_follower(self) -> NoReturn:
        """Say that nothing can follow it."""
        rule = "masks, boxes and points cannot be changed together with it, as torchvision does not say how"
        msg = f"{self.title}: {rule}. Leave it out"
        raise TransformError(msg)

    # What the dali engine does.

    def in_graph(self, graph: Graph, first: int) -> None:
        """Add it to a DALI graph; its random numbers begin at stream `first`. TransformError where DALI can't."""
        raise NotImplementedError

    def refuse(self, rule: str, found: object) -> NoReturn:
        """Raise the TransformError that says what the dali engine lacks."""
        msg = f"{self.title}: the dali engine {rule}; found {found}. The host engine can run it"
        raise TransformError(msg)


class Effect(Op):
    """A transform that leaves an image's size, dtype and units as they are.

    Unless a method says otherwise it is applied with probability `p`, if it has one, and DALI has no operator for it.
    """

    __slots__ = ()
    streams: ClassVar[int] = 1
    in_nest: ClassVar[bool] = True
    array: ClassVar[str] = "effect"  # what its rows are called, before its number
    extras: ClassVar[tuple[str, ...]] = ()  # the names of `more`, in the order in which `image` takes them
    moves: ClassVar[bool] = False  # whether it moves pixels, so that what follows an image moves by `follow`

    def on(self, draws: SizedDraws, first: int) -> NDArray[np.bool_]:
        """The samples that it is applied to; its random numbers begin at stream `first`."""
        p = getattr(self, "p", None)
        return np.ones(len(draws.ids), bool) if p is None else draws.draw(first)[0] < p

    def rows(self, draws: SizedDraws, first: int) -> NDArray[Any]:
        """The parameters of `image`, a row per sample of the batch; `draws` has the images' sizes at this point."""
        return self.on(draws, first)

    def more(self, draws: SizedDraws, first: int) -> dict[str, NDArray[Any]]:
        """Further arrays, a row per sample, by what is added to the name of `rows`: "_weights", ..."""
        return {}

    def image(self, image: Any, row: Any, more: Sequence[Any]) -> Any:
        """One image (3, height, width) of the host engine, by torchvision's own function; its rows of `extras`."""
        raise NotImplementedError

    def follow(self, given: Any, row: Any) -> Any:
        """One of torchvision's tv_tensors that follows the image, where it `moves`, with the same row."""
        raise NotImplementedError

    def graph(self, place: Place, k: int, first: int) -> InGraph:
        """The step number k of a DALI graph that does the same. TransformError where DALI has no operator."""
        self.refuse("has no operator for it", self.title)

    def host_rows(self, run: SizedDraws, n: int) -> None:
        """By `rows` and `more`."""
        key, first = numbered(self.array, n), n * STREAMS_PER_OP
        run.arrays[key] = self.rows(run, first)
        run.arrays.update({further(key, name): rows for name, rows in self.more(run, first).items()})

    def host_steps(self, n: int, *, window: bool = False) -> list[OnImage]:
        """By `image`."""
        del window
        key = numbered(self.array, n)
        keys = [further(key, name) for name in self.extras]

        def apply(image: Any, arrays: Arrays, slot: int) -> Any:
            return self.image(image, arrays[key][slot], [arrays[each][slot] for each in keys])

        return [apply]

    def follow_steps(self, n: int) -> list[OnImage]:
        """By `follow`."""
        key = numbered(self.array, n)
        return [lambda given, arrays, slot: self.follow(given, arrays[key][slot])] if self.moves else []

    def in_graph(self, graph: Graph, first: int) -> None:
        """By `graph`."""
        graph.step(*self.graph(graph.place, graph.k + 1, first))


# The random streams of ops inside other ops.
#
# An op's number says which streams are its own. Ops of a recipe are numbered 0, 1, 2, ...; those in a nest carry the
# number of their nest in the lower bits and their own place above it, so that no op changes the streams of another. The
# chains of AugMix are numbered as the ops of a nest are.


def inner_numbers(op: Op, n: int, count: int) -> list[int]:
    """Numbers of `count` ops within op number n. TransformError where numbers run out."""
    depth = 0 if n < 1 << TOP_BITS else 1 + (n.bit_length() - 1 - TOP_BITS) // NEST_BITS
    if depth >= DEEPEST or count >= 1 << NEST_BITS:
        what, others = op.inner_words
        rule = f"must have fewer than {1 << NEST_BITS} {what} and lie in fewer than {DEEPEST} {others}"
        msg = f"{op.title}: {rule}; found {op!r}"
        raise TransformError(msg)
    return [n + ((k + 1) << (TOP_BITS + NEST_BITS * depth)) for k in range(count)]


def walk(ops: Iterable[Op]) -> Iterator[tuple[int, Op]]:
    """All ops with their numbers: a nest, then the ops inside it, then those after it."""
    every = list(enumerate(ops))
    nest = next((op for _, op in every if op.has_parts), None)
    if nest is not None and len(every) > 1 << TOP_BITS:
        msg = f"{nest.title}: must be in a list of at most {1 << TOP_BITS} transforms; found {len(every)}"
        raise TransformError(msg)
    yield from _walk(every)


def _walk(ops: Iterable[tuple[int, Op]]) -> Iterator[tuple[int, Op]]:
    for n, op in ops:
        yield n, op
        if op.inner():
            inner_numbers(op, n, op.inner())
        for branch in op.within(n):
            yield from _walk(branch)


# Recipe: what is done to each image, as a short list of frozen ops in torchvision's meaning.
#
# A recipe says what to do; `dali_feed.compiler` turns it into the steps an engine runs and the per-sample numbers those
# steps take. Ops are checked when they are made, so a wrong value never reaches an engine.


@dataclass(frozen=True, slots=True)
class Recipe:
    """Ops in the order in which they apply. The empty recipe gives uint8 pixels as decoded.

    layout   of the batch that comes out: "NCHW" (n, 3, height, width) or "NHWC" (n, height, width, 3)
    hardware share of a batch's JPEGs that a GPU's JPEG engine decodes, 0..1. Its pixels are not those of the CUDA
             decoder, and which JPEGs go there depends on the batch: above 0 a sample's pixels do too
    exif     images are turned as their EXIF orientation says, before the first op
    """

    ops: tuple[Op, ...] = ()
    layout: Layout = "NCHW"
    hardware: float = 0.0
    exif: bool = False

    @property
    def channels(self) -> int:
        """Channels of each image: 1 where an op makes it gray so; a batch then has three that are equal."""
        known = (op.channels_behind() for op in reversed(self.ops))
        return next((channels for channels in known if channels is not None), 3)
