"""Levels inverted, posterized, solarized, equalized or sharpened, by one function of torchvision's each: one table."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.transforms.auto_augment import FLIPPED, STAGES, WIDTH
from dali_feed.transforms.op import Effect, Graph, Place, fn, types, v2
from dali_feed.transforms.settings import Probability, Rule, at_least_zero, refuse, whole


def _number(op: str, name: str, value: float) -> None:
    if math.isnan(value):
        refuse(op, f"{name} must be a number", value)


def _masked(op: Pointwise, graph: Graph) -> None:
    """The highest bits of each value; all of them for an image that is left as it is."""
    if graph.place.dtype != "uint8":
        op.refuse("needs uint8 pixels", graph.place.dtype)
    mask = 256 - (256 >> int(op.setting))

    def masks(fold: Any, on: Any) -> Any:
        return np.where(fold.on & on, mask, 255).astype(np.uint8)

    graph.step("bits", "UINT8", 0, lambda image, bits: image & bits, masks)


def _inverted(op: Pointwise, graph: Graph) -> None:
    """Levels from a threshold on; from 256 on for an image that is left as it is."""
    place: Place = graph.place
    if not place.is_unit:
        op.refuse("needs uint8 pixels or floats in 0..1", "floats in 0..255")
    values = np.arange(256, dtype=np.float32)
    values = values if place.dtype == "uint8" else values * np.float32(1 / 255)
    level = int(np.count_nonzero(values < op.setting)) if op.name == "RandomSolarize" else 0

    def build(image: Any, start: Any) -> Any:
        light = fn.cast(image >= start, dtype=types.UINT8)
        return image ^ (light * types.Constant(255, types.UINT8))

    def levels(fold: Any, on: Any) -> Any:
        return np.where(fold.on & on, level, 256).astype(np.int32)

    graph.step("level", "INT32", 0, build, levels)


@dataclass(frozen=True, slots=True)
class Function:
    """What a transform of the table does.

    function  of torchvision's, that takes an image, and the setting if there is one
    setting   what torchvision calls the attribute; empty: there is none
    read      what it is, of that attribute
    rule      that it must keep
    dali      adds the same to a DALI graph; None: DALI has no operator for it, which the kernel `augment` does on a GPU
    """

    function: str
    setting: str = ""
    read: Callable[[Any], Any] = float
    rule: Rule = at_least_zero
    dali: Callable[[Pointwise, Graph], None] | None = None


POINTWISE = {
    "RandomAdjustSharpness": Function("adjust_sharpness_image", "sharpness_factor"),
    "RandomAutocontrast": Function("autocontrast_image"),
    "RandomEqualize": Function("equalize_image"),
    "RandomInvert": Function("invert_image", dali=_inverted),
    "RandomPosterize": Function("posterize_image", "bits", lambda bits: bits, whole(0, 8), _masked),
    "RandomSolarize": Function("solarize_image", "threshold", rule=_number, dali=_inverted),
}


@dataclass(frozen=True, slots=True)
class Pointwise(Effect):
    """The transform of that name in the table, with its `setting` where it has one, applied with probability `p`.

    The threshold of RandomSolarize is in the units that pixels have at this point.
    """

    name: str
    p: Probability = 0.5
    setting: float = 0.0

    @classmethod
    def of(cls, transform: Any) -> Pointwise:
        name = type(transform).__name__
        known = POINTWISE[name]
        return cls(name, float(transform.p), known.read(getattr(transform, known.setting)) if known.setting else 0.0)

    @property
    def title(self) -> str:
        return self.name

    @property
    def _known(self) -> Function:
        return POINTWISE[self.name]

    def agree(self) -> None:
        if self._known.setting:
            self._known.rule(self.title, self._known.setting, self.setting)

    def check(self, dtype: str) -> None:
        most = 255 if dtype == "uint8" else 1
        if self.name == "RandomSolarize" and self.setting > most:
            refuse(self.title, f"threshold must be at most {most}, the largest of {dtype} pixels", self.setting)

    def image(self, image: Any, on: Any) -> Any:
        settings = (self.setting,) if self._known.setting else ()
        return getattr(v2.functional, self._known.function)(image, *settings) if on else image

    def dali(self, graph: Graph) -> None:
        if self._known.dali is not None and not graph.augmenting:
            self._known.dali(self, graph)
        elif graph.augments and graph.place.dtype == "uint8":
            graph.augment(self, self.stages)
        else:
            Effect.dali(self, graph)

    def stages(self, fold: Any, on: Any) -> NDArray[np.float32]:
        """What the kernel takes: one stage, which does nothing but flips where an image is left as it is."""
        row, rows = np.zeros(WIDTH, np.float32), np.zeros((len(on), 1, 1, WIDTH), np.float32)
        kept = 255 << (8 - int(self.setting)) & 255 if self.name == "RandomPosterize" else self.setting
        kind = self._known.function.removeprefix("adjust_").removesuffix("_image")
        row[[0, 3, 4]] = STAGES[kind], kept, 1.0 - self.setting
        rows[fold.on & on] = row
        rows[:, 0, 0, FLIPPED] = fold.turn_back()
        return rows
