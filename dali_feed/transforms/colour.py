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

from dali_feed.transforms.op import Draws, Effect, Graph, Ints, fn, types, v2
from dali_feed.transforms.settings import Probability, Range, Rule, refuse, span

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


def add_colours(graph: Graph, count: int, *, contrast: bool, hue: bool, fold: Any) -> None:
    """Add `count` colour steps to a graph, with or without a mean and a hue, as `fold` gives them: (n, count, 14)."""

    def build(image: Any, steps: Any) -> Any:
        for n in range(count):
            matrix = fn.reshape(steps[n, 0:9], shape=[3, 3])
            shift = steps[n, 10] + _CUT
            if not contrast:
                image = _moved(image, matrix, shift, types.UINT8)
            elif graph.on_gpu:
                image = _contrast_apart(image, matrix, shift, steps[n, 9].gpu(), device="gpu")
            else:
                image = _moved(image, matrix, shift + steps[n, 9] * _gray_mean(image), types.UINT8)
            if hue:
                image = _turn_hue(image, 6 * steps[n, 11], device="gpu" if graph.on_gpu else "cpu")
        return fn.reshape(image, layout="HWC")

    graph.step("colour", "FLOAT", 2, build, fold, colours=count)


def _moved(image: Any, matrix: Any, shift: Any, dtype: Any) -> Any:
    return fn.coord_transform(image, M=matrix, T=fn.stack(*[shift] * 3), dtype=dtype)


def _gray_mean(image: Any, *, device: str = "cpu") -> Any:
    mean = fn.reductions.mean(image, axes=[0, 1])
    return fn.reductions.sum(mean * types.Constant(GRAY, device=device), axes=[0])


def _contrast_apart(image: Any, matrix: Any, shift: Any, gain: Any, *, device: str) -> Any:
    """The step with its mean added behind the matrix.

    As an argument of the matrix it would be copied to the host, and DALI's thread would wait for the GPU.
    """
    moved = _moved(image, matrix, shift, types.FLOAT)
    return fn.cast(moved + gain * _gray_mean(image, device=device), dtype=types.UINT8)


def _turn_hue(image: Any, sixths: Any, *, device: str = "cpu") -> Any:
    """Turn the hue by so many sixths of the circle, in HSV.

    Value v and chroma c stay; with the hue in sixths, channel n of red 5, green 3, blue 1 becomes
    v - c * clamp(min(k, 4 - k), 0, 1), k = (n + hue) mod 6 (Alvy Ray Smith's hexcone without its cases).
    """
    from nvidia.dali import math

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

    names: ClassVar[tuple[str, ...]] = ("jitter", "jitter_order")
    rules: ClassVar[Mapping[str, Rule]] = dict.fromkeys(_FACTORS[:3], span(0.0, math.inf)) | {"hue": span(-0.5, 0.5)}

    @property
    def settings(self) -> tuple[str, ...]:
        """The factors that are set, in torchvision's numbering."""
        return tuple(name for name in _FACTORS if getattr(self, name) is not None)

    def drawn(self) -> range:
        return range(2 if self.settings else 0)

    def draw(self, d: Draws) -> Mapping[str, NDArray[Any]]:
        """Factors of the k adjustments that are set, float32 (n, k), and the order of these, int64 (n, k)."""
        ranges = [getattr(self, name) for name in self.settings]
        if not ranges:
            none = np.empty((len(d.ids), 0))
            return {"jitter": none.astype(np.float32), "jitter_order": none.astype(np.int64)}
        factors = [(low + (high - low) * d.u()[k]).astype(np.float32) for k, (low, high) in enumerate(ranges)]
        order = np.argsort(d.u(1)[: len(ranges)], axis=0, kind="stable").T
        return {"jitter": np.stack(factors, axis=1), "jitter_order": order}

    def image(self, image: Any, factors: Any, order: Any) -> Any:
        """The adjustments in their order."""
        settings, values = self.settings, factors.tolist()
        for k in order.tolist():
            image = getattr(v2.functional, f"adjust_{settings[k]}_image")(image, values[k])
        return image

    def dali(self, graph: Graph) -> None:
        """The colour steps of every sample in its own order."""
        settings = self.settings
        if not settings:
            return

        def steps(fold: Any, factors: Floats, order: Ints) -> Floats:
            every = np.stack([adjustment(name, factors[:, k]) for k, name in enumerate(settings)], axis=1)
            return only(fold.on, np.take_along_axis(every, order[:, :, None], axis=1))

        add_colours(graph, len(settings), contrast="contrast" in settings, hue="hue" in settings, fold=steps)


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
    return v2.functional.permute_channels_image(image, order.tolist()) if image.shape[-3] == len(order) else image


@dataclass(frozen=True, slots=True)
class RandomChannelPermutation(Effect):
    """The channels in a random order, each of the six equally often."""

    def draw(self, d: Draws) -> Mapping[str, NDArray[Any]]:
        return {"effect": permutations(d.u()[0])}

    def image(self, image: Any, order: Any) -> Any:
        return permuted(image, order)

    def dali(self, graph: Graph) -> None:
        """By a matrix of zeros and ones, which is exact; the identity where it is not for an image."""

        def build(image: Any, matrix: Any) -> Any:
            return fn.reshape(fn.coord_transform(image, M=matrix, dtype=types.UINT8), layout="HWC")

        def matrices(fold: Any, orders: Ints) -> NDArray[np.float32]:
            return np.eye(3, dtype=np.float32)[np.where(fold.on[:, None], orders, np.arange(3))]

        graph.step("channels", "FLOAT", 2, build, matrices)


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
    p: Probability = 0.5

    names: ClassVar[tuple[str, ...]] = ("effect", "effect_turns", "effect_channels")
    streams: ClassVar[int] = 3  # whether each factor comes, the factors, and what is of contrast and channels

    rules: ClassVar[Mapping[str, Rule]] = ColorJitter.rules

    def agree(self) -> None:
        for name in _FACTORS:
            if math.isinf(getattr(self, name)[1]):
                refuse(self.title, f"{name} must be two finite numbers", getattr(self, name))

    def draw(self, d: Draws) -> Mapping[str, NDArray[Any]]:
        """The four factors, whether they come or not; which of them come, -1 for none; the order of the channels."""
        which, (before, swaps, order, _) = d.u() < self.p, d.u(2)
        u = d.u(1).astype(np.float64)  # in double precision none is beyond its range
        ranges = [getattr(self, name) for name in _FACTORS]
        factors = [low + (high - low) * u[k] for k, (low, high) in enumerate(ranges)]
        comes = which[_TURNS]
        comes[_FIRST] &= before < 0.5
        comes[_LAST] &= before >= 0.5
        return {
            "effect": np.stack(factors, axis=1).astype(np.float32),
            "effect_turns": np.where(comes.T, _TURNS, -1),
            "effect_channels": np.where((swaps < self.p)[:, None], permutations(order), np.arange(3)),
        }

    def image(self, image: Any, factors: Any, turns: Any, channels: Any) -> Any:
        """The factors that come, in their order, and then that of the channels."""
        values = factors.tolist()
        for k in turns.tolist():
            if k >= 0:
                image = getattr(v2.functional, f"adjust_{_FACTORS[k]}_image")(image, values[k])
        return permuted(image, channels)


# Grayscale and RandomGrayscale.


class Gray(Effect):
    """To gray, the images that it is applied to."""

    __slots__ = ()

    def image(self, image: Any, on: Any) -> Any:
        return v2.functional.rgb_to_grayscale_image(image, getattr(self, "channels", 3)) if on else image

    def dali(self, graph: Graph) -> None:
        cut = graph.place.dtype == "uint8"

        def steps(fold: Any, on: Any) -> Floats:
            return only(fold.on & on, gray_steps(len(on), cut=cut))

        add_colours(graph, 1, contrast=False, hue=False, fold=steps)


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
            refuse(transform, rule, transform.num_output_channels)
        return cls()

    def output_channels(self) -> int | None:
        return self.channels


@dataclass(frozen=True, slots=True)
class RandomGrayscale(Gray):
    """Gray, as Grayscale."""

    p: Probability = 0.1


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
