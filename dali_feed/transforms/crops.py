"""Crops, padding and flips: a window of the image, which may reach outside of it, and the image mirrored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from dali_feed.draws import STREAMS_PER_OP
from dali_feed.transforms.keys import Key, numbered
from dali_feed.transforms.op import (
    Arrays,
    Effect,
    Graph,
    Ints,
    OnImage,
    Op,
    Place,
    SizedDraws,
    Window,
    center_window,
    crop_windows,
    padded,
)
from dali_feed.transforms.settings import (
    Edges,
    Fill,
    Masks,
    PadMode,
    Rule,
    as_list,
    fill_behind,
    fill_of,
    four_edges,
    height_width,
    masks_of,
    pad_mode,
    pair,
    probability,
    whole,
)

__all__ = [
    "CenterCrop",
    "CropOrPad",
    "Flip",
    "Pad",
    "RandomCrop",
    "TrimBorder",
    "crop",
    "crop_follower",
    "one_level",
    "placed",
    "rows",
]


# Crops of images and pixels put around them: their rows, and their steps on one image.


def rows(*columns: Ints) -> NDArray[np.int32]:
    """A row per sample."""
    return np.stack(columns, axis=1).astype(np.int32)


def one_level(op: Op, fill: Fill, place: Place) -> float:
    """One fill in 0..255, as DALI takes it where images are turned. TransformError where channels differ."""
    if not isinstance(fill, int | float) and len(set(fill)) != 1:
        op.refuse("takes one fill for all channels", fill)
    return place.levels(fill)[0]


def crop(key: Key, fill: Fill = 0.0) -> OnImage:
    """Rows y, x, height, width (int32) of `key`; `fill` outside the image."""

    def apply(image: Any, arrays: Arrays, slot: int) -> Any:
        y, x, height, width = arrays[key][slot].tolist()
        h, w = image.shape[-2:]
        if y >= 0 and x >= 0 and y + height <= h and x + width <= w:
            return image[:, y : y + height, x : x + width]
        return _beyond(image, (y, x, height, width), fill)

    return apply


def crop_follower(key: Key, fill: float = 0.0) -> OnImage:
    """The same of what follows an image, by torchvision's own function for it; `fill` outside of a mask."""

    def apply(given: Any, arrays: Arrays, slot: int) -> Any:
        from torchvision.transforms.v2 import functional
        from torchvision.tv_tensors import Mask

        y, x, height, width = arrays[key][slot].tolist()
        if fill and isinstance(given, Mask):  # torchvision's crop knows no fill: its transforms pad before it
            high, wide = functional.get_size(given)
            edges = [max(0, edge) for edge in (-x, -y, x + width - wide, y + height - high)]
            given = functional.pad(given, edges, fill=fill)
            y, x = y + edges[1], x + edges[0]
        return functional.crop(given, y, x, height, width)

    return apply


def _beyond(image: Any, window: tuple[int, int, int, int], fill: Fill) -> Any:
    """A crop that is partly outside the image."""
    import torch

    (y, x, height, width), (h, w) = window, image.shape[-2:]
    out = image.new_empty((image.shape[0], height, width))
    colour = torch.tensor(as_list(fill)).to(image.dtype)  # cut off to a whole level, as torchvision does
    out[:] = colour.view(-1, 1, 1)
    top, left, bottom, right = max(y, 0), max(x, 0), min(y + height, h), min(x + width, w)
    out[:, top - y : bottom - y, left - x : right - x] = image[:, top:bottom, left:right]
    return out


def margin(key: Key, fill: float | list[float], mode: PadMode, kind: str = "_image") -> OnImage:
    """Rows left, top, right, bottom (int32) of `key` put around the image; `kind` "": around what follows it."""

    def apply(given: Any, arrays: Arrays, slot: int) -> Any:
        from torchvision.transforms.v2 import functional

        edges = arrays[key][slot].tolist()
        return getattr(functional, f"pad{kind}")(given, edges, fill, mode) if any(edges) else given

    return apply


class Cropping(Op):
    """A window of the image. It may reach outside, where `fill` is, or what `mode` makes of the image's edges."""

    __slots__ = ()
    fill: Fill = 0.0
    mode: PadMode = "constant"
    masks: Masks = None

    def window(self, run: SizedDraws, first: int) -> Window:
        """Of each image, in its own coordinates; random numbers begin at stream `first`."""
        raise NotImplementedError

    @property
    def pads(self) -> bool:
        """Whether a window may reach outside the image."""
        return True

    def inside(self, graph: Graph) -> bool:
        """Whether no window does, at this point of a graph."""
        del graph
        return not self.pads

    def margins(self, h: Ints, w: Ints, window: Window) -> tuple[Ints, ...]:
        """Pixels put left, above, right and below before the window is cut out, where `mode` says of what."""
        y, x, height, width = window
        return tuple(np.maximum(edge, 0) for edge in (-x, -y, x + width - w, y + height - h))

    def widest(self, h: Ints, w: Ints) -> tuple[Ints, Ints]:
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

    def host_rows(self, run: SizedDraws, n: int) -> None:
        h, w = run.h, run.w
        y, x, run.h, run.w = self.window(run, n * STREAMS_PER_OP)
        if self.mode != "constant":
            left, top, right, bottom = self.margins(h, w, (y, x, run.h, run.w))
            run.arrays[numbered("margin", n)] = rows(left, top, right, bottom)
            y, x = y + top, x + left
        run.arrays[run.crop_key(n)] = rows(y, x, run.h, run.w)

    def host_steps(self, n: int, *, window: bool = False) -> list[OnImage]:
        cut = [] if window else [crop(numbered("crop", n), self.fill)]
        return cut if self.mode == "constant" else [margin(numbered("margin", n), as_list(self.fill), self.mode), *cut]

    def follow_steps(self, n: int) -> list[OnImage]:
        fill = fill_behind(self.fill, self.masks)
        cut = crop_follower(numbered("crop", n), fill)
        return [cut] if self.mode == "constant" else [margin(numbered("margin", n), fill, self.mode, ""), cut]

    def in_graph(self, graph: Graph, first: int) -> None:
        if self.pads and self.mode != "constant":
            self.refuse('knows padding_mode="constant"', f'"{self.mode}"')
        size, fill = self.size_behind(None), graph.place.levels(self.fill)
        if size is None:
            graph.cut(lambda run: self.window(run, first), fill)
        else:
            graph.crop(size, lambda run: self.window(run, first), inside=self.inside(graph), fill=fill)


@dataclass(frozen=True, slots=True)
class RandomCrop(Cropping):
    """A window of `size` (height, width) anywhere in the image, padded before as `Pad` does.

    With `pad_if_needed` an edge that is still too short gets what it lacks on both sides.
    """

    size: tuple[int, int]
    padding: Edges = (0, 0, 0, 0)
    pad_if_needed: bool = False
    fill: Fill = 0.0
    mode: PadMode = "constant"
    masks: Masks = None

    streams: ClassVar[int] = 1
    rules: ClassVar[Mapping[str, Rule]] = {"size": height_width, "padding": four_edges, "mode": pad_mode}
    theirs: ClassVar[Mapping[str, str]] = {"mode": "padding_mode"}

    @property
    def pads(self) -> bool:
        return self.pad_if_needed or any(self.padding)

    def size_behind(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        return self.size

    def margins(self, h: Ints, w: Ints, window: Window) -> tuple[Ints, ...]:
        return padded(h, w, self)

    def widest(self, h: Ints, w: Ints) -> tuple[Ints, Ints]:
        left, top, right, bottom = padded(h, w, self)
        return np.maximum(top, bottom), np.maximum(left, right)

    def unfit(self, h: Ints, w: Ints) -> list[tuple[int, str]]:
        left, top, right, bottom = padded(h, w, self)
        small = (h + top + bottom < self.size[0]) | (w + left + right < self.size[1])
        need = f"RandomCrop: {self.size[1]}x{self.size[0]} must fit into the image; found"
        cure = "give pad_if_needed=True"
        found = [(k, f"{need} {w[k]}x{h[k]}; {cure}") for k in np.flatnonzero(small).tolist()]
        return Cropping.unfit(self, h, w) + found

    def begins_with_window(self) -> bool:
        return not self.pads

    def window(self, run: SizedDraws, first: int) -> Window:
        return crop_windows(run.h, run.w, self, run.draw(first))


@dataclass(frozen=True, slots=True)
class CenterCrop(Cropping):
    """The middle `size` (height, width) of an image; a smaller one is padded with black."""

    size: tuple[int, int]

    rules: ClassVar[Mapping[str, Rule]] = {"size": height_width}

    @classmethod
    def of_preset(cls, transform: Any) -> CenterCrop:
        """From the preset that `weights.transforms()` gives."""
        return cls(pair(transform, transform.crop_size))

    def size_behind(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        return self.size

    def inside(self, graph: Graph) -> bool:
        return bool(graph.covers(self.size))

    def window(self, run: SizedDraws, first: int) -> Window:
        return center_window(run.h, run.w, self.size)


# timm's CenterCropOrPad and RandomCropOrPad: cut an image where it is larger than a size, pad it where smaller.


@dataclass(frozen=True, slots=True)
class CropOrPad(Cropping):
    """To `size` (height, width): the middle, or a random place; a smaller image is padded in the same way."""

    size: tuple[int, int]
    anywhere: bool = False
    fill: Fill = 0.0
    mode: PadMode = "constant"
    masks: Masks = None

    streams: ClassVar[int] = 1
    rules: ClassVar[Mapping[str, Rule]] = {"size": height_width, "mode": pad_mode}
    theirs: ClassVar[Mapping[str, str]] = {"mode": "padding_mode"}

    @classmethod
    def of(cls, transform: Any) -> CropOrPad:
        t, anywhere = transform, type(transform).__name__ == "RandomCropOrPad"
        return cls(pair(t, t.size), anywhere, fill_of(t, "fill"), t.padding_mode, masks_of(t, "fill"))

    def size_behind(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        return self.size

    def widest(self, h: Ints, w: Ints) -> tuple[Ints, Ints]:
        high, wide = np.maximum(self.size[0] - h, 0), np.maximum(self.size[1] - w, 0)
        return (high, wide) if self.anywhere else ((high + 1) // 2, (wide + 1) // 2)  # half of it at each edge

    def window(self, run: SizedDraws, first: int) -> Window:
        return placed(self, run.h, run.w, run.draw(first))


def placed(op: CropOrPad, h: Ints, w: Ints, drawn: NDArray[np.float32]) -> Window:
    """Windows, which leave the image where it is smaller; `drawn` (4, n): rows 0 and 1 are y and x."""
    if not op.anywhere:
        return center_window(h, w, op.size)

    def first(have: Ints, want: int, u: NDArray[np.float32]) -> Ints:
        spare = have - want
        return np.sign(spare) * ((np.abs(spare) + 1) * u.astype(np.float64)).astype(np.int64)

    y, x = first(h, op.size[0], drawn[0]), first(w, op.size[1], drawn[1])
    return y, x, np.full_like(h, op.size[0]), np.full_like(w, op.size[1])


@dataclass(frozen=True, slots=True)
class Pad(Cropping):
    """Pixels around the image: `padding` is left, top, right, bottom. `fill` is for mode "constant"."""

    padding: Edges
    fill: Fill = 0.0
    mode: PadMode = "constant"
    masks: Masks = None

    rules: ClassVar[Mapping[str, Rule]] = {"padding": four_edges, "mode": pad_mode}
    theirs: ClassVar[Mapping[str, str]] = {"mode": "padding_mode"}

    def size_behind(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        left, top, right, bottom = self.padding
        return size and (size[0] + top + bottom, size[1] + left + right)

    def sizes_behind(self, h: Ints, w: Ints) -> tuple[Ints, Ints]:
        left, top, right, bottom = self.padding
        return h + top + bottom, w + left + right

    def widest(self, h: Ints, w: Ints) -> tuple[Ints, Ints]:
        left, top, right, bottom = self.padding
        return np.full_like(h, max(top, bottom)), np.full_like(w, max(left, right))

    def window(self, run: SizedDraws, first: int) -> Window:
        left, top, _, _ = self.padding
        return np.full_like(run.h, -top), np.full_like(run.w, -left), *self.sizes_behind(run.h, run.w)


# timm's TrimBorder: an image without pixels at each edge.


@dataclass(frozen=True, slots=True)
class TrimBorder(Cropping):
    """Without `border` pixels at each edge."""

    border: int

    rules: ClassVar[Mapping[str, Rule]] = {"border": whole(0)}
    theirs: ClassVar[Mapping[str, str]] = {"border": "border_size"}

    def size_behind(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        return None

    def sizes_behind(self, h: Ints, w: Ints) -> tuple[Ints, Ints]:
        return np.maximum(h - 2 * self.border, 1), np.maximum(w - 2 * self.border, 1)

    def unfit(self, h: Ints, w: Ints) -> list[tuple[int, str]]:
        gone = np.minimum(h, w) <= 2 * self.border
        need = f"TrimBorder: nothing is left without {self.border} pixels at each edge"
        return [(k, f"{need}; found {w[k]}x{h[k]}") for k in np.flatnonzero(gone).tolist()]

    def window(self, run: SizedDraws, first: int) -> Window:
        edge = np.full_like(run.h, self.border)
        return edge, edge, run.h - 2 * self.border, run.w - 2 * self.border


# RandomHorizontalFlip and RandomVerticalFlip.


@dataclass(frozen=True, slots=True)
class Flip(Effect):
    """Mirror left-right (`axis` "x") or upside down ("y") with probability `p`."""

    axis: Literal["x", "y"]
    p: float = 0.5

    normalized: ClassVar[bool] = True
    of_finish: ClassVar[bool] = True
    array: ClassVar[str] = "flip"
    moves: ClassVar[bool] = True
    rules: ClassVar[Mapping[str, Rule]] = {"p": probability}

    @classmethod
    def horizontal(cls, transform: Any) -> Flip:
        """From torchvision's RandomHorizontalFlip."""
        return cls("x", float(transform.p))

    @classmethod
    def vertical(cls, transform: Any) -> Flip:
        """From torchvision's RandomVerticalFlip."""
        return cls("y", float(transform.p))

    @property
    def title(self) -> str:
        return "RandomHorizontalFlip" if self.axis == "x" else "RandomVerticalFlip"

    def image(self, image: Any, row: Any, more: Any) -> Any:
        return image.flip(-1 if self.axis == "x" else -2) if row else image

    def follow(self, given: Any, row: Any) -> Any:
        from torchvision.transforms.v2 import functional

        turned = functional.horizontal_flip if self.axis == "x" else functional.vertical_flip
        return turned(given) if row else given

    def in_graph(self, graph: Graph, first: int) -> None:
        graph.flip(self.axis, lambda run: self.on(run, first))
