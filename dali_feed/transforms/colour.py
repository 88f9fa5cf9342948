"""Colour as a chain of per-sample steps on RGB values 0..255, and the step of a DALI graph that runs it.

A step is first out = clamp(M @ rgb + g * gray_mean + t - 0.5), where gray_mean is the mean gray value of the
image as it enters the step: brightness, contrast and saturation are of this form, and the half turns rounding into
cutting off, as torchvision does on uint8. Then, if any adjustment is a hue, the hue is turned by h of the full
circle in HSV. A part that a step does not use leaves the pixels as they are (M the identity, g, t and h zero), so that
every sample can go through its adjustments in an order of its own.

After these twelve numbers come two more: the kind of the step, one of KINDS, and its factor. A DALI graph uses the
twelve; the kernel `jitter` uses the two, and does the step as torchvision does it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from dali_feed.transforms.keys import numbered
from dali_feed.transforms.op import (
    Apply,
    Effect,
    Given,
    Graph,
    InGraph,
    Ints,
    OpRun,
    Place,
    SizedDraws,
)
from dali_feed.transforms.settings import Range, Rule, fail, probability, refuse, span

__all__ = [
    "GAMMA_TRIES",
    "KIND",
    "KINDS",
    "MAX_STEPS",
    "STEP",
    "WIDTH",
    "ColorJitter",
    "Colour",
    "Grayscale",
    "RandomChannelPermutation",
    "RandomGrayscale",
    "RandomPhotometricDistort",
    "log_gammas",
    "permutations",
]


Floats = NDArray[np.float32]

GRAY = np.array([0.2989, 0.587, 0.114], np.float32)
KINDS = {"nothing": 0, "brightness": 1, "contrast": 2, "saturation": 3, "hue": 4, "gray": 5, "gray_rounded": 6}
WIDTH = 14  # numbers of a step
KIND = slice(12, 14)  # where kind and factor stand
MAX_STEPS = 64  # how many steps the kernel takes

# A uint8 result is cut off, not rounded, in torchvision; DALI rounds. Just under one half makes them agree.
_CUT = -0.4995
_CUT_HUE = 255.999 / 255  # and so it goes from 0..1 back to uint8 after a turn of the hue
_CHANNELS = np.array([[[5, 3, 1]]], np.float32)  # places of red, green and blue on the circle of hues


def adjustment(name: str, factor: Floats) -> Floats:
    """One adjustment as float32 (n, 14): M row by row, g, t, h, kind, factor."""
    out = np.zeros((len(factor), WIDTH), np.float32)
    eye, f = np.eye(3, dtype=np.float32), factor[:, None, None]
    matrix = f * eye if name in ("brightness", "contrast") else np.broadcast_to(eye, (len(factor), 3, 3))
    if name == "saturation":
        matrix = f * eye + (1 - f) * GRAY
    out[:, :9] = matrix.reshape(-1, 9)
    if name == "contrast":
        out[:, 9] = 1 - factor
    if name in ("contrast", "saturation"):
        out[:, 10] = (factor - 1) / 2  # torchvision blends with gray values that were cut off: half a level less
    if name == "hue":
        out[:, 11] = factor
    out[:, 12], out[:, 13] = KINDS[name], factor
    return out


def gray_steps(count: int, *, cut: bool) -> Floats:
    """To gray, float32 (count, 1, 14): `cut` off to a whole level, as torchvision does on uint8, or rounded to one."""
    out = np.zeros((count, 1, WIDTH), np.float32)
    out[..., :9] = np.tile(GRAY, 3)
    out[..., 10] = 0 if cut else 0.5
    out[..., 12] = KINDS["gray" if cut else "gray_rounded"]
    return out


def only(on: NDArray[np.bool_], steps: Floats) -> Floats:
    """The steps for the chosen samples; the steps of all others change nothing."""
    nothing = np.zeros(WIDTH, np.float32)
    nothing[:9] = np.eye(3, dtype=np.float32).ravel()
    return np.where(on[:, None, None], steps, nothing)


@dataclass(frozen=True, slots=True)
class Colour:
    """`steps` colour steps, colour{k} (float32: steps, 14), with or without a mean and a hue."""

    k: int
    steps: int
    contrast: bool
    hue: bool

    name: ClassVar[str] = "colour"

    def on(self, image: Any, given: Given, *, gpu: bool) -> Any:
        """One after the other."""
        from nvidia.dali import fn, types

        steps = given(numbered("colour", self.k), "FLOAT", 2)
        for n in range(self.steps):
            matrix = fn.reshape(steps[n, 0:9], shape=[3, 3])
            shift = steps[n, 10] + _CUT
            if not self.contrast:
                image = _moved(image, matrix, shift, types.UINT8)
            elif gpu:
                image = _contrast_apart(image, matrix, shift, steps[n, 9].gpu(), device="gpu")
            else:
                image = _moved(image, matrix, shift + steps[n, 9] * _gray_mean(image), types.UINT8)
            if self.hue:
                image = _turn_hue(image, 6 * steps[n, 11], device="gpu" if gpu else "cpu")
        return fn.reshape(image, layout="HWC")


def _moved(image: Any, matrix: Any, shift: Any, dtype: Any) -> Any:
    from nvidia.dali import fn

    return fn.coord_transform(image, M=matrix, T=fn.stack(*[shift] * 3), dtype=dtype)


def _gray_mean(image: Any, *, device: str = "cpu") -> Any:
    from nvidia.dali import fn, types

    mean = fn.reductions.mean(image, axes=[0, 1])
    return fn.reductions.sum(mean * types.Constant(GRAY, device=device), axes=[0])


def _contrast_apart(image: Any, matrix: Any, shift: Any, gain: Any, *, device: str) -> Any:
    """The step with its mean added behind the matrix.

    As an argument of the matrix it would be copied to the host, and DALI's thread would wait for the GPU.
    """
    from nvidia.dali import fn, types

    moved = _moved(image, matrix, shift, types.FLOAT)
    return fn.cast(moved + gain * _gray_mean(image, device=device), dtype=types.UINT8)


def _turn_hue(image: Any, sixths: Any, *, device: str = "cpu") -> Any:
    """Turn the hue by so many sixths of the circle, in HSV.

    Value v and chroma c stay; with the hue in sixths, channel n of red 5, green 3, blue 1 becomes
    v - c * clamp(min(k, 4 - k), 0, 1), k = (n + hue) mod 6 (Alvy Ray Smith's hexcone without its cases).
    """
    from nvidia.dali import fn, math, types

    # Given as lists: numbers in their place would be constants on the GPU, which DALI copies back in every batch.
    r, g, b = (fn.cast(fn.slice(image, start=[n], shape=[1], axes=[2]), dtype=types.FLOAT) for n in range(3))
    v = math.max(r, math.max(g, b))
    c = v - math.min(r, math.min(g, b))
    is_r = v == r
    is_g = (v == g) & (v != r)
    is_b = (v != r) & (v != g)
    hue = sixths + (is_r * (g - b) + is_g * (b - r) + is_b * (r - g)) / math.max(c, 1.0) + 2 * is_g + 4 * is_b
    k = types.Constant(_CHANNELS, device=device) + hue
    k = k - 6 * math.floor(k / 6)
    level = v - c * math.clamp(math.min(k, 4 - k), 0.0, 1.0)
    return fn.cast(math.floor(level * _CUT_HUE), dtype=types.UINT8)


# ColorJitter: brightness, contrast, saturation and hue by random factors, in random order.


_FACTORS = ("brightness", "contrast", "saturation", "hue")  # in the order in which torchvision draws them


@dataclass(frozen=True, slots=True)
class ColorJitter(Effect):
    """Brightness, contrast, saturation and hue by random factors, in random order; None leaves one out."""

    brightness: Range | None = None
    contrast: Range | None = None
    saturation: Range | None = None
    hue: Range | None = None

    array: ClassVar[str] = "jitter"
    extras: ClassVar[tuple[str, ...]] = ("_order",)
    rules: ClassVar[Mapping[str, Rule]] = dict.fromkeys(_FACTORS[:3], span(0.0, math.inf)) | {"hue": span(-0.5, 0.5)}

    @property
    def names(self) -> tuple[str, ...]:
        """The factors that are set, in torchvision's numbering."""
        return tuple(name for name in _FACTORS if getattr(self, name) is not None)

    def drawn(self) -> range:
        return range(2 if self.names else 0)

    def rows(self, draws: SizedDraws, first: int) -> Floats:
        """Factors of the k adjustments that are set: float32 (n, k)."""
        ranges = [getattr(self, name) for name in self.names]
        if not ranges:
            return np.empty((len(draws.ids), 0), np.float32)
        factors = draws.draw(first)
        drawn = [(low + (high - low) * factors[k]).astype(np.float32) for k, (low, high) in enumerate(ranges)]
        return np.stack(drawn, axis=1)

    def more(self, draws: SizedDraws, first: int) -> dict[str, NDArray[Any]]:
        """The order of these, int64 (n, k)."""
        count = len(self.names)
        uniform = draws.draw(first + 1)[:count] if count else np.empty((0, len(draws.ids)))
        return {"_order": np.argsort(uniform, axis=0, kind="stable").T}

    def image(self, image: Any, row: Any, more: Any) -> Any:
        """The adjustments in their order."""
        from torchvision.transforms.v2 import functional

        names, factors = self.names, row.tolist()
        for k in more[0].tolist():
            image = getattr(functional, f"adjust_{names[k]}_image")(image, factors[k])
        return image

    def in_graph(self, graph: Graph, first: int) -> None:
        names = self.names
        if not names:
            return

        def steps(run: OpRun) -> Floats:
            """The colour steps of every sample in its own order, float32 (n, steps, 14)."""
            drawn, order = self.rows(run, first), self.more(run, first)["_order"]
            every = np.stack([adjustment(name, drawn[:, k]) for k, name in enumerate(names)], axis=1)
            return only(run.on, np.take_along_axis(every, order[:, :, None], axis=1))

        graph.step(Colour(graph.k + 1, len(names), "contrast" in names, "hue" in names), steps)


# RandomChannelPermutation: the channels in another order; and how an order is drawn.


_ORDERS = np.array(list(itertools.permutations(range(3))), np.int64)


def permutations(drawn: NDArray[np.float32]) -> Ints:
    """Of each sample one of the six orders of three channels, equally often, from uniforms (n,): int64 (n, 3).

    Channel k of what comes out is channel order[k] of what goes in.
    """
    chosen: Ints = _ORDERS[(drawn.astype(np.float64) * len(_ORDERS)).astype(np.int64)]
    return chosen


def permuted(image: Any, order: Any) -> Any:
    """An image with its channels in `order`, int64 (3,), by torchvision's own function; one channel has no other."""
    from torchvision.transforms.v2 import functional

    return functional.permute_channels_image(image, order.tolist()) if image.shape[-3] == len(order) else image


@dataclass(frozen=True, slots=True)
class RandomChannelPermutation(Effect):
    """The channels in a random order, each of the six equally often."""

    def rows(self, draws: SizedDraws, first: int) -> Ints:
        return permutations(draws.draw(first)[0])

    def image(self, image: Any, row: Any, more: Any) -> Any:
        return permuted(image, row)

    def graph(self, place: Place, k: int, first: int) -> InGraph:
        """By a matrix of zeros and ones, which is exact; the identity where it is not for an image."""

        def build(image: Any, matrix: Any) -> Any:
            from nvidia.dali import fn, types

            return fn.reshape(fn.coord_transform(image, M=matrix, dtype=types.UINT8), layout="HWC")

        def matrices(run: OpRun) -> NDArray[np.float32]:
            orders = np.where(run.on[:, None], self.rows(run, first), np.arange(3))
            return np.eye(3, dtype=np.float32)[orders]

        return Apply(k, "channels", "FLOAT", 2, build), matrices


# RandomPhotometricDistort: brightness, contrast, saturation, hue and the order of channels, each at random.
#
# As SSD does it (Liu and others: SSD: Single Shot MultiBox Detector, ECCV 2016), in torchvision's order: contrast comes
# behind brightness or behind hue.


_TURNS = np.array([0, 1, 2, 3, 1])  # and in which they come, as numbers of these; contrast has two places
_FIRST, _LAST = 1, 4  # where those are


@dataclass(frozen=True, slots=True)
class RandomPhotometricDistort(Effect):
    """Each of the four factors, and the order of the channels, with probability `p`."""

    brightness: Range = (0.875, 1.125)
    contrast: Range = (0.5, 1.5)
    saturation: Range = (0.5, 1.5)
    hue: Range = (-0.05, 0.05)
    p: float = 0.5

    extras: ClassVar[tuple[str, ...]] = ("_turns", "_channels")
    streams: ClassVar[int] = 3  # whether each factor comes, the factors, and what is of contrast and channels

    rules: ClassVar[Mapping[str, Rule]] = {**ColorJitter.rules, "p": probability}

    def agree(self) -> None:
        for name in _FACTORS:
            if math.isinf(getattr(self, name)[1]):
                refuse(self.title, f"{name} must be two finite numbers", getattr(self, name))

    def rows(self, draws: SizedDraws, first: int) -> NDArray[np.float32]:
        """The four factors, whether they come or not: (n, 4)."""
        drawn = draws.draw(first + 1).astype(np.float64)  # in double precision none is beyond its range
        ranges = [getattr(self, name) for name in _FACTORS]
        factors = [low + (high - low) * drawn[k] for k, (low, high) in enumerate(ranges)]
        return np.stack(factors, axis=1).astype(np.float32)

    def more(self, draws: SizedDraws, first: int) -> dict[str, NDArray[Any]]:
        """Which factors come, (n, 5), -1 for none; and the order of the channels, (n, 3)."""
        which, (before, swaps, order, _) = draws.draw(first) < self.p, draws.draw(first + 2)
        comes = which[_TURNS]
        comes[_FIRST] &= before < 0.5
        comes[_LAST] &= before >= 0.5
        return {
            "_turns": np.where(comes.T, _TURNS, -1),
            "_channels": np.where((swaps < self.p)[:, None], permutations(order), np.arange(3)),
        }

    def image(self, image: Any, row: Any, more: Any) -> Any:
        """The factors that come, in their order, and then that of the channels."""
        from torchvision.transforms.v2 import functional

        (turns, channels), factors = more, row.tolist()
        for k in turns.tolist():
            if k >= 0:
                image = getattr(functional, f"adjust_{_FACTORS[k]}_image")(image, factors[k])
        return permuted(image, channels)


# Grayscale and RandomGrayscale.


class Gray(Effect):
    """To gray, the images that it is applied to."""

    __slots__ = ()

    def image(self, image: Any, row: Any, more: Any) -> Any:
        from torchvision.transforms.v2 import functional

        return functional.rgb_to_grayscale_image(image, getattr(self, "channels", 3)) if row else image

    def graph(self, place: Place, k: int, first: int) -> InGraph:
        def steps(run: OpRun) -> NDArray[np.float32]:
            return only(run.on & self.on(run, first), gray_steps(len(run.ids), cut=place.dtype == "uint8"))

        return Colour(k, 1, contrast=False, hue=False), steps


@dataclass(frozen=True, slots=True)
class Grayscale(Gray):
    """Gray, in three channels of the same or in one."""

    channels: Literal[1, 3] = 3

    streams: ClassVar[int] = 0

    @classmethod
    def of(cls, transform: Any) -> Grayscale:
        if transform.num_output_channels != 3:
            rule = (
                "num_output_channels must be 3, or 1 in a DataLoader and outside of RandomApply and similar transforms"
            )
            raise fail(transform, rule, transform.num_output_channels)
        return cls()

    def channels_behind(self) -> int | None:
        return self.channels


@dataclass(frozen=True, slots=True)
class RandomGrayscale(Gray):
    """Gray, as Grayscale."""

    p: float = 0.1

    rules: ClassVar[Mapping[str, Rule]] = {"p": probability}


# Gamma variates from uniform numbers; the weights of mixed samples and of AugMix's chains are made of them.


GAMMA_TRIES = 8  # each is taken with a probability above 0.95
STEP = 2.0**-20  # weights are multiples of it, so that machines whose log and cos differ in the last bits agree


def log_gammas(alpha: float, tries: NDArray[np.float64], boost: NDArray[np.float64]) -> NDArray[np.float64]:
    """Logarithms of Gamma(alpha) variates, of uniforms (tries, 4, n) and (n,).

    Marsaglia and Tsang, A Simple Method for Generating Gamma Variables, 2000, for alpha + 1, and their boost down.
    """
    d = alpha + 1 - 1 / 3
    normal = np.sqrt(-2 * np.log(tries[:, 0])) * np.cos(2 * np.pi * tries[:, 1])
    v = np.maximum(1 + normal / np.sqrt(9 * d), 1e-9) ** 3
    taken = np.log(tries[:, 2]) < normal**2 / 2 + d - d * v + d * np.log(v)
    taken[-1] = True
    first = np.argmax(taken, axis=0)
    v = np.take_along_axis(v, first[None], axis=0)[0]
    logs: NDArray[np.float64] = np.log(d * v) + np.log(boost) / alpha
    return logs
