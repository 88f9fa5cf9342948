"""Crops, padding and flips: a window of the image, which may reach outside of it, and the image mirrored."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from dali_feed.draws import uniforms
from dali_feed.transforms.filters import seeds_of
from dali_feed.transforms.op import (
    Draws,
    Effect,
    Floats,
    Graph,
    Ints,
    Op,
    Sizes,
    Window,
    columns,
    cut,
    cut_follower,
    torch,
    v2,
)
from dali_feed.transforms.settings import (
    Edges,
    Fill,
    Masks,
    PadMode,
    Probability,
    Range,
    Rule,
    Size,
    as_list,
    fill_of,
    mask_fill,
    masks_of,
    pair,
    span,
    whole,
)

ROUNDS = 50  # of trials for a window; torchvision goes on until it has one


def center_window(h: Ints, w: Ints, size: tuple[int, int]) -> Window:
    """The middle window of `size`; it begins above or left of the image (negative) where that is smaller.

    Halves round to even, as Python's round does, because torchvision's arithmetic is Python's.
    """

    def first(have: Ints, want: int) -> Ints:
        inside = np.rint((have - want) / 2).astype(np.int64)
        return np.where(have < want, -((want - have) // 2), inside)

    return first(h, size[0]), first(w, size[1]), np.full_like(h, size[0]), np.full_like(w, size[1])


class Crop(Op):
    """A window of the image: `window` is all that a crop says.

    It may reach outside, where `fill` is, or what `mode` makes of the image's edges.
    """

    __slots__ = ()
    names: ClassVar[tuple[str, ...]] = ("margin", "crop")
    moves: ClassVar[bool | None] = True
    fill: Fill = 0.0
    mode: PadMode = "constant"
    masks: Masks = None

    def window(self, d: Draws) -> Window:
        """Of each image, in its own coordinates."""
        raise NotImplementedError

    def output_size(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        """Its own; of one without a size it depends on the image's."""
        return getattr(self, "size", None)

    @property
    def pads(self) -> bool:
        """Whether a window may reach outside the image."""
        return True

    def inside(self, graph: Graph) -> bool:
        """Whether no window does, at this point of a graph."""
        del graph
        return not self.pads

    def margins(self, h: Ints, w: Ints, window: Window) -> Window:
        """Pixels put left, above, right and below before the window is cut out, where `mode` says of what."""
        y, x, height, width = window
        left, top, right, bottom = (np.maximum(edge, 0) for edge in (-x, -y, x + width - w, y + height - h))
        return left, top, right, bottom

    def widest(self, h: Ints, w: Ints) -> Sizes:
        """How far above or below, and left or right of an image, a window may reach at most."""
        return np.zeros_like(h), np.zeros_like(w)

    def unfit(self, h: Ints, w: Ints) -> list[tuple[int, str]]:
        """Images that have too few pixels to mirror into edges."""
        spare = {"reflect": 1, "symmetric": 0}.get(self.mode)  # "reflect" does not repeat the edge, "symmetric" does
        if spare is None:
            return []
        high, wide = self.widest(h, w)
        short = (high > h - spare) | (wide > w - spare)
        need = f'{self.title}: padding_mode="{self.mode}" needs an image that is larger than the padding'
        return [(k, f"{need}; found {w[k]}x{h[k]}") for k in np.flatnonzero(short).tolist()]

    def draw(self, d: Draws) -> Mapping[str, NDArray[Any]]:
        """int32 (n, 4): margins left, top, right, bottom unless they have one colour; windows behind these."""
        h, w, window = d.h, d.w, self.window(d)
        y, x, d.h, d.w = window
        if self.mode == "constant":
            return {"crop": columns(*window)}
        left, top, right, bottom = self.margins(h, w, window)
        return {"margin": columns(left, top, right, bottom), "crop": columns(y + top, x + left, d.h, d.w)}

    def image(self, image: Any, margin: Any, window: Any) -> Any:
        """In torchvision's turn: padded by the margin, then cut."""
        return cut(self._padded("_image", image, margin, as_list(self.fill)), window, self.fill)

    def follow(self, value: Any, margin: Any, window: Any) -> Any:
        fill = mask_fill(self.fill, self.masks)
        return cut_follower(self._padded("", value, margin, fill), window, fill)

    def _padded(self, kind: str, value: Any, margin: Any, fill: float | list[float]) -> Any:
        edges = () if margin is None else margin.tolist()
        return getattr(v2.functional, f"pad{kind}")(value, edges, fill, self.mode) if any(edges) else value

    def dali(self, graph: Graph) -> None:
        if self.pads and self.mode != "constant":
            self.refuse('knows padding_mode="constant"', f'"{self.mode}"')
        graph.crop(self.output_size(None), inside=self.inside(graph), fill=graph.place.levels(self.fill))


@dataclass(frozen=True, slots=True)
class RandomCrop(Crop):
    """A window of `size` (height, width) anywhere in the image, padded before as `Pad` does.

    With `pad_if_needed` an edge that is still too short gets what it lacks on both sides.
    """

    size: Size
    padding: Edges = (0, 0, 0, 0)
    pad_if_needed: bool = False
    fill: Fill = 0.0
    mode: PadMode = "constant"
    masks: Masks = None

    streams: ClassVar[int] = 1
    theirs: ClassVar[Mapping[str, str]] = {"mode": "padding_mode"}

    @property
    def pads(self) -> bool:
        return self.pad_if_needed or any(self.padding)

    @property
    def cuts(self) -> bool:  # type: ignore[override]
        return not self.pads

    def _edges(self, h: Ints, w: Ints) -> Window:
        """Pixels put left, above, right and below."""
        left, top, right, bottom = (np.full_like(h, edge) for edge in self.padding)
        if self.pad_if_needed:
            high = np.maximum(self.size[0] - (h + top + bottom), 0)
            wide = np.maximum(self.size[1] - (w + left + right), 0)
            left, top, right, bottom = left + wide, top + high, right + wide, bottom + high
        return left, top, right, bottom

    def margins(self, h: Ints, w: Ints, window: Window) -> Window:
        return self._edges(h, w)

    def widest(self, h: Ints, w: Ints) -> Sizes:
        left, top, right, bottom = self._edges(h, w)
        return np.maximum(top, bottom), np.maximum(left, right)

    def unfit(self, h: Ints, w: Ints) -> list[tuple[int, str]]:
        left, top, right, bottom = self._edges(h, w)
        small = (h + top + bottom < self.size[0]) | (w + left + right < self.size[1])
        need = f"RandomCrop: {self.size[1]}x{self.size[0]} must fit into the image; found"
        cure = "give pad_if_needed=True"
        rows = [(k, f"{need} {w[k]}x{h[k]}; {cure}") for k in np.flatnonzero(small).tolist()]
        return Crop.unfit(self, h, w) + rows

    def window(self, d: Draws) -> Window:
        (left, top, right, bottom), u = self._edges(d.h, d.w), d.u()
        y = ((d.h + top + bottom - self.size[0] + 1) * u[0]).astype(np.int64) - top
        x = ((d.w + left + right - self.size[1] + 1) * u[1]).astype(np.int64) - left
        return y, x, np.full_like(d.h, self.size[0]), np.full_like(d.w, self.size[1])


@dataclass(frozen=True, slots=True)
class CenterCrop(Crop):
    """The middle `size` (height, width) of an image; a smaller one is padded with black."""

    size: Size

    def inside(self, graph: Graph) -> bool:
        return bool(graph.covers(self.size))

    def window(self, d: Draws) -> Window:
        return center_window(d.h, d.w, self.size)

    def follow(self, value: Any, margin: Any, window: Any) -> Any:
        """By torchvision's own: where it pads an odd number of pixels it moves boxes by one more, or one less."""
        del margin, window
        return v2.functional.center_crop(value, list(self.size))


@dataclass(frozen=True, slots=True)
class CropOrPad(Crop):
    """timm's crops to `size` (height, width): the middle, or a random place; a smaller image is padded so."""

    size: Size
    anywhere: bool = False
    fill: Fill = 0.0
    mode: PadMode = "constant"
    masks: Masks = None

    streams: ClassVar[int] = 1
    theirs: ClassVar[Mapping[str, str]] = {"mode": "padding_mode"}

    @classmethod
    def of(cls, transform: Any) -> CropOrPad:
        t, anywhere = transform, type(transform).__name__ == "RandomCropOrPad"
        return cls(pair(t, t.size), anywhere, fill_of(t, "fill"), t.padding_mode, masks_of(t, "fill"))

    def widest(self, h: Ints, w: Ints) -> Sizes:
        high, wide = np.maximum(self.size[0] - h, 0), np.maximum(self.size[1] - w, 0)
        return (high, wide) if self.anywhere else ((high + 1) // 2, (wide + 1) // 2)  # half of it at each edge

    def window(self, d: Draws) -> Window:
        if not self.anywhere:
            return center_window(d.h, d.w, self.size)
        spare, u = (d.h - self.size[0], d.w - self.size[1]), d.u().astype(np.float64)
        y, x = (np.sign(one) * ((np.abs(one) + 1) * u[k]).astype(np.int64) for k, one in enumerate(spare))
        return y, x, np.full_like(d.h, self.size[0]), np.full_like(d.w, self.size[1])


@dataclass(frozen=True, slots=True)
class Pad(Crop):
    """Pixels around the image: `padding` is left, top, right, bottom. `fill` is for mode "constant"."""

    padding: Edges
    fill: Fill = 0.0
    mode: PadMode = "constant"
    masks: Masks = None

    theirs: ClassVar[Mapping[str, str]] = {"mode": "padding_mode"}

    def output_size(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        return size and (size[0] + self._more[0], size[1] + self._more[1])

    @property
    def _more(self) -> tuple[int, int]:
        left, top, right, bottom = self.padding
        return top + bottom, left + right

    def bounds(self, least: Sizes, most: Sizes) -> tuple[Sizes, Sizes]:
        high, wide = self._more
        return (least[0] + high, least[1] + wide), (most[0] + high, most[1] + wide)

    def widest(self, h: Ints, w: Ints) -> Sizes:
        left, top, right, bottom = self.padding
        return np.full_like(h, max(top, bottom)), np.full_like(w, max(left, right))

    def window(self, d: Draws) -> Window:
        left, top, _, _ = self.padding
        return np.full_like(d.h, -top), np.full_like(d.w, -left), d.h + self._more[0], d.w + self._more[1]


@dataclass(frozen=True, slots=True)
class RandomZoomOut(Crop):
    """With probability `p` somewhere on a canvas of `fill`, larger by a random factor in `side`."""

    fill: Fill = 0.0
    side: Range = (1.0, 4.0)
    p: Probability = 0.5
    masks: Masks = None

    streams: ClassVar[int] = 1
    rules: ClassVar[Mapping[str, Rule]] = {"side": span(1.0, 1e3)}
    theirs: ClassVar[Mapping[str, str]] = {"side": "side_range"}

    def bounds(self, least: Sizes, most: Sizes) -> tuple[Sizes, Sizes]:
        return least, self._canvas(*most, np.float32(1.0))

    def _canvas(self, h: Ints, w: Ints, u: Any) -> Sizes:
        """In single precision, as torchvision's."""
        factor = np.float32(self.side[0]) + u * np.float32(self.side[1] - self.side[0])
        high, wide = (np.maximum((edge.astype(np.float32) * factor).astype(np.int64), edge) for edge in (h, w))
        return high, wide

    def window(self, d: Draws) -> Window:
        u = d.u()
        high, wide = self._canvas(d.h, d.w, u[1])
        high, wide = np.where(u[0] < self.p, high, d.h), np.where(u[0] < self.p, wide, d.w)
        spare = ((wide - d.w).astype(np.float32) * u[2]), ((high - d.h).astype(np.float32) * u[3])
        x, y = (-edge.astype(np.int64) for edge in spare)
        return y, x, high, wide


@dataclass(frozen=True, slots=True)
class RandomIoUCrop(Op):
    """A window in which a box lies, by its centre, of which it has a share as large as one of `options`, at random.

    A share of 1 leaves an image as it is, and so does a sample without boxes, and one of which no window is found.
    """

    min_scale: float = 0.3
    max_scale: float = 1.0
    min_aspect: float = 0.5
    max_aspect: float = 2.0
    options: tuple[float, ...] = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
    trials: int = 40

    names: ClassVar[tuple[str, ...]] = ("crop", "effect")
    streams: ClassVar[int] = 1
    moves: ClassVar[bool | None] = True
    by_boxes: ClassVar[bool] = True
    rules: ClassVar[Mapping[str, Rule]] = {"trials": whole(1)}

    def agree(self) -> None:
        span(0.0, 1.0)(self.title, "min_scale and max_scale", (self.min_scale, self.max_scale))
        span(0.0, math.inf)(self.title, "the aspect ratio", (self.min_aspect, self.max_aspect))

    @classmethod
    def of(cls, transform: Any) -> RandomIoUCrop:
        t = transform
        least, most, narrow = float(t.min_scale), float(t.max_scale), float(t.min_aspect_ratio)
        return cls(least, most, narrow, float(t.max_aspect_ratio), tuple(map(float, t.options)), int(t.trials))

    def output_size(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        return None

    def bounds(self, least: Sizes, most: Sizes) -> tuple[Sizes, Sizes]:
        high, wide = (np.maximum((edge * self.min_scale).astype(np.int64) - 1, 1) for edge in least)
        return (high, wide), most

    def draw(self, d: Draws) -> Mapping[str, NDArray[Any]]:
        """Windows, and which samples have one."""
        windows = np.stack([np.zeros_like(d.h), np.zeros_like(d.h), d.h, d.w], axis=1)
        on = np.zeros(len(windows), bool)
        for row, (seed, boxes) in enumerate(zip(seeds_of(d).tolist(), d.corners(self.title), strict=True)):
            _, _, height, width = windows[row].tolist()
            window = self._window(seed, height, width, boxes) if len(boxes) else None
            if window is not None:
                windows[row], on[row] = window, True
        d.h, d.w = windows[:, 2], windows[:, 3]
        return {"crop": windows.astype(np.int32), "effect": on}

    def _window(self, seed: int, h: int, w: int, boxes: Floats) -> list[int] | None:
        """The first that fits, of rounds of trials each with a share of its own."""
        for k in range(ROUNDS):
            u = uniforms(seed, k, np.arange(self.trials + 1), (0,))
            share = self.options[int(float(u[0, -1]) * len(self.options))]
            if share >= 1.0:
                return None
            sizes = np.float32(self.min_scale) + np.float32(self.max_scale - self.min_scale) * u[:2, :-1]
            wide, high = ((np.float32(edge) * one).astype(np.int64) for edge, one in zip((w, h), sizes, strict=True))
            x, y = (
                ((edge - one).astype(np.float32) * part).astype(np.int64)
                for edge, one, part in zip((w, h), (wide, high), u[2:, :-1], strict=True)
            )
            windows = np.stack([y, x, high, wide], axis=1)
            fits = np.flatnonzero(self._fitting(windows, boxes, share))
            if len(fits):
                found: list[int] = windows[fits[0]].tolist()
                return found
        return None

    def _fitting(self, windows: Ints, boxes: Floats, share: float) -> NDArray[np.bool_]:
        """Which windows (n, 4) have a box of those (k, 4: x, y, x, y) that has that share of both together."""
        y, x, high, wide = windows.T[:, :, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            shape = (wide / high)[:, 0]
            left, top, right, bottom = boxes.T
            across, down = np.float32(0.5) * (left + right), np.float32(0.5) * (top + bottom)
            within = (x < across) & (across < x + wide) & (y < down) & (down < y + high)
            both = np.clip(np.minimum(right, x + wide) - np.maximum(left, x), 0, None)
            both = both * np.clip(np.minimum(bottom, y + high) - np.maximum(top, y), 0, None)
            shares = both / ((right - left) * (bottom - top) + high * wide - both)
        some: NDArray[np.bool_] = (within & (shares.astype(np.float32) >= np.float32(share))).any(axis=1)
        some &= (self.min_aspect <= shape) & (shape <= self.max_aspect)
        return some

    def image(self, image: Any, window: Any, on: Any) -> Any:
        return cut(image, window) if on else image

    def follow(self, value: Any, window: Any, on: Any) -> Any:
        """Boxes whose centres are outside become nothing, which `Boxes(min_size=)` drops."""
        if not on:
            return value
        moved = cut_follower(value, window)
        if type(value).__name__ == "BoundingBoxes":
            y, x, height, width = window.tolist()
            left, top, right, bottom = corners_of(value).unbind(-1)
            across, down = 0.5 * (left + right), 0.5 * (top + bottom)
            within = (x < across) & (across < x + width) & (y < down) & (down < y + height)
            moved[~within] = 0
        return moved


def corners_of(boxes: Any) -> Any:
    """Boxes of torchvision's as a tensor (n, 4) of x, y, x, y."""
    return v2.functional.convert_bounding_box_format(boxes, new_format="XYXY").as_subclass(torch.Tensor)


@dataclass(frozen=True, slots=True)
class TrimBorder(Crop):
    """timm's: the image without `border` pixels at each edge."""

    border: int

    rules: ClassVar[Mapping[str, Rule]] = {"border": whole(0)}
    theirs: ClassVar[Mapping[str, str]] = {"border": "border_size"}

    def bounds(self, least: Sizes, most: Sizes) -> tuple[Sizes, Sizes]:
        least_h, least_w, most_h, most_w = (np.maximum(edge - 2 * self.border, 1) for edge in (*least, *most))
        return (least_h, least_w), (most_h, most_w)

    def unfit(self, h: Ints, w: Ints) -> list[tuple[int, str]]:
        gone = np.minimum(h, w) <= 2 * self.border
        need = f"TrimBorder: nothing is left without {self.border} pixels at each edge"
        return [(k, f"{need}; found {w[k]}x{h[k]}") for k in np.flatnonzero(gone).tolist()]

    def window(self, d: Draws) -> Window:
        edge = np.full_like(d.h, self.border)
        return edge, edge, d.h - 2 * self.border, d.w - 2 * self.border


@dataclass(frozen=True, slots=True)
class Flip(Effect):
    """Mirror left-right (`axis` "x") or upside down ("y") with probability `p`."""

    axis: Literal["x", "y"]
    p: Probability = 0.5

    names: ClassVar[tuple[str, ...]] = ("flip",)
    normalized: ClassVar[bool] = True
    of_finish: ClassVar[bool] = True
    moves: ClassVar[bool | None] = True

    @classmethod
    def horizontal(cls, transform: Any) -> Flip:
        return cls("x", float(transform.p))

    @classmethod
    def vertical(cls, transform: Any) -> Flip:
        return cls("y", float(transform.p))

    @property
    def title(self) -> str:
        return "RandomHorizontalFlip" if self.axis == "x" else "RandomVerticalFlip"

    def image(self, image: Any, on: Any) -> Any:
        return image.flip(-1 if self.axis == "x" else -2) if on else image

    def follow(self, value: Any, on: Any) -> Any:
        turned = v2.functional.horizontal_flip if self.axis == "x" else v2.functional.vertical_flip
        return turned(value) if on else value

    def dali(self, graph: Graph) -> None:
        graph.flip(self.axis)
