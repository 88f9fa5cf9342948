"""timm's AutoAugment and its kind: its own functions by name, and a strength of 0..10 that means timm's."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from dali_feed.transforms.auto_augment import mixture
from dali_feed.transforms.colour import GAMMA_TRIES
from dali_feed.transforms.op import Draws, Effect, Floats, Ints, v2
from dali_feed.transforms.settings import check_uint8, probability, refuse


@dataclass(frozen=True, slots=True)
class TimmPart:
    """An operation with probability `p` and strength `magnitude`, cut off to 0..`most`.

    spread  standard deviation of a normal distribution about it; infinite: uniform from 0 to it; 0: always it
    """

    name: str
    p: float = 1.0
    magnitude: float = 10.0
    spread: float = 0.0
    most: float = 10.0

    def __post_init__(self) -> None:
        probability(self.name, "p", self.p)
        if self.name not in _VALUES:
            refuse("AutoAugment", "must name operations of timm", self.name)

    @classmethod
    def of(cls, one: Any) -> Self:
        most = float(one.magnitude_max or 10.0)
        return cls(str(one.name), float(one.prob), float(one.magnitude), max(float(one.magnitude_std), 0.0), most)


@dataclass(frozen=True, slots=True)
class PillowLook:
    """What the operations share: the colour outside an image, Pillow's filters (a random one is used), how far to move.

    shift: pixels, for TranslateX and Y; share: part of the edge, for TranslateXRel and YRel; both at strength 10.
    """

    fill: tuple[int, int, int] = (128, 128, 128)
    filters: tuple[int, ...] = (2, 3)
    shift: float = 250.0
    share: float = 0.45

    @classmethod
    def of(cls, parts: list[Any]) -> Self:
        """From the first of timm's operations; all others have the same settings."""
        if not parts:
            return cls()
        how, known = parts[0].kwargs, parts[0].hparams
        fill, filters = tuple(int(level) for level in how["fillcolor"]), how["resample"]
        several = tuple(map(int, filters)) if isinstance(filters, tuple | list) else (int(filters),)
        shift, share = float(known.get("translate_const", 250)), float(known.get("translate_pct", 0.45))
        return cls((fill[0], fill[1], fill[2]), several, shift, share)


# The table of operations: what timm's own functions take at a strength of 0..10 that means timm's. Those that draw a
# number of Python's own are called with ours.


Value = Callable[[float, float, float, PillowLook], float]  # of a part of full strength, a sign, a random number


def _signed(most: Callable[[PillowLook], float]) -> Value:
    return lambda part, sign, _, look: sign * part * most(look)


def _part(value: Callable[[float], float]) -> Value:
    return lambda part, *_: value(part)


_ENHANCED = ("Color", "Contrast", "Brightness", "Sharpness")
_VALUES: dict[str, Value | None] = {
    "Rotate": _signed(lambda _: 30.0),
    **dict.fromkeys(("ShearX", "ShearY"), _signed(lambda _: 0.3)),
    **dict.fromkeys(("TranslateX", "TranslateY"), _signed(lambda look: look.shift)),
    **dict.fromkeys(("TranslateXRel", "TranslateYRel"), _signed(lambda look: look.share)),
    **dict.fromkeys(_ENHANCED, _part(lambda part: part * 1.8 + 0.1)),
    **dict.fromkeys(
        (f"{name}Increasing" for name in _ENHANCED), lambda part, sign, *_: max(0.1, 1.0 + sign * (part * 0.9))
    ),
    "Desaturate": _part(lambda part: min(max(0.5 + 0.5 * part, 0.5), 1.0)),
    "Posterize": _part(lambda part: int(part * 4)),
    "PosterizeIncreasing": _part(lambda part: 4 - int(part * 4)),
    "PosterizeOriginal": _part(lambda part: int(part * 4) + 4),
    "Solarize": _part(lambda part: min(256, int(part * 256))),
    "SolarizeIncreasing": _part(lambda part: 256 - min(256, int(part * 256))),
    "SolarizeAdd": _part(lambda part: min(128, int(part * 110))),
    "GaussianBlur": _part(lambda part: min(max(0.1 + (2.0 - 0.1) * part, 0.1), 2.0)),
    "GaussianBlurRand": lambda part, _, u, __: 0.1 + (2.0 * min(max(part, 0.0), 1.0) - 0.1) * u,
    **dict.fromkeys(("AutoContrast", "Equalize", "Invert")),
}


# What timm's AutoAugment and its kind have in common: steps that each sample chooses, run by Pillow on one image.
#
# The choice is arithmetic on arrays; it depends on the samples' random numbers alone.


_WORDS = 2  # numbers of a step: which, whether, strength twice, sign, filter, one more, how many steps


class Pillow(Effect):
    """Operations of Pillow as rows (float64: chains, steps, 5) name them; see `rows`."""

    __slots__ = ()
    moves: ClassVar[bool | None] = None
    look: PillowLook
    parts: tuple[TimmPart, ...]

    @property
    def every(self) -> tuple[TimmPart, ...]:
        """All parts; a step names one by its place in this tuple."""
        return self.parts

    def hold(self, count: int, most: int) -> None:
        """Raise TransformError where there are no parts, or more steps than `most`."""
        if not self.every:
            refuse(self.title, "needs at least one operation", self.every)
        if not 0 <= count <= most:
            refuse(self.title, f"takes 0 to {most} steps", count)

    def chosen(self, d: Draws) -> tuple[Ints, Floats]:
        """Each step's part, -1 for none, (chains, steps, n), and its uniforms (chains, steps, 8, n)."""
        raise NotImplementedError

    def check(self, dtype: str) -> None:
        check_uint8(self.title, dtype)

    def draw(self, d: Draws) -> Mapping[str, NDArray[Any]]:
        """Per step the part (-1: none), strength, sign, filter, a uniform number: float64 (n, chains, steps, 5)."""
        which, drawn = self.chosen(d)
        p, magnitude, spread, most = (
            np.array([getattr(one, name) for one in self.every]) for name in TimmPart.__slots__[1:]
        )
        at = np.maximum(which, 0)
        none = (which < 0) | ((p[at] < 1) & (drawn[..., 1, :] > p[at]))
        radius = np.sqrt(-2 * np.log(np.maximum(1 - drawn[..., 2, :], 2.0**-25)))
        normal = radius * np.cos(2 * math.pi * drawn[..., 3, :])  # by Box and Muller
        finite = np.where(np.isfinite(spread), spread, 0.0)[at]
        strong = np.where(np.isinf(spread[at]), drawn[..., 2, :] * magnitude[at], magnitude[at] + finite * normal)
        strong = np.clip(strong, 0.0, most[at])
        sign = np.where(drawn[..., 4, :] > 0.5, -1.0, 1.0)
        number = np.floor(drawn[..., 5, :] * len(self.look.filters))
        steps = np.stack(
            [np.where(none, -1, which).astype(np.float64), strong, sign, number, drawn[..., 6, :]], axis=-1
        )
        return {"effect": np.moveaxis(steps, 2, 0)}  # chains, steps, n -> n first

    def image(self, image: Any, row: Any, weights: Any = None) -> Any:
        """One chain of operations; with `weights` several are mixed."""
        del weights
        chain = row.tolist()[0]
        if not any(which >= 0 for which, *_ in chain):
            return image
        changed = chained(v2.functional.to_pil_image(image.contiguous()), chain, self.every, self.look)
        return v2.functional.pil_to_tensor(changed).to(image.device)


def chained(image: Any, chain: list[list[float]], parts: tuple[TimmPart, ...], look: PillowLook) -> Any:
    """Pillow's image after a chain of steps."""
    from timm.data import auto_augment as timm

    def posterize(image: Any, bits: int, **_: Any) -> Any:
        if bits < 1:  # which Pillow refuses
            return image.point([0] * (256 * len(image.getbands())))
        return timm.posterize(image, bits)

    bits = dict.fromkeys(("Posterize", "PosterizeIncreasing", "PosterizeOriginal"), posterize)
    functions = {**timm.NAME_TO_OP, **bits, "GaussianBlurRand": timm.gaussian_blur}
    fill = look.fill if image.mode == "RGB" else look.fill[0]
    for which, strong, sign, number, more in chain:
        if which >= 0:
            name = parts[int(which)].name
            value, how = _VALUES[name], {"resample": look.filters[int(number)], "fillcolor": fill}
            image = functions[name](image, *() if value is None else (value(strong / 10.0, sign, more, look),), **how)
    return image


def drawn_steps(d: Draws, starts: list[int], steps: int) -> Floats:
    """Eight uniforms of each step of chains whose streams start there: (len(starts), steps, 8, n)."""
    streams = [start + _WORDS * step + k for start in starts for step in range(steps) for k in range(_WORDS)]
    return d.later(streams).astype(np.float64).reshape(len(starts), steps, 4 * _WORDS, len(d.ids))


# TimmAutoAugment, timm's AutoAugment: one of some policies, each some operations of Pillow.


@dataclass(frozen=True, slots=True)
class TimmAutoAugment(Pillow):
    """One of `policies`, equally often, each some parts one after the other."""

    policies: tuple[tuple[TimmPart, ...], ...]
    look: PillowLook = PillowLook()

    called: ClassVar[str] = "AutoAugment"

    def agree(self) -> None:
        self.hold(max(map(len, self.policies), default=0), 8)

    @classmethod
    def of(cls, transform: Any) -> Self:
        parts = [part for policy in transform.policy for part in policy]
        return cls(tuple(tuple(map(TimmPart.of, policy)) for policy in transform.policy), PillowLook.of(parts))

    @property
    def every(self) -> tuple[TimmPart, ...]:
        return sum(self.policies, ())

    def inner(self) -> int:
        return 1

    def chosen(self, d: Draws) -> tuple[Ints, Floats]:
        longest = max(map(len, self.policies))
        places, table = iter(range(len(self.every))), np.full((len(self.policies), longest), -1)
        for row, policy in zip(table, self.policies, strict=True):
            row[: len(policy)] = [next(places) for _ in policy]
        mine = (d.u()[0].astype(np.float64) * len(table)).astype(np.int64)
        return table[mine].T[None], drawn_steps(d, d.parts(self), longest)


# TimmRandAugment, timm's RandAugment: some operations of Pillow one after the other.


@dataclass(frozen=True, slots=True)
class TimmRandAugment(Pillow):
    """`layers` of `parts`, one after the other; with `weights` none of them twice."""

    parts: tuple[TimmPart, ...]
    layers: int = 2
    weights: tuple[float, ...] = ()
    look: PillowLook = PillowLook()

    called: ClassVar[str] = "RandAugment"
    streams: ClassVar[int] = 0  # each layer has streams of its own

    def agree(self) -> None:
        self.hold(self.layers, min(32, len(self.parts)) if self.weights else 32)
        if self.weights and sum(weight > 0 for weight in self.weights) < self.layers:
            refuse("RandAugment", "needs as many weights above 0 as layers", self.weights)

    @classmethod
    def of(cls, transform: Any) -> Self:
        t = transform
        weights = () if t.choice_weights is None else tuple(map(float, t.choice_weights))
        return cls(tuple(map(TimmPart.of, t.ops)), int(t.num_layers), weights, PillowLook.of(t.ops))

    def inner(self) -> int:
        return self.layers

    def chosen(self, d: Draws) -> tuple[Ints, Floats]:
        drawn = np.moveaxis(drawn_steps(d, d.parts(self), 1), 1, 0)  # one chain of all layers
        if not self.weights:
            return (drawn[:, :, 0] * len(self.parts)).astype(np.int64), drawn
        left = np.tile(np.array(self.weights, np.float64), (len(d.ids), 1))
        which = np.empty(drawn.shape[:2] + drawn.shape[3:], np.int64)
        for layer in range(self.layers):
            edges = np.cumsum(left, axis=1) / left.sum(axis=1, keepdims=True)
            last = len(self.parts) - 1 - np.argmax(left[:, ::-1] > 0, axis=1)  # the last bound may be rounded down
            which[0, layer] = np.minimum((edges <= drawn[0, layer, 0][:, None]).sum(axis=1), last)
            left[np.arange(len(left)), which[0, layer]] = 0.0
        return which, drawn


# TimmAugMix, timm's AugMix: an image mixed with versions of itself that went through chains of Pillow's operations.


_DEEPEST = 4  # steps of a chain


@dataclass(frozen=True, slots=True)
class TimmAugMix(Pillow):
    """The image mixed with `width` chains of `depth` parts (1 to 3 where it is not positive), weighed by Dirichlet's.

    `blended`: chains are mixed into the image one by one, with rounding after each; else all at once.
    """

    parts: tuple[TimmPart, ...]
    alpha: float = 1.0
    width: int = 3
    depth: int = -1
    blended: bool = False
    look: PillowLook = PillowLook()

    called: ClassVar[str] = "AugMix"
    names: ClassVar[tuple[str, ...]] = ("effect", "effect_weights")
    streams: ClassVar[int] = 0  # it draws its own numbers, since it needs more streams than an op has

    def agree(self) -> None:
        self.hold(max(self.depth, 0), _DEEPEST)
        if not 1 <= self.width <= 32 or not self.alpha > 0:
            refuse("AugMix", "takes 1 to 32 chains and an alpha above 0", (self.width, self.alpha))

    @classmethod
    def of(cls, transform: Any) -> Self:
        t = transform
        parts = tuple(map(TimmPart.of, t.ops))
        return cls(parts, float(t.alpha), int(t.width), int(t.depth), bool(t.blended), PillowLook.of(t.ops))

    def inner(self) -> int:
        return self.width

    def chosen(self, d: Draws) -> tuple[Ints, Floats]:
        most = self.depth if self.depth > 0 else 3
        drawn = drawn_steps(d, [start + GAMMA_TRIES for start in d.parts(self)], most)
        which = (drawn[:, :, 0] * len(self.parts)).astype(np.int64)
        if self.depth <= 0:
            count = 1 + (drawn[:, 0, 7] * 3).astype(np.int64)
            which[np.arange(most)[None, :, None] >= count[:, None]] = -1
        return which, drawn

    def draw(self, d: Draws) -> Mapping[str, NDArray[Any]]:
        return {**Pillow.draw(self, d), "effect_weights": mixture(self, self.alpha, d)}

    def image(self, image: Any, row: Any, weights: Any = None) -> Any:
        """Image and chains mixed by the weights (float32)."""
        plain = v2.functional.to_pil_image(image.contiguous())
        chains = [chained(plain, chain, self.parts, self.look) for chain in row.tolist()]
        share, *rest = weights.tolist()
        amount = 1.0 - share
        shares = [weight / amount if amount else 0.0 for weight in rest]
        mix = _blended if self.blended else _mixed
        return v2.functional.pil_to_tensor(mix(plain, chains, shares, amount)).to(image.device)


def _mixed(image: Any, chains: list[Any], shares: list[float], amount: float) -> Any:
    from PIL import Image

    total = np.zeros((image.height, image.width, len(image.getbands())), np.float32)
    for each, share in zip(chains, shares, strict=True):
        total += np.float32(share) * np.asarray(each, np.float32).reshape(total.shape)
    levels = np.clip(total, 0, 255).astype(np.uint8)
    return Image.blend(image, Image.fromarray(levels if levels.shape[2] == 3 else levels[..., 0]), amount)


def _blended(image: Any, chains: list[Any], shares: list[float], amount: float) -> Any:
    """Mix the chains in one by one, with the shares that give the same weights in the end."""
    from PIL import Image

    left, parts = 1.0, []
    for share in reversed(shares):
        parts.append(share * amount / left if left > 0 else 0.0)
        left *= 1.0 - parts[-1]
    for each, part in zip(chains, reversed(parts), strict=True):
        image = Image.blend(image, each, part)
    return image
