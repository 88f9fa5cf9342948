"""What a transform says of itself: what it draws, what it does to an image and its followers, its part of a graph.

The law: the random numbers of a transform are drawn once, by `Op.draw`. Engines, columns that follow an image, and
commands that show draws all take the same rows.

Importing a transform loads NumPy and nothing else. The libraries that run on pixels are imported by their first use.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from typing import Any, ClassVar, NewType, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from dali_feed.draws import DEEPEST, NEST_BITS, STREAMS_PER_OP, TOP_BITS, uniforms
from dali_feed.errors import TransformError
from dali_feed.packages import LazyModule
from dali_feed.transforms.settings import KEPT, READ, DType, Fill, Layout, Range, Rule, as_list, refuse

# Keys: what the arrays are called that go with a batch, each a row per sample. They are made here and nowhere else.
#
# The law: no two arrays of a batch have one name. So what an array is never ends in a digit, a number follows it, and
# what is said behind that begins with another character. A key is a type for a type checker, and at run time the text
# that DALI knows an input by: it costs nothing.


Key = NewType("Key", str)
Arrays = Mapping[Key, NDArray[Any]]

WINDOW = Key("window")  # that a decoder takes
SIZE = Key("size")  # of what comes out, where it is an image's own
FLIPS = {"x": Key("flip_x"), "y": Key("flip_y")}  # of the finish step, as those below
ERASE = Key("erase")
ADJUST = Key("adjust")
AUGMENT, SHARES = Key("augment"), Key("shares")

CANVAS = Key("canvas")  # height and width of the image before any transform
TURN = Key("turn")  # how the stored image becomes the upright one: `program.turns`


def numbered(what: str, n: int) -> Key:
    """Of op number n of the host engine, or of step number n of a DALI graph: `what` it takes."""
    return Key(f"{what}{n}")


def of_op(name: str, n: int) -> Key:
    """Of op number n, by the name of its rows: those of "effect_weights" are called "effect3_weights"."""
    what, under, part = name.partition("_")
    return Key(f"{what}{n}{under}{part}")


def viewed(key: Key, view: int) -> Key:
    """What an array of a view is called among those of all."""
    return Key(f"{key}@{view}") if view else key


# A transform.


torch, v2 = LazyModule("torch"), LazyModule("torchvision.transforms.v2")
fn, types = LazyModule("nvidia.dali.fn"), LazyModule("nvidia.dali.types")

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Sizes = tuple[Ints, Ints]  # heights and widths, a number per sample
Window = tuple[Ints, Ints, Ints, Ints]  # y, x, height and width in pixels, a number per sample
OnImage = Callable[[Any, Arrays, int], Any]  # an image (3, height, width) of torch, the batch's arrays, the slot

# A DALI graph as it grows, op by op: that of `dali_feed.engines.dali.graph`, where its methods are said, stands above.
Graph = Any

TRIES = 10  # how often a rectangle is drawn until it fits, as torchvision does


def columns(*each: Ints) -> NDArray[np.int32]:
    """A row per sample."""
    return np.stack(each, axis=1).astype(np.int32)


def rectangles(u: Floats, h: Ints, w: Ints, scale: Range, ratio: Range, *, tall: bool, count: Ints | int = 1) -> Window:
    """Rectangles of random area and aspect ratio, `count` of which share an area.

    The ratio is height / width where `tall`, else width / height. `u` is float64 (..., 4, n) -> int64 (..., n) each.
    """
    area_u, ratio_u, y_u, x_u = (u[..., k, :] for k in range(4))
    low, high = math.log(ratio[0]), math.log(ratio[1])
    area = (h * w) * (scale[0] + (scale[1] - scale[0]) * area_u) / count
    aspect = np.exp(low + (high - low) * ratio_u)
    long, short = (np.rint(np.sqrt(square)).astype(np.int64) for square in (area * aspect, area / aspect))
    th, tw = (long, short) if tall else (short, long)
    return ((h - th + 1) * y_u).astype(np.int64), ((w - tw + 1) * x_u).astype(np.int64), th, tw


def cut(image: Any, window: Any, fill: Fill = 0.0) -> Any:
    """The image within y, x, height, width; `fill` outside the image. None: as it is."""
    if window is None:
        return image
    y, x, height, width = window.tolist()
    h, w = image.shape[-2:]
    if y >= 0 and x >= 0 and y + height <= h and x + width <= w:
        return image[:, y : y + height, x : x + width]
    out = image.new_empty((image.shape[0], height, width))
    colour = torch.tensor(as_list(fill)).to(image.dtype)  # cut off to a whole level, as torchvision does
    out[:] = colour.view(-1, 1, 1)
    top, left, bottom, right = max(y, 0), max(x, 0), min(y + height, h), min(x + width, w)
    out[:, top - y : bottom - y, left - x : right - x] = image[:, top:bottom, left:right]
    return out


def cut_follower(value: Any, window: Any, fill: float = 0.0) -> Any:
    """The same of what follows an image, by torchvision's own function for it; `fill` outside of a mask."""
    if window is None:
        return value
    from torchvision.tv_tensors import Mask

    y, x, height, width = window.tolist()
    if fill and isinstance(value, Mask):  # torchvision's crop knows no fill: its transforms pad before it
        high, wide = v2.functional.get_size(value)
        edges = [max(0, edge) for edge in (-x, -y, x + width - wide, y + height - high)]
        value = v2.functional.pad(value, edges, fill=fill)
        y, x = y + edges[1], x + edges[0]
    return v2.functional.crop(value, y, x, height, width)


def no_boxes(title: str) -> TransformError:
    """The error of an op that is `by_boxes` where no column has any."""
    rule = "cuts by the boxes of an image; found no such column"
    return TransformError(f"{title}: {rule}. Give a column Boxes that follows it")


class Draws:
    """The samples of a batch on the way through a recipe's ops: random numbers, sizes, and the rows so far.

    ids      of the samples, int64 (n,)
    sizes    of their images in front of all ops, as they are given: int (n, 2 or 3), height, width, orientation
    h, w     of their images at this point, int64 (n,)
    arrays   the rows of all ops that have drawn
    n        the number of the op whose turn it is
    boxes    those of an op's number, of the column Boxes that follows the images; None: there is none
    seed     of the run, or of the view or column that draws
    epoch    of the run
    streams  that every sample draws from: their numbers are drawn at once, others when an op asks for them
    """

    def __init__(self, streams: Sequence[int], sizes: NDArray[Any], ids: Ints, seed: int, epoch: int) -> None:
        self.ids, self.sizes, self.seed, self.epoch = ids, sizes, seed, epoch
        self._at = {stream: 4 * k for k, stream in enumerate(streams)}
        self._drawn = uniforms(seed, epoch, ids, streams)
        self.h, self.w = sizes[:, 0].astype(np.int64), sizes[:, 1].astype(np.int64)
        self.arrays: dict[Key, NDArray[Any]] = {}
        self.n = 0
        self.boxes: Callable[[int], list[Floats]] | None = None

    def corners(self, title: str) -> list[Floats]:
        """Of each sample the boxes beside its image at this point, (k, 4: x, y, x, y)."""
        if self.boxes is None:
            raise no_boxes(title)
        return self.boxes(self.n)

    def through(self, ops: Iterable[tuple[int, Op]]) -> Draws:
        """Let each op draw, by its number."""
        for n, op in ops:
            self.n = n
            self.arrays.update({of_op(name, n): rows for name, rows in op.draw(self).items()})
        return self

    def u(self, k: int = 0) -> NDArray[np.float32]:
        """Four uniform numbers of each sample, float32 (4, n): the op's stream `k`."""
        at = self._at[self.n * STREAMS_PER_OP + k]
        return self._drawn[at : at + 4]

    def later(self, streams: Iterable[int], rows: Any = slice(None)) -> NDArray[np.float32]:
        """Those of streams that are not drawn for every sample, float32 (streams, 4, n), for some rows or all."""
        every, ids = list(streams), self.ids[rows]
        return uniforms(self.seed, self.epoch, ids, every).reshape(len(every), 4, len(ids))

    def parts(self, op: Op) -> list[int]:
        """The first stream of each of the op's parts."""
        return [number * STREAMS_PER_OP for number in inner_numbers(op, self.n)]

    def tried(
        self,
        first: int,
        attempt: Callable[[Floats, Ints, Ints], tuple[NDArray[np.bool_], Window]],
        wanted: NDArray[np.bool_] | None = None,
    ) -> tuple[NDArray[np.bool_], list[Ints]]:
        """The first of ten tries that fits: for which samples one did, and the window of each.

        `attempt` gives windows (tries, n) of uniforms (tries, 4, n), heights and widths, and which fit. Try t is of the
        op's stream first + t. Few samples need more than one, so the nine others are drawn for those alone.
        """
        fits, window = attempt(self.u(first)[None].astype(np.float64), self.h, self.w)
        some, edges = fits[0], [edge[0] for edge in window]
        rows = np.flatnonzero(~some if wanted is None else wanted & ~some)
        if len(rows):
            start = self.n * STREAMS_PER_OP + first
            drawn = self.later(range(start + 1, start + TRIES), rows).astype(np.float64)
            fits, window = attempt(drawn, self.h[rows], self.w[rows])
            best = fits.argmax(axis=0)[None]
            some[rows] = fits.any(axis=0)
            for edge, later in zip(edges, window, strict=True):
                edge[rows] = np.take_along_axis(later, best, 0)[0]
        return some, edges


# The units of pixels at an op's place: their dtype, and the value that a level of 0..255 has there.


@dataclass(frozen=True, slots=True)
class Place:
    """Pixels of `dtype`; a level of 0..255 has the value level * scale + bias, per channel."""

    dtype: DType = "uint8"
    scale: Floats = field(default_factory=lambda: np.ones(3))
    bias: Floats = field(default_factory=lambda: np.zeros(3))

    @property
    def is_unit(self) -> bool:
        """Whether inversion is 255 - level: uint8, or floats in 0..1."""
        return self.dtype == "uint8" or bool((self.scale < 1).all())

    def levels(self, fill: Fill) -> tuple[float, float, float]:
        """A value given in these units, as a level of 0..255."""
        red, green, blue = np.broadcast_to(fill, 3) / self.scale
        return float(red), float(green), float(blue)


class Op:
    """A transform of a recipe: a frozen dataclass of its settings.

    Unless a method says otherwise it draws no random numbers, keeps size, dtype and units, comes before Normalize, and
    DALI has no operator for it.
    """

    __slots__ = ()
    names: ClassVar[tuple[str, ...]] = ()  # of the rows that it draws, in the order in which `image` takes them
    streams: ClassVar[int] = 0  # how many blocks of four random numbers every sample draws
    normalized: ClassVar[bool] = False  # whether it may come after Normalize
    normalizes: ClassVar[bool] = False  # whether ops that resample or change colours must come before it
    in_nest: ClassVar[bool] = False  # whether it may be skipped for some images of a batch
    moves: ClassVar[bool | None] = False  # whether it moves pixels; None: nobody says how others move with them
    of_finish: ClassVar[bool] = False  # whether the finish step can do it
    by_boxes: ClassVar[bool] = False  # whether it draws by what follows its image
    by_level: ClassVar[bool] = False  # whether a value becomes what itself and its channel alone say, in every image
    cuts: ClassVar[bool] = False  # whether it begins with a window of the image, of which a decoder may decode that
    called: ClassVar[str] = ""  # by its users, where that is not the name of the class
    rules: ClassVar[Mapping[str, Rule]] = {}  # of its fields, beside those of their types
    theirs: ClassVar[Mapping[str, str]] = {}  # what fields are called by torchvision, where they are called otherwise

    def __post_init__(self) -> None:
        known: tuple[Field[Any], ...] = fields(self)  # type: ignore[arg-type]
        for each in known:
            rule = self.rules.get(each.name, KEPT.get(str(each.type)))
            if rule is not None:
                rule(self.title, self.theirs.get(each.name, each.name), getattr(self, each.name))
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
        """How many parts it has with streams of their own; see `inner_numbers`."""
        return 0

    def within(self, n: int) -> list[list[tuple[int, Op]]]:
        """The lists of ops inside it, each op with its own number; it is itself op number n."""
        del n
        return []

    def check(self, dtype: str) -> None:
        """Raise TransformError where it has no meaning for pixels of this dtype."""

    def output_channels(self) -> int | None:
        """How many channels an image has after it, 1 or 3; None: as many as before."""
        return None

    def output_place(self, place: Place) -> Place:
        """Dtype and units of the pixels after it."""
        return place

    def output_size(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        """(height, width) of every image after it, where all are of `size`; None where they differ."""
        return size

    def bounds(self, least: Sizes, most: Sizes) -> tuple[Sizes, Sizes]:
        """The smallest and the largest heights and widths after it, of images within these, whatever is drawn."""
        fixed = self.output_size(None)
        if fixed is None:
            return least, most
        size = np.full_like(least[0], fixed[0]), np.full_like(least[1], fixed[1])
        return size, size

    def unfit(self, h: Ints, w: Ints) -> list[tuple[int, str]]:
        """Rows whose images, of `h` and `w` at least, may be too small for it, each with the reason."""
        return []

    def erases(self) -> Fill | None:
        """The value that it writes into one rectangle (its row: y, x, height, width), if it does just that; or None.

        The last such op of a recipe is done by the finish step.
        """
        return None

    # What it draws, and what it does.

    def draw(self, d: Draws) -> Mapping[str, NDArray[Any]]:
        """Its rows by their `names`, a row per sample; sets `d.h` and `d.w` to the sizes behind it."""
        return {}

    def image(self, image: Any, *row: Any, **_: Any) -> Any:
        """One image (3, height, width) of the host engine, by torchvision's own function; a sample's row of each name.

        A row is None where it is not drawn, or a decoder has done with it ("crop").
        """
        raise NotImplementedError

    def follow(self, value: Any, *row: Any, **_: Any) -> Any:
        """One of torchvision's tv_tensors that follows the image, where it `moves`, with the same row."""
        raise NotImplementedError

    def step(self, n: int) -> OnImage:
        """Op number n on an image, with the arrays of its batch and its slot there."""
        return _with_rows(self.image, self.names, n)

    def follower(self, n: int) -> OnImage | None:
        """The same on what follows an image; None where that stays as it is. TransformError where nothing can."""
        if self.moves is None:
            rule = "masks, boxes and points cannot be changed together with it, as torchvision does not say how"
            raise TransformError(f"{self.title}: {rule}. Leave it out")
        return _with_rows(self.follow, self.names, n) if self.moves else None

    def dali(self, graph: Graph) -> None:
        """Add it to a DALI graph. TransformError where DALI has no operator that does the same."""
        self.refuse("has no operator for it", self.title)

    def refuse(self, rule: str, value: object) -> NoReturn:
        """Raise the TransformError that says what the dali engine lacks."""
        raise TransformError(f"{self.title}: the dali engine {rule}; found {value}. The host engine can run it")


def _with_rows(call: Callable[..., Any], names: Sequence[str], n: int) -> OnImage:
    keys = [of_op(name, n) for name in names]
    return lambda value, arrays, slot: call(value, *[arrays[k][slot] if k in arrays else None for k in keys])


class Effect(Op):
    """A transform that leaves size, dtype and units as they are; applied with probability `p`, if it has one."""

    __slots__ = ()
    names: ClassVar[tuple[str, ...]] = ("effect",)
    streams: ClassVar[int] = 1
    in_nest: ClassVar[bool] = True

    def draw(self, d: Draws) -> Mapping[str, NDArray[Any]]:
        """Which samples it is applied to, bool (n,)."""
        p = getattr(self, "p", None)
        return {self.names[0]: np.ones(len(d.ids), bool) if p is None else d.u()[0] < p}


# The random streams of ops inside other ops.
#
# An op's number says which streams are its own. Ops of a recipe are numbered 0, 1, 2, ...; those in a nest carry the
# number of their nest in the lower bits and their own place above it, so that no op changes the streams of another. The
# chains of AugMix are numbered as the ops of a nest are.


def inner_numbers(op: Op, n: int) -> list[int]:
    """Numbers of the parts of op number n. TransformError where numbers run out."""
    count = op.inner()
    depth = 0 if n < 1 << TOP_BITS else 1 + (n.bit_length() - 1 - TOP_BITS) // NEST_BITS
    if depth >= DEEPEST or count >= 1 << NEST_BITS:
        rule = (
            f"must have fewer than {1 << NEST_BITS} parts and lie in fewer than {DEEPEST} transforms that hold others"
        )
        refuse(op.title, rule, op)
    return [n + ((k + 1) << (TOP_BITS + NEST_BITS * depth)) for k in range(count)]


def walk(ops: Iterable[Op]) -> Iterator[tuple[int, Op]]:
    """All ops with their numbers: a nest, then the ops inside it, then those after it."""
    every = list(enumerate(ops))
    nest = next((op for _, op in every if op.inner()), None)
    if nest is not None and len(every) > 1 << TOP_BITS:
        refuse(nest.title, f"must be in a list of at most {1 << TOP_BITS} transforms", len(every))
    yield from _walk(every)


def _walk(ops: Iterable[tuple[int, Op]]) -> Iterator[tuple[int, Op]]:
    for n, op in ops:
        yield n, op
        if op.inner():
            inner_numbers(op, n)
        for branch in op.within(n):
            yield from _walk(branch)


# Recipe: what is done to each image, as a short list of frozen ops in torchvision's meaning.
#
# A recipe says what to do; programs and the engines turn it into steps, and into the per-sample numbers
# that those take. Ops are checked when they are made, so a wrong value never reaches an engine.


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
        known = (op.output_channels() for op in reversed(self.ops))
        return next((channels for channels in known if channels is not None), 3)
