"""Programs: a recipe made ready for an engine, with its parameters for each sample; and that of the host engine."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.draws import COLUMNS, STREAMS_PER_OP, TOP_BITS, VIEWS, seed_within
from dali_feed.errors import DaliFeedError, TransformError
from dali_feed.screen.header import MIRRORED_X, MIRRORED_Y, SIDEWAYS
from dali_feed.screen.screen import MAX_PIXELS
from dali_feed.transforms.crops import Flip, corners_of
from dali_feed.transforms.lower import unwrap
from dali_feed.transforms.op import (
    ADJUST,
    AUGMENT,
    CANVAS,
    ERASE,
    FLIPS,
    SHARES,
    SIZE,
    TURN,
    WINDOW,
    Arrays,
    Draws,
    Ints,
    Key,
    OnImage,
    Op,
    Place,
    Recipe,
    of_op,
    walk,
)
from dali_feed.transforms.settings import DType, Layout, refuse

if TYPE_CHECKING:
    from dali_feed.columns.follow import Follower


@dataclass(slots=True)
class Parameters:
    """arrays: by name, a row per sample; sizes: int64 (n, 2), height and width of the output."""

    arrays: dict[Key, NDArray[Any]]
    sizes: Ints


@dataclass(slots=True)
class ImageProgram:
    """What an engine runs to make one image of each sample.

    The law: augmentation is pure. Parameters come from (seed, epoch, sample id) and the size in the image's header,
    so they can be computed before anything is decoded, and again for any sample at any time.

    recipe   what it was made of
    size     (height, width) of every output image, or None where it depends on the input's
    dtype    of the output's pixels; None where a user's graph decides it
    fixed    whether `Parameters.sizes` are the sizes of the output (not so after a user's own graph)
    streams  the random streams that every sample draws from
    window   whether the decoder takes a window of each image
    finish   the step that is left for a GPU, where there is one
    """

    recipe: Recipe = field(default_factory=Recipe)
    size: tuple[int, int] | None = None
    dtype: DType | None = None
    fixed: bool = True
    streams: list[int] = field(default_factory=list)
    window: bool = False
    finish: Finish | None = None

    def parameters(self, sizes: NDArray[Any], ids: Ints, seed: int, epoch: int) -> Parameters:
        """The parameters for samples `ids`, whose headers say `sizes` (n, 2: height, width).

        Where images are turned, `sizes` are (n, 3): height and width once turned, and the orientation.
        """
        return self.taken(Draws(self.streams, sizes, ids, seed, epoch).through(enumerate(self.recipe.ops)))

    def taken(self, draws: Draws) -> Parameters:
        """The same of what the recipe's ops have drawn."""
        raise NotImplementedError


# Outline: what is known of a recipe before any sample is seen: sizes, dtype and random streams of its ops.
#
# The law: an order of ops that has no meaning is refused here, for every engine, and an image that
# an op cannot take is known by its header's size, so that it is a bad record and never a failure of an engine.


@dataclass(frozen=True, slots=True)
class Outline:
    """size: (height, width) of every image, or None where it depends on the input's; dtype; streams of every sample."""

    size: tuple[int, int] | None
    dtype: DType
    streams: list[int]


def outline(recipe: Recipe) -> Outline:
    """The outline. Raises TransformError where ops stand in an order that has no meaning (Normalize of uint8, ...)."""
    size: tuple[int, int] | None = None
    place = Place()
    streams: list[int] = []
    normalized, channels = False, 3
    for n, op in walk(recipe.ops):
        channels = op.output_channels() or channels
        _check_channels(op, channels)
        if normalized and not op.normalized:
            raise TransformError(
                f"{op.title}: must stand before Normalize, as it resamples or recolours pixels; found it after. Move it"
            )
        streams += [n * STREAMS_PER_OP + k for k in op.drawn()]
        size = op.output_size(size)
        op.check(place.dtype)
        place = op.output_place(place)
        normalized |= op.normalizes
    return Outline(size, place.dtype, streams)


def _check_channels(op: Op, channels: int) -> None:
    """Raise TransformError for three values where images have one channel."""
    fields = ("fill", "value", "mean", "std")
    values = (getattr(op, name, None) for name in fields)
    three = next((value for value in values if isinstance(value, tuple) and len(value) == 3), None)
    if channels == 1 and three is not None:
        refuse(op.title, "must have one number, as images have one channel after Grayscale(1)", three)


def unfit(recipe: Recipe, sizes: NDArray[Any], max_pixels: int = MAX_PIXELS) -> dict[int, str]:
    """Rows of `sizes` (n, 2: height, width) whose images an op cannot take, with the reason; size 0 means no image.

    An image of which random ops before it may leave too little is one: whatever is drawn, no window leaves its image.
    So is one of which an op makes more pixels than `max_pixels`, and than it has: of 1x65500 pixels `Resize(224)` makes
    3 billion.
    """
    every = [op for _, op in walk(recipe.ops)]
    if all(type(op).unfit is Op.unfit and _has_its_size(op) for op in every):  # its ops take every size
        return {}
    reasons: dict[int, str] = {}
    rows = np.flatnonzero(sizes[:, 0] > 0)
    h, w = sizes[rows, 0].astype(np.int64), sizes[rows, 1].astype(np.int64)
    least, most = (h, w), (h, w)
    for op in every:  # ops in a nest keep sizes as they are
        for row, reason in op.unfit(*least):
            reasons.setdefault(int(rows[row]), reason)
        least, most = op.bounds(least, most)
        for row in np.flatnonzero(least[0] * least[1] > np.maximum(max_pixels, h * w)).tolist():
            reasons.setdefault(
                int(rows[row]),
                f"{op.title}: may make {max_pixels} pixels of a smaller image at most; found one of {w[row]}x{h[row]}, "
                f"which would become {least[1][row]}x{least[0][row]}; see Decode(max_pixels=...)",
            )
    return reasons


def _has_its_size(op: Op) -> bool:
    """Whether what it makes has one size, or that of the image."""
    return type(op).bounds is Op.bounds or op.output_size(None) is not None


# What follows the images of a recipe: the ops that move pixels, and what each sample takes into them.
#
# The law: the numbers are those of the image's own steps, for draws belong to the sample.


@dataclass(frozen=True, slots=True)
class Followed:
    """The steps of tv_tensors that follow an image, in turn.

    taking  the rows that they take
    """

    steps: list[OnImage]
    taking: tuple[Key, ...]

    def taken(self, draws: Draws) -> dict[Key, NDArray[Any]]:
        """What the steps take of what the recipe's ops have drawn, a row per sample."""
        rows = {key: np.ascontiguousarray(draws.arrays[key]) for key in self.taking if key in draws.arrays}
        return rows | {CANVAS: np.ascontiguousarray(draws.sizes[:, :2], np.int32)}

    def run(self, value: Any, arrays: Arrays, slot: int) -> Any:
        """A tv_tensor, moved as the image in that slot is."""
        for step in self.steps:
            value = step(value, arrays, slot)
        return value


def compile_following(recipe: Recipe, *, boxes: bool, masks: bool = True) -> Followed:
    """Compile.

    TransformError where nothing can follow an op, where boxes and points cannot (padding that mirrors), or where masks
    cannot (a fill of three numbers, which torchvision cannot fill them with either).
    """
    for _, op in walk(recipe.ops) if masks else ():
        _check_fill(op)
    steps = [op.follower(n) for n, op in enumerate(recipe.ops)]
    for op, moving in zip(recipe.ops, steps, strict=True) if boxes else ():
        mode = getattr(op, "mode", "constant")
        if mode != "constant" and moving is not None:
            raise TransformError(f'{op.title}: boxes and points need padding_mode="constant"; found "{mode}"')
    moves = {n for n, step in enumerate(steps) if step is not None}
    taking = tuple(
        of_op(name, n)
        for n, op in walk(recipe.ops)
        if n % (1 << TOP_BITS) in moves and (op.moves or op.inner())
        for name in op.names
    )
    return Followed([step for step in steps if step is not None], taking)


def _check_fill(op: Op) -> None:
    """Raise TransformError for three numbers where masks are filled."""
    fill = getattr(op, "fill", 0.0) if getattr(op, "masks", None) is None else getattr(op, "masks", 0.0)
    if isinstance(fill, tuple) and getattr(op, "pads", True) and op.moves:
        cure = 'fill={tv_tensors.Mask: 0, "others": ...}'
        raise TransformError(f"{op.title}: masks must be filled with one number; found fill={fill}. Give {cure}")


# The program of a record's images: what becomes of each of them, of none, one or several.
#
# The law: an image column draws with a seed of its own, made from the run's and the name of the column whose random
# numbers it takes, and so does each view but the first. So no other column or view, and no order of columns, changes
# its draws; the first one has the run's seed, and is what it is alone.


RowKey = tuple[int, Key]  # the number of an output, and what its program calls the rows
_FOLLOW = "follow_"  # before the name: what moves what follows an output


@dataclass(frozen=True, slots=True)
class Output:
    """One image of each sample, as the engine of that name makes it.

    column     the image column it is made of; empty where images are what a source has for payloads
    view       which of several views of one decoded image it is; None where there is one
    draws      the column whose random numbers it takes; empty: the first, whose seed is the run's
    called     what stands before the reason why an image of its column cannot be used
    followed   what moves `followers`, the columns that follow it; None where none does
    """

    engine: str
    program: ImageProgram
    column: str = ""
    view: int | None = None
    draws: str = ""
    called: str = ""
    followed: Followed | None = None
    followers: Mapping[str, Follower] = field(default_factory=dict)

    @property
    def recipe(self) -> Recipe:
        return self.program.recipe

    def draw(
        self, sizes: NDArray[Any], ids: Ints, seed: int, epoch: int, values: Mapping[str, Any] = {}
    ) -> tuple[dict[Key, NDArray[Any]], Ints]:
        """The rows of samples `ids`, those of what follows it too, and the sizes that come out, int64 (n, 2)."""
        seed = seed_of_column(self.draws, seed)
        seed = seed_within(seed, VIEWS[0], self.view) if self.view else seed
        draws = Draws(self.program.streams, sizes, ids, seed, epoch)
        if any(op.by_boxes for op in self.recipe.ops):
            draws.boxes = self._boxes(draws, values)
        own = self.program.taken(draws.through(enumerate(self.recipe.ops)))
        rows = dict(own.arrays)
        if self.followed is not None:
            rows |= {Key(_FOLLOW + name): values for name, values in self.followed.taken(draws).items()}
        return rows, own.sizes

    def _boxes(self, draws: Draws, values: Mapping[str, Any]) -> Callable[[int], list[NDArray[Any]]] | None:
        """What finds the boxes of each sample in front of an op: those of the first column of boxes, moved so far."""
        named = ((name, kind) for name, kind in self.followers.items() if kind.has_boxes)
        name, kind = next(named, ("", None))
        if kind is None:
            return None

        def found(number: int) -> list[NDArray[Any]]:
            steps = [op.follower(n) for n, op in enumerate(self.recipe.ops[:number])]
            corners = []
            for slot, size in enumerate(draws.sizes[:, :2].tolist()):
                try:
                    boxes = kind.as_boxes(values[name][slot], tuple(size))
                    for step in steps:
                        boxes = boxes if step is None else step(boxes, draws.arrays, slot)
                    corners.append(corners_of(boxes).numpy())
                except DaliFeedError:
                    raise
                except Exception:  # noqa: BLE001 - it comes again when they follow, which makes their record a bad one
                    corners.append(np.zeros((0, 4), np.float32))
            return corners

        return found


@dataclass(frozen=True, slots=True)
class Program:
    """What becomes of the images of each record: a tuple of outputs, those of one column side by side, or none."""

    outputs: tuple[Output, ...] = ()

    @property
    def columns(self) -> dict[str, tuple[Output, ...]]:
        """The outputs of each image column, in order."""
        names = dict.fromkeys(output.column for output in self.outputs)
        return {name: tuple(each for each in self.outputs if each.column == name) for name in names}

    @property
    def engine(self) -> str:
        """The name of the engine that makes the first."""
        return self.outputs[0].engine if self.outputs else "none"

    @property
    def recipe(self) -> Recipe:
        """The recipe of the first; an empty one where there is none."""
        return self.outputs[0].recipe if self.outputs else Recipe()

    @property
    def several(self) -> bool:
        """Whether a batch has a list of images: of several outputs, or of views even where it is one."""
        return len(self.outputs) > 1 or any(output.view is not None for output in self.outputs)

    @property
    def fixed(self) -> bool:
        """Whether the sizes of all images are known before they are made."""
        return bool(self.outputs) and all(output.program.fixed for output in self.outputs)

    @property
    def sized(self) -> bool:
        """Whether all images of an output have one size, which is known before any sample is."""
        return self.fixed and all(output.program.size is not None for output in self.outputs)

    def draw(
        self, sizes: NDArray[Any], ids: Ints, seed: int, epoch: int, values: Mapping[str, Any] = {}
    ) -> tuple[dict[RowKey, NDArray[Any]], Ints]:
        """The rows that samples `ids` take into all outputs, and the sizes that come out, side by side.

        Args:
            sizes: those of all image columns side by side, int (n, 2 * columns): height and width in the header;
                3 * columns where images are turned, see `ImageProgram`.
            ids: of the samples, int64 (n,).
            seed: of the run.
            epoch: of the run.
            values: by column those of the samples, for ops that draw by their boxes.
        """
        rows: dict[RowKey, NDArray[Any]] = {}
        parts = []
        for number, (output, part) in enumerate(zip(self.outputs, self._parts(sizes), strict=True)):
            own, size = output.draw(part, ids, seed, epoch, values)
            rows |= {(number, name): values for name, values in own.items()}
            parts.append(size)
        return rows, np.concatenate(parts, axis=1) if parts else np.zeros((len(ids), 0), np.int64)

    def split(self, rows: Mapping[RowKey, NDArray[Any]]) -> tuple[list[dict[Key, Any]], list[dict[Key, Any]]]:
        """Each output's own rows, by the names of its program; and those of what follows each output."""
        own = [dict[Key, Any]() for _ in self.outputs]
        moving = [dict[Key, Any]() for _ in self.outputs]
        for (output, name), values in rows.items():
            if name.startswith(_FOLLOW):
                moving[output][Key(name.removeprefix(_FOLLOW))] = values
            else:
                own[output][name] = values
        return own, moving

    def _parts(self, sizes: NDArray[Any]) -> list[NDArray[Any]]:
        names = list(self.columns)
        each = sizes.shape[1] // max(1, len(names))
        first = (names.index(output.column) * each for output in self.outputs)
        return [sizes[:, at : at + each] for at in first]


def seed_of_column(name: str, seed: int) -> int:
    """The seed that the column of that name draws with: of 64 bits of its name's BLAKE2b. Without a name the run's."""
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return seed_within(seed, COLUMNS[0], int.from_bytes(digest, "little")) if name else seed


# Views: several transforms of one decoded image, such as the two of SimCLR or the crops of DINO.


MAX_VIEWS = 64


def as_views(transform: object) -> tuple[Any, ...] | None:
    """The transforms, each of which makes a view, of a list, or of an object whose transforms give one; else None.

    Raises TransformError where there are none, or more than 64.
    """
    if not isinstance(transform, list | tuple):
        transform = None if transform is None or isinstance(transform, Recipe) else unwrap(transform)
    if not isinstance(transform, list | tuple):
        return None
    if not 1 <= len(transform) <= MAX_VIEWS:
        refuse("transform", f"several views take 1 to {MAX_VIEWS} transforms", len(transform))
    return tuple(transform)


# Turning: how a stored image becomes the upright one, and where the upright one's windows lie in it. Pure arithmetic.
#
# The law: recipes and draws know the upright image alone, its sizes and its windows; decoders know the stored one. What
# lies between is one row for each sample, and is the same for every engine.


def turns(sizes: NDArray[Any]) -> NDArray[np.int32] | None:
    """A row per sample of `sizes` (n, 3: height, width, orientation); None where they have no orientations.

    int32 (n, 5): whether the stored image is mirrored top to bottom, left to right, and whether its axes are exchanged
    then; its height and width, as stored.
    """
    if sizes.shape[1] < 3:
        return None
    high, wide, way = sizes.T
    sideways = np.isin(way, SIDEWAYS)
    ways = np.isin(way, MIRRORED_Y), np.isin(way, MIRRORED_X), sideways
    return np.stack([*ways, np.where(sideways, wide, high), np.where(sideways, high, wide)], axis=1).astype(np.int32)


def stored(windows: NDArray[Any], rows: NDArray[np.int32]) -> NDArray[np.int32]:
    """Windows (n, 4: y, x, height, width) of upright images as windows of the stored ones, by the `turns` of each."""
    mirrored, sideways, size = rows[:, :2] != 0, rows[:, 2:3] != 0, rows[:, 3:]
    start = np.where(sideways, windows[:, 1::-1], windows[:, :2])
    edges = np.where(sideways, windows[:, :1:-1], windows[:, 2:])
    start = np.where(mirrored, size - start - edges, start)
    return np.concatenate([start, edges], axis=1).astype(np.int32)


Colours = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Finish:
    """flip_x, flip_y (int32) where there are any; value * scale + bias per channel; cast; to `layout`.

    With `erase`, rectangle erase (int32: y, x, height, width) of the output gets that value. With `adjusts`, that
    many colour steps come before all this: adjust (float32: adjusts, 2), a kind and a factor each, of colour.py.
    With `augments` stages come before these, in chains: augment (float32: chains, stages, 12) of auto_augment.py. The
    chains are mixed by shares (float32: 1 + chains), where there are any.
    """

    dtype: DType
    scale: Colours
    bias: Colours
    flip_x: bool
    flip_y: bool
    layout: Layout = "NCHW"
    erase: Colours | None = None
    adjusts: int = 0
    augments: bool = False


@dataclass(frozen=True, slots=True)
class Tail:
    """The finish step, to be run by the consumer on its own stream: the step, and its parameters for each sample.

    The parameters are NumPy arrays, or tensors on the device, once they have been sent there.
    """

    finish: Finish
    flip_x: Any | None
    flip_y: Any | None
    erase: Any | None = None
    adjust: Any | None = None
    augment: Any | None = None
    shares: Any | None = None

    @classmethod
    def of(cls, finish: Finish | None, arrays: Arrays) -> Tail | None:
        """The tail of a batch with these parameters; None where nothing is left to finish."""
        rows = (arrays.get(name) for name in (FLIPS["x"], FLIPS["y"], ERASE, ADJUST, AUGMENT, SHARES))
        return None if finish is None else cls(finish, *rows)


# The finish step, which replaces the last ops of a recipe: flips, floats, and the rectangle that is erased last.


_LARGEST = 3.4e38  # exact in float32, and so in the finish step


def finish_of(recipe: Recipe, flips: Collection[str]) -> Finish:
    """The step behind uint8 pixels: into the units of the recipe's end, flipped along these axes, erased last."""
    places, last = [Place()], last_erasing(recipe.ops)
    for op in recipe.ops:
        places.append(op.output_place(places[-1]))
    end, erase = places[-1], None
    if last is not None:  # in the units of the end, without rounding to a level
        value, place = np.broadcast_to(np.asarray(recipe.ops[last].erases()), 3), places[last]
        gain = end.scale / place.scale
        value = np.trunc(value) if place.dtype == "uint8" else value
        erase = _three(value * gain + (end.bias - place.bias * gain))
    scale, bias = _three(end.scale), _three(end.bias)
    return Finish(end.dtype, scale, bias, "x" in flips, "y" in flips, recipe.layout, erase)


def _three(values: NDArray[Any]) -> Colours:
    red, green, blue = values.tolist()
    return red, green, blue


def last_erasing(ops: Sequence[Op]) -> int | None:
    """The number of the op whose rectangle the finish step erases: all ops after it are done by the finish step too."""
    for n in reversed(range(len(ops))):
        value = ops[n].erases()
        if value is not None:
            return n if all(abs(one) <= _LARGEST for one in np.atleast_1d(value)) else None
        if not ops[n].of_finish:
            break
    return None


# A recipe compiled for the host engine: torchvision's own steps, in the recipe's own order. For a GPU the flips, float
# steps and the RandomErasing at the end are left to the finish kernel, and what comes out is uint8, channels last.
#
# `dali_feed.engines.dali.graph` folds crops and flips into steps that read the pixels. Here nothing is folded but a
# crop that the recipe begins with, which the decoder does: integer and float steps keep torchvision's order, and so
# pixels can equal its bit for bit. Random numbers, windows and sizes are those of the other compiler.


@dataclass(slots=True)
class HostProgram(ImageProgram):
    """The steps that the host engine runs, and how to compute their parameters. See `ImageProgram`.

    Op n draws from streams 16n..16n+15. Where `size` is None row "size" says it; with `window` the decoder takes row
    "window" (y, x, height, width) first.

    layout   of the output's pixels
    steps    the ops that it runs, with their numbers; those behind them are left to the finish step
    """

    dtype: DType = "uint8"
    layout: Layout = "NCHW"
    steps: list[tuple[int, Op]] = field(default_factory=list)

    def taken(self, draws: Draws) -> Parameters:
        """The same of what the recipe's ops have drawn."""
        arrays, out = dict(draws.arrays), np.stack([draws.h, draws.w], axis=1)
        if self.window:
            arrays[WINDOW] = arrays.pop(of_op("crop", 0))
        if (ways := turns(draws.sizes)) is not None:
            arrays[TURN] = ways
        if self.size is None:
            arrays[SIZE] = out
        if self.finish is not None:
            self._leave(arrays, out)
        return Parameters(arrays, out)

    def _leave(self, arrays: dict[Key, NDArray[Any]], sizes: Ints) -> None:
        """Put in the parameters of the finish step; rectangles are in coordinates of the output image."""
        turned: dict[str, NDArray[np.bool_]] = {}
        for n, op in enumerate(self.recipe.ops):
            if n < len(self.steps):
                continue
            if op.erases() is not None:
                arrays[ERASE] = arrays.pop(of_op("effect", n)).copy()
            elif isinstance(op, Flip):
                flips = arrays.pop(of_op("flip", n))
                turned[op.axis] = turned.get(op.axis, False) ^ flips
                if ERASE in arrays:
                    rows, k = arrays[ERASE], "yx".index(op.axis)
                    rows[flips, k] = (sizes[:, k] - rows[:, k] - rows[:, k + 2])[flips]
        arrays.update({FLIPS[axis]: rows.astype(np.int32) for axis, rows in turned.items()})


def compile_host(recipe: Recipe, *, on_gpu: bool = False) -> HostProgram:
    """Compile; `on_gpu`: the finish step runs on a GPU.

    Raises TransformError where ops stand in an order that has no meaning.
    """
    known, ops = outline(recipe), recipe.ops
    erasing, on_cpu = last_erasing(ops), len(ops)
    while on_gpu and on_cpu and (on_cpu - 1 == erasing or ops[on_cpu - 1].of_finish):
        on_cpu -= 1
    bytes_to_gpu = on_gpu and outline(Recipe(ops[:on_cpu])).dtype == "uint8"
    if not bytes_to_gpu:
        on_cpu = len(ops)
    program = HostProgram(recipe, known.size, known.dtype, streams=known.streams, layout=recipe.layout)
    program.window, program.steps = bool(ops) and ops[0].cuts, list(enumerate(ops[:on_cpu]))
    if bytes_to_gpu:
        program.finish = finish_of(recipe, {op.axis for op in ops[on_cpu:] if isinstance(op, Flip)})
        program.dtype, program.layout = "uint8", "NHWC"
    return program
