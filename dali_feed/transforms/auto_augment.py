"""AutoAugment and its kind: operations that each image chooses from a table; torchvision's names and kernels.

A choice is an operation, the number of its strength and a sign. A strength's value is computed by torch, as
torchvision does, only when pixels are changed; so choices are the same on every machine.

`fill` None is torchvision's: pixels from outside the image are black, and are mixed into its edge once, where a number
is mixed into it twice.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from dali_feed.draws import STREAMS_PER_OP
from dali_feed.transforms.colour import GAMMA_TRIES, STEP, log_gammas
from dali_feed.transforms.op import SHARES, Draws, Effect, Floats, Graph, Ints, torch, v2
from dali_feed.transforms.settings import (
    READ,
    Background,
    Rule,
    Turning,
    above_zero,
    check_uint8,
    whole,
)

MOVES = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")
COLOURS = ("Brightness", "Color", "Contrast", "Sharpness")
SIGNED = (*MOVES, *COLOURS)
LEVELS = ("Posterize", "Solarize", "AutoContrast", "Equalize")

_BINS = 10  # how many strengths there are, unless a transform says so


@dataclass(frozen=True, slots=True)
class Space:
    """Operations to choose from, and how strong the strongest of each is.

    shift   pixels, of an image's width or height
    shear   pixels per pixel
    turn    degrees
    colour  how far a factor is from 1
    bits    how many the weakest Posterize leaves, and by how many fewer the strongest does
    """

    names: tuple[str, ...]
    shift: Callable[[int], float]
    shear: float = 0.3
    turn: float = 30.0
    colour: float = 0.9
    bits: tuple[int, int] = (8, 4)


class Auto(Effect):
    """Operations of `space`, each with one of `grades` strengths, as rows (int32: chains, steps, 3) name them.

    A step's three numbers are the operation (-1: none), the strength and the sign.
    """

    __slots__ = ()
    moves: ClassVar[bool | None] = None
    choices: ClassVar[Space]  # the operations that it chooses from
    theirs: ClassVar[Mapping[str, str]] = {"bins": "num_magnitude_bins"}
    interpolation: Turning
    fill: Background

    @property
    def space(self) -> Space:
        return self.choices

    @property
    def grades(self) -> int:
        return int(getattr(self, "bins", _BINS))

    def check(self, dtype: str) -> None:
        check_uint8(self.title, dtype)

    def chosen(self, drawn: NDArray[np.float32], strength: int | None, bins: int = 0) -> Ints:
        """An operation, one of `bins` strengths or the given one, and a sign, of uniforms (4, n): (n, 3)."""
        u, names = drawn.astype(np.float64), self.space.names
        which = (u[0] * len(names)).astype(np.int64)
        strong = (u[1] * (bins or self.grades)).astype(np.int64) if strength is None else np.full_like(which, strength)
        return np.stack([which, strong, self.signs(which, u[2])], axis=1)

    def signs(self, which: Ints, u: Floats) -> Ints:
        """Half of them -1 where the operation has a sign."""
        signed = np.isin(self.space.names, SIGNED)[which]
        return np.where(signed & (u < 0.5), -1, 1)

    def image(self, image: Any, row: Any, weights: Any = None) -> Any:
        """One chain of operations; with `weights` several are mixed."""
        del weights
        return self.run(image, row.tolist()[0])

    def run(self, image: Any, chain: list[list[int]]) -> Any:
        """The operations of a chain, one after the other, by torchvision's own kernels."""
        space, fill = self.space, list(self.fill) if isinstance(self.fill, tuple) else self.fill
        outside = {"interpolation": v2.InterpolationMode(self.interpolation), "fill": fill}
        for which, strong, sign in chain:
            name = space.names[which] if which >= 0 else "Identity"
            known = OPERATIONS[name]
            edge = {"TranslateX": -1, "TranslateY": -2}.get(name)
            value = 0.0
            if known.strongest is not None:
                value = strengths(name, space, self.grades, image.shape[edge] if edge else 0)[strong] * sign
            if known.kernel:
                more = {**outside, **known.how} if name in MOVES else {}
                image = getattr(v2.functional, f"{known.kernel}_image")(image, *known.arguments(value), **more)
        return image

    def dali(self, graph: Graph) -> None:
        """Left to the kernel `augment` on a GPU, with torchvision's pixels; DALI has other ones."""
        if not graph.augments:
            super().dali(graph)
        fill = np.atleast_1d(0.0 if self.fill is None else self.fill)
        if not ((fill >= 0) & (fill <= 255)).all():
            self.refuse("fills with levels of 0..255", self.fill)
        if self.inner() > MOST_CHAINS:
            self.refuse(f"mixes up to {MOST_CHAINS} chains", self.inner())
        graph.augment(self, self.stages)

    def stages(self, fold: Any, choices: NDArray[np.int32], weights: Any = None) -> NDArray[np.float32]:
        """What the kernel takes: float32 (n, chains, steps, WIDTH); of weights it makes the shares of a `Fold`."""
        count, chains, steps, _ = choices.shape
        rows, left = np.zeros((count, chains, max(1, steps), WIDTH), np.float32), fold.on  # one of no steps may flip
        while left.any():  # once, unless images differ in size
            one = left.argmax()
            here = left & (fold.h == fold.h[one]) & (fold.w == fold.w[one])
            which, strong, sign = np.moveaxis(choices[here], -1, 0)
            table = stage_table(self, int(fold.h[one]), int(fold.w[one]))
            rows[here, :, :steps] = table[which, strong, (sign < 0).astype(int)]
            left = left & ~here
        rows[:, :, 0, FLIPPED] = fold.turn_back()[:, None]
        if weights is not None:
            fold.arrays[SHARES] = np.where(fold.on[:, None], weights, np.eye(1, weights.shape[1], dtype=np.float32))
        return rows


def _affine(*, shift: tuple[float, float] = (0.0, 0.0), shear: tuple[float, float] = (0.0, 0.0)) -> tuple[Any, ...]:
    """Of the kernel: angle, translation, scale and shears."""
    return 0.0, list(shift), 1.0, [math.degrees(math.atan(by)) for by in shear]


@dataclass(frozen=True, slots=True)
class Operation:
    """A kernel of torchvision's, before "_image"; "" leaves an image as it is.

    strongest  how strong the strongest of a space is, on an image of that edge; None: all are one
    arguments  what the kernel takes of a strength with its sign
    how        what else it takes
    """

    kernel: str
    strongest: Callable[[Space, int], float] | None = None
    arguments: Callable[[float], tuple[Any, ...]] = lambda _: ()
    how: Mapping[str, Any] = field(default_factory=dict)


_CORNER = {"center": [0, 0]}
OPERATIONS = {
    "ShearX": Operation("affine", lambda space, _: space.shear, lambda by: _affine(shear=(by, 0.0)), _CORNER),
    "ShearY": Operation("affine", lambda space, _: space.shear, lambda by: _affine(shear=(0.0, by)), _CORNER),
    "TranslateX": Operation("affine", lambda space, edge: space.shift(edge), lambda by: _affine(shift=(int(by), 0.0))),
    "TranslateY": Operation("affine", lambda space, edge: space.shift(edge), lambda by: _affine(shift=(0.0, int(by)))),
    "Rotate": Operation("rotate", lambda space, _: space.turn, lambda by: (by,)),
    **{
        name: Operation(f"adjust_{kernel}", lambda space, _: space.colour, lambda by: (1.0 + by,))
        for name, kernel in zip(COLOURS, ("brightness", "saturation", "contrast", "sharpness"), strict=True)
    },
    "Posterize": Operation("posterize", lambda space, _: space.bits[1], lambda by: (int(by),)),
    "Solarize": Operation("solarize", lambda *_: 1.0, lambda by: (255 * by,)),
    **{name: Operation(name.lower()) for name in ("AutoContrast", "Equalize", "Invert")},
    "Identity": Operation(""),
}


@functools.lru_cache(4096)
def strengths(name: str, space: Space, bins: int, edge: int) -> tuple[float, ...]:
    """The values of an operation's strengths on an image of that `edge`, by torchvision's own calls of torch."""
    strongest = OPERATIONS[name].strongest
    most = 0.0 if strongest is None else strongest(space, edge)
    if name == "Posterize":
        return tuple((space.bits[0] - (torch.arange(bins) / ((bins - 1) / most))).round().int().tolist())
    first, last = (most, 0.0) if name == "Solarize" else (0.0, most)
    return tuple(torch.linspace(first, last, bins).tolist())


# What the kernel `augment` takes for a choice: the number of what it does, whether images are mirrored first (x, y),
# six numbers of an operation, and the levels of red, green and blue that come from outside of an image.


_LOOKED_UP = ("brightness", "contrast", "saturation", "sharpness", "posterize", "solarize", "autocontrast", "equalize")
STAGES = {name: k for k, name in enumerate(("", *_LOOKED_UP, "invert", "nearest", "bilinear", "filled"))}
WIDTH = 12
MOST_CHAINS = 8  # each takes memory of a batch of bytes on the GPU
FLIPPED, _NUMBERS, _FILL = slice(1, 3), slice(3, 9), slice(9, 12)  # where they stand


@functools.lru_cache(64)
def stage_table(op: Auto, height: int, width: int) -> NDArray[np.float32]:
    """Rows of the kernel, float32 (operations + 1, strengths, 2: + and -, WIDTH), on an image of that size.

    The last operation is none.
    """
    names = op.space.names
    table = np.zeros((len(names) + 1, op.grades, 2, WIDTH), np.float32)
    for n, name in enumerate(names):
        edge = {"TranslateX": width, "TranslateY": height}.get(name, 0)
        values = strengths(name, op.space, op.grades, edge)
        for k, sign in itertools.product(range(op.grades), (0, 1)):
            _fill_in(table[n, k, sign], op, name, values[k] * (1 - 2 * sign), (height, width))
    return table


def _fill_in(row: NDArray[np.float32], op: Auto, name: str, value: float, size: tuple[int, int]) -> None:
    """One row: operation `name`, of a strength with its sign."""
    kernel, numbers = OPERATIONS[name].kernel.removeprefix("adjust_"), row[_NUMBERS]
    if name in MOVES:
        kernel = op.interpolation if op.fill is None or op.interpolation == "nearest" else "filled"
        numbers[:] = _grid(name, value, *size).ravel()
        row[_FILL] = 0.0 if op.fill is None else op.fill
    elif name in COLOURS:
        numbers[:2] = 1.0 + value, 1.0 - (1.0 + value)
    elif name == "Posterize":
        numbers[0] = 255 << (8 - int(value)) & 255
    elif name == "Solarize":
        numbers[0] = 255 * value
    row[0] = STAGES[kernel]


def _grid(name: str, value: float, height: int, width: int) -> NDArray[np.float32]:
    """Where pixels come from: x and y of torch's grid, -1..1, by x, y and 1 from the middle, as torchvision has it."""
    from torchvision.transforms.v2.functional import _geometry

    known, edges = OPERATIONS[name], np.array([[0.5 * width], [0.5 * height]], np.float32)
    if name == "Rotate":
        move: tuple[Any, ...] = -(value % 360), [0.0, 0.0], 1.0, [0.0, 0.0]
    else:
        move = known.arguments(value)
    center = [-0.5 * width, -0.5 * height] if known.how else [0.0, 0.0]
    matrix = _geometry._get_inverse_affine_matrix(center, *move)
    grid: NDArray[np.float32] = np.array(matrix, np.float32).reshape(2, 3) / edges
    return grid


# AutoAugment: one of some policies, each of them two operations.


Part = tuple[str, float, int | None]  # operation, how likely it is, strength 0..9 where it has one
Policy = tuple[Part, Part]

_SPACE = Space((*SIGNED, *LEVELS, "Invert"), lambda edge: 150.0 / 331.0 * edge)


@dataclass(frozen=True, slots=True)
class AutoAugment(Auto):
    """One of `policies`, equally often: two operations, each with its own probability and strength."""

    policies: tuple[Policy, ...]
    interpolation: Turning = "nearest"
    fill: Background = None

    streams: ClassVar[int] = 2
    choices: ClassVar[Space] = _SPACE

    @classmethod
    def of(cls, transform: Any) -> Self:
        chosen = transform.policies if hasattr(transform, "policies") else transform._policies  # name in v1, in v2
        policies = tuple((_part(*first), _part(*second)) for first, second in chosen)
        return cls(policies, READ["Turning"](transform, "interpolation"), READ["Background"](transform, "fill"))

    def draw(self, d: Draws) -> Mapping[str, NDArray[Any]]:
        """Both parts of the policy that each sample takes: (n, 1, 2, 3)."""
        drawn, signs = d.u(), d.u(1)
        names = _SPACE.names
        table = np.array([[(names.index(name), p, k or 0) for name, p, k in policy] for policy in self.policies])
        mine = table[(drawn[0].astype(np.float64) * len(table)).astype(np.int64)]
        steps = []
        for k in range(2):
            which, p, strong = mine[:, k].T
            which, strong = which.astype(np.int64), strong.astype(np.int64)
            sign = self.signs(which, signs[k].astype(np.float64))
            steps.append(np.stack([np.where(drawn[1 + k] < p, which, -1), strong, sign], axis=1))
        return {"effect": np.stack(steps, axis=1)[:, None].astype(np.int32)}


def _part(name: str, p: float, strength: int | None) -> Part:
    return str(name), float(p), strength


# RandAugment: some operations one after the other, all of one strength.


_RAND_SPACE = Space(("Identity", *SIGNED, *LEVELS), lambda edge: 150.0 / 331.0 * edge)


@dataclass(frozen=True, slots=True)
class RandAugment(Auto):
    """`num_ops` operations one after the other, all of strength `magnitude` of `bins`."""

    num_ops: int = 2
    magnitude: int = 9
    bins: int = 31
    interpolation: Turning = "nearest"
    fill: Background = None

    choices: ClassVar[Space] = _RAND_SPACE
    rules: ClassVar[Mapping[str, Rule]] = {"num_ops": whole(0, 16), "bins": whole(2)}

    def agree(self) -> None:
        whole(0, self.bins - 1)("RandAugment", "magnitude", self.magnitude)

    def drawn(self) -> range:
        return range(self.num_ops)

    def draw(self, d: Draws) -> Mapping[str, NDArray[Any]]:
        every = [self.chosen(d.u(k), self.magnitude) for k in range(self.num_ops)]
        steps = np.stack(every, axis=1) if every else np.empty((len(d.ids), 0, 3), np.int64)
        return {"effect": steps[:, None].astype(np.int32)}


# TrivialAugmentWide: one operation, of any strength.


_TRIVIAL_SPACE = Space(("Identity", *SIGNED, *LEVELS), lambda _: 32.0, 0.99, 135.0, 0.99, (8, 6))


@dataclass(frozen=True, slots=True)
class TrivialAugmentWide(Auto):
    """One operation, of any of `bins` strengths."""

    bins: int = 31
    interpolation: Turning = "nearest"
    fill: Background = None

    choices: ClassVar[Space] = _TRIVIAL_SPACE
    rules: ClassVar[Mapping[str, Rule]] = {"bins": whole(2)}

    def draw(self, d: Draws) -> Mapping[str, NDArray[Any]]:
        return {"effect": self.chosen(d.u(), None)[:, None, None].astype(np.int32)}


# AugMix's weights of the image and of each chain: Dirichlet's distribution, from the sample's random numbers alone.


def mixture(op: Effect, alpha: float, d: Draws) -> NDArray[np.float32]:
    """Weights of the image and of each of its chains, from the op's random numbers: float32 (n, 1 + chains)."""
    parts = d.parts(op)
    own = d.n * STREAMS_PER_OP
    starts = [own, own + GAMMA_TRIES, *parts]
    drawn = d.later(start + k for start in starts for k in range(GAMMA_TRIES)).astype(np.float64) + 2.0**-25
    tries = drawn.reshape(len(starts), GAMMA_TRIES, 4, len(d.ids))
    logs = [log_gammas(alpha, each, each[0, 3]) for each in tries]
    image, _ = _dirichlet(logs[:2])
    shares = np.stack(_dirichlet(logs[2:]), axis=1)
    return np.concatenate([image[:, None], (1 - image)[:, None] * shares], axis=1)


def _dirichlet(logs: list[Floats]) -> list[NDArray[np.float32]]:
    """Gamma variates, given by their logarithms, divided by their sum; the last is 1 minus the others."""
    gammas = np.exp(np.maximum(np.stack(logs) - np.max(logs, axis=0), -700))
    shares = np.round(gammas / gammas.sum(axis=0) / STEP)[:-1] * STEP
    rest = np.maximum(1 - shares.sum(axis=0), 0)
    return [share.astype(np.float32) for share in (*shares, rest)]


# AugMix: an image mixed with versions of itself that went through chains of operations.


_MOST_STEPS = 8  # of a chain
_PART = Space((*MOVES, *LEVELS), lambda edge: edge / 3.0, bits=(4, 4))
_WHOLE = Space((*MOVES, *LEVELS, *COLOURS), lambda edge: edge / 3.0, bits=(4, 4))


@dataclass(frozen=True, slots=True)
class AugMix(Auto):
    """The image mixed with `width` chains of `depth` operations (1 to 3 where it is not positive).

    Weights are drawn by Dirichlet's distribution of `alpha`; without `all_ops` none changes colours.
    """

    severity: int = 3
    width: int = 3
    depth: int = -1
    alpha: float = 1.0
    all_ops: bool = True
    interpolation: Turning = "bilinear"
    fill: Background = None

    streams: ClassVar[int] = 0  # it draws its own numbers, since it needs more streams than an op has

    rules: ClassVar[Mapping[str, Rule]] = {
        "severity": whole(1, _BINS),  # so many of the weakest strengths are used
        "width": whole(1),
        "depth": whole(None, _MOST_STEPS),
        "alpha": above_zero,
    }
    names: ClassVar[tuple[str, ...]] = ("effect", "effect_weights")
    theirs: ClassVar[Mapping[str, str]] = {"width": "mixture_width", "depth": "chain_depth"}

    def inner(self) -> int:
        return self.width

    @property
    def space(self) -> Space:
        return _WHOLE if self.all_ops else _PART

    def draw(self, d: Draws) -> Mapping[str, NDArray[Any]]:
        """Each chain's steps draw from its streams 8 on; the fourth number of stream 8 is how many steps there are."""
        most = self.depth if self.depth > 0 else 3
        chains = []
        for first in d.parts(self):
            drawn = d.later(range(first + GAMMA_TRIES, first + GAMMA_TRIES + most))
            steps = np.stack([self.chosen(u, None, self.severity) for u in drawn], axis=1)
            if self.depth <= 0:
                count = 1 + (drawn[0, 3].astype(np.float64) * 3).astype(np.int64)
                steps[np.arange(most) >= count[:, None], 0] = -1
            chains.append(steps)
        weights = mixture(self, self.alpha, d)
        return {"effect": np.stack(chains, axis=1).astype(np.int32), "effect_weights": weights}

    def image(self, image: Any, row: Any, weights: Any = None) -> Any:
        """Image and chains added up by the weights (float32)."""
        batch, shares = image[None], torch.from_numpy(weights).to(image.device)
        mixed = shares[:1].view(1, 1, 1, 1) * batch
        for k, chain in enumerate(row.tolist()):
            mixed.add_(shares[1 + k].view(1, 1, 1, 1) * self.run(batch, chain))
        return mixed[0].to(image.dtype)
