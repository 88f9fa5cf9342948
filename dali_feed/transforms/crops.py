"""RandomCrop: a window of one size anywhere in the image, which is padded before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from dali_feed.draws import STREAMS_PER_OP
from dali_feed.transforms import follow
from dali_feed.transforms.keys import Key, numbered
from dali_feed.transforms.op import (
    Arrays,
    Graph,
    Ints,
    OnImage,
    Op,
    OpRun,
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
    PadMode,
    as_list,
    check_p,
    check_padding,
    check_size,
    edges_of,
    fill_of,
    mask_fill_of,
    pair,
    refuse,
)

__all__ = ["CenterCrop", "CropOrPad", "Flip", "Pad", "RandomCrop", "TrimBorder", "crop", "one_level", "placed", "rows"]


# Crops of images and pixels put around them: their rows, their steps on one image, and images too small to pad.


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


def margin(key: Key, fill: Fill, mode: PadMode) -> OnImage:
    """Rows left, top, right, bottom (int32) of `key` put around the image."""
    colour = as_list(fill)

    def apply(image: Any, arrays: Arrays, slot: int) -> Any:
        from torchvision.transforms.v2 import functional

        edges = arrays[key][slot].tolist()
        return functional.pad_image(image, edges, colour, mode) if any(edges) else image

    return apply


def too_narrow(title: str, mode: PadMode, image: tuple[Ints, Ints], widest: tuple[Ints, Ints]) -> list[tuple[int, str]]:
    """Images (heights, widths) that have too few pixels to mirror into edges up to `widest` (high, wide)."""
    spare = {"reflect": 1, "symmetric": 0}.get(mode)  # "reflect" does not repeat the edge itself, "symmetric" does
    if spare is None:
        return []
    (h, w), (high, wide) = image, widest
    short = (high > h - spare) | (wide > w - spare)
    told = f'{title}: padding_mode="{mode}" needs an image that is larger than the padding'
    return [(k, f"{told}; found {w[k]}x{h[k]}") for k in np.flatnonzero(short).tolist()]


@dataclass(frozen=True, slots=True)
class RandomCrop(Op):
    """A window of `size` (height, width) anywhere in the image, padded before as `Pad` does.

    With `pad_if_needed` an edge that is still too short gets what it lacks on both sides.
    """

    size: tuple[int, int]
    padding: Edges = (0, 0, 0, 0)
    pad_if_needed: bool = False
    fill: Fill = 0.0
    mode: PadMode = "constant"
    masks: Fill | None = None  # what fills those that follow; None: as the image

    streams: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_size("RandomCrop", self.size)
        check_padding("RandomCrop", self.padding, self.mode)

    @classmethod
    def of(cls, transform: Any) -> RandomCrop:
        t = transform
        edges = edges_of(t, swapped=type(t).__module__.startswith("torchvision.transforms.v2"))
        needed = bool(t.pad_if_needed)
        return cls(pair(t, t.size), edges, needed, fill_of(t), t.padding_mode, mask_fill_of(t))

    @property
    def pads(self) -> bool:
        """Whether a window may reach outside the image."""
        return self.pad_if_needed or any(self.padding)

    def size_behind(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        return self.size

    def unfit(self, h: Ints, w: Ints) -> list[tuple[int, str]]:
        left, top, right, bottom = padded(h, w, self)
        widest = np.maximum(top, bottom), np.maximum(left, right)
        small = (h + top + bottom < self.size[0]) | (w + left + right < self.size[1])
        told = f"RandomCrop: {self.size[1]}x{self.size[0]} must fit into the image; found"
        cure = "give pad_if_needed=True"
        found = [(k, f"{told} {w[k]}x{h[k]}; {cure}") for k in np.flatnonzero(small).tolist()]
        return too_narrow("RandomCrop", self.mode, (h, w), widest) + found

    def begins_with_window(self) -> bool:
        return not self.pads

    def host_rows(self, run: SizedDraws, n: int) -> None:
        left, top, right, bottom = padded(run.h, run.w, self)
        y, x, run.h, run.w = crop_windows(run.h, run.w, self, run.draw(n * STREAMS_PER_OP))
        if self.mode != "constant":
            run.arrays[numbered("margin", n)] = rows(left, top, right, bottom)
            y, x = y + top, x + left
        run.arrays[run.crop_key(n)] = rows(y, x, run.h, run.w)

    def host_steps(self, n: int, *, window: bool = False) -> list[OnImage]:
        cut = [] if window else [crop(numbered("crop", n), self.fill)]
        return cut if self.mode == "constant" else [margin(numbered("margin", n), self.fill, self.mode), *cut]

    def follow_steps(self, n: int) -> list[OnImage]:
        fill = follow.fill_behind(self.fill, self.masks)
        cut = follow.crop(numbered("crop", n), fill)
        return [cut] if self.mode == "constant" else [follow.margin(numbered("margin", n), fill, self.mode), cut]

    def in_graph(self, graph: Graph, first: int) -> None:
        if self.pads and self.mode != "constant":
            self.refuse('knows padding_mode="constant"', f'"{self.mode}"')
        fill = graph.place.levels(self.fill)
        graph.crop(
            self.size, lambda run: crop_windows(run.h, run.w, self, run.draw(first)), inside=not self.pads, fill=fill
        )


# CenterCrop: the middle of an image.


@dataclass(frozen=True, slots=True)
class CenterCrop(Op):
    """The middle `size` (height, width) of an image; a smaller one is padded with black."""

    size: tuple[int, int]

    def __post_init__(self) -> None:
        check_size("CenterCrop", self.size)

    @classmethod
    def of(cls, transform: Any) -> CenterCrop:
        return cls(pair(transform, transform.size))

    @classmethod
    def of_preset(cls, transform: Any) -> CenterCrop:
        """From the preset that `weights.transforms()` gives."""
        return cls(pair(transform, transform.crop_size))

    def size_behind(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        return self.size

    def host_rows(self, run: SizedDraws, n: int) -> None:
        y, x, run.h, run.w = center_window(run.h, run.w, self.size)
        run.arrays[run.crop_key(n)] = rows(y, x, run.h, run.w)

    def host_steps(self, n: int, *, window: bool = False) -> list[OnImage]:
        return [crop(numbered("crop", n))]

    def follow_steps(self, n: int) -> list[OnImage]:
        return [follow.crop(numbered("crop", n))]

    def in_graph(self, graph: Graph, first: int) -> None:
        graph.crop(self.size, lambda run: center_window(run.h, run.w, self.size), inside=graph.covers(self.size))


# timm's CenterCropOrPad and RandomCropOrPad: cut an image where it is larger than a size, pad it where smaller.


@dataclass(frozen=True, slots=True)
class CropOrPad(Op):
    """To `size` (height, width): the middle, or a random place; a smaller image is padded in the same way."""

    size: tuple[int, int]
    anywhere: bool = False
    fill: Fill = 0.0
    mode: Literal["constant", "edge", "reflect", "symmetric"] = "constant"
    masks: Fill | None = None  # what fills those that follow; None: as the image

    streams: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_size("CropOrPad", self.size)
        if self.mode not in ("constant", "edge", "reflect", "symmetric"):
            refuse("CropOrPad", "padding_mode must be constant, edge, reflect or symmetric", self.mode)

    @classmethod
    def of(cls, transform: Any) -> CropOrPad:
        t = transform
        return cls(pair(t, t.size), type(t).__name__ == "RandomCropOrPad", fill_of(t), t.padding_mode, mask_fill_of(t))

    def size_behind(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        return self.size

    def unfit(self, h: Ints, w: Ints) -> list[tuple[int, str]]:
        high, wide = np.maximum(self.size[0] - h, 0), np.maximum(self.size[1] - w, 0)
        if not self.anywhere:  # half of it at each edge
            high, wide = (high + 1) // 2, (wide + 1) // 2
        return too_narrow("CropOrPad", self.mode, (h, w), (high, wide))

    def host_rows(self, run: SizedDraws, n: int) -> None:
        y, x, h, w = placed(self, run.h, run.w, run.draw(n * STREAMS_PER_OP))
        if self.mode != "constant":
            left, top, right, bottom = (np.maximum(edge, 0) for edge in (-x, -y, x + w - run.w, y + h - run.h))
            run.arrays[numbered("margin", n)] = rows(left, top, right, bottom)
            y, x = y + top, x + left
        run.arrays[numbered("crop", n)] = rows(y, x, h, w)
        run.h, run.w = h, w

    def host_steps(self, n: int, *, window: bool = False) -> list[OnImage]:
        cut = crop(numbered("crop", n), self.fill)
        return [cut] if self.mode == "constant" else [margin(numbered("margin", n), self.fill, self.mode), cut]

    def follow_steps(self, n: int) -> list[OnImage]:
        fill = follow.fill_behind(self.fill, self.masks)
        cut = follow.crop(numbered("crop", n), fill)
        return [cut] if self.mode == "constant" else [follow.margin(numbered("margin", n), fill, self.mode), cut]

    def in_graph(self, graph: Graph, first: int) -> None:
        if self.mode != "constant":
            self.refuse('knows padding_mode="constant"', f'"{self.mode}"')
        fill = graph.place.levels(self.fill)
        graph.crop(self.size, lambda run: placed(self, run.h, run.w, run.draw(first)), inside=False, fill=fill)


def placed(op: CropOrPad, h: Ints, w: Ints, drawn: NDArray[np.float32] | None) -> Window:
    """Windows, which leave the image where it is smaller; `drawn` (4, n): rows 0 and 1 are y and x."""
    if not op.anywhere or drawn is None:
        return center_window(h, w, op.size)

    def first(have: Ints, want: int, u: NDArray[np.float32]) -> Ints:
        spare = have - want
        return np.sign(spare) * ((np.abs(spare) + 1) * u.astype(np.float64)).astype(np.int64)

    y, x = first(h, op.size[0], drawn[0]), first(w, op.size[1], drawn[1])
    return y, x, np.full_like(h, op.size[0]), np.full_like(w, op.size[1])


# Pad: pixels around the image.


@dataclass(frozen=True, slots=True)
class Pad(Op):
    """Pixels around the image: `padding` is left, top, right, bottom. `fill` is for mode "constant"."""

    padding: Edges
    fill: Fill = 0.0
    mode: PadMode = "constant"
    masks: Fill | None = None  # what fills those that follow; None: as the image

    def __post_init__(self) -> None:
        check_padding("Pad", self.padding, self.mode)

    @classmethod
    def of(cls, transform: Any) -> Pad:
        return cls(
            edges_of(transform, swapped=False), fill_of(transform), transform.padding_mode, mask_fill_of(transform)
        )

    def size_behind(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        left, top, right, bottom = self.padding
        return size and (size[0] + top + bottom, size[1] + left + right)

    def sizes_behind(self, h: Ints, w: Ints) -> tuple[Ints, Ints]:
        left, top, right, bottom = padded(h, w, self)
        return h + top + bottom, w + left + right

    def unfit(self, h: Ints, w: Ints) -> list[tuple[int, str]]:
        left, top, right, bottom = padded(h, w, self)
        return too_narrow("Pad", self.mode, (h, w), (np.maximum(top, bottom), np.maximum(left, right)))

    def host_rows(self, run: SizedDraws, n: int) -> None:
        run.arrays[numbered("margin", n)] = rows(*padded(run.h, run.w, self))
        run.h, run.w = self.sizes_behind(run.h, run.w)

    def host_steps(self, n: int, *, window: bool = False) -> list[OnImage]:
        return [margin(numbered("margin", n), self.fill, self.mode)]

    def follow_steps(self, n: int) -> list[OnImage]:
        fill = follow.fill_behind(self.fill, self.masks)
        return [follow.margin(numbered("margin", n), fill, self.mode)]

    def in_graph(self, graph: Graph, first: int) -> None:
        if self.mode != "constant":
            self.refuse('knows padding_mode="constant"', f'"{self.mode}"')

        def choose(run: OpRun) -> Window:
            left, top, _, _ = padded(run.h, run.w, self)
            return -top, -left, *self.sizes_behind(run.h, run.w)

        graph.cut(choose, graph.place.levels(self.fill))


# timm's TrimBorder: an image without pixels at each edge.


@dataclass(frozen=True, slots=True)
class TrimBorder(Op):
    """Without `border` pixels at each edge."""

    border: int

    def __post_init__(self) -> None:
        if self.border < 0:
            refuse("TrimBorder", "border_size must be at least 0", self.border)

    @classmethod
    def of(cls, transform: Any) -> TrimBorder:
        return cls(int(transform.border_size))

    def size_behind(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        return None

    def sizes_behind(self, h: Ints, w: Ints) -> tuple[Ints, Ints]:
        return np.maximum(h - 2 * self.border, 1), np.maximum(w - 2 * self.border, 1)

    def unfit(self, h: Ints, w: Ints) -> list[tuple[int, str]]:
        gone = np.minimum(h, w) <= 2 * self.border
        told = f"TrimBorder: nothing is left without {self.border} pixels at each edge"
        return [(k, f"{told}; found {w[k]}x{h[k]}") for k in np.flatnonzero(gone).tolist()]

    def window(self, h: Ints, w: Ints) -> Window:
        """All but the border."""
        edge = np.full_like(h, self.border)
        return edge, edge, h - 2 * self.border, w - 2 * self.border

    def host_rows(self, run: SizedDraws, n: int) -> None:
        y, x, run.h, run.w = self.window(run.h, run.w)
        run.arrays[numbered("crop", n)] = rows(y, x, run.h, run.w)

    def host_steps(self, n: int, *, window: bool = False) -> list[OnImage]:
        return [crop(numbered("crop", n))]

    def follow_steps(self, n: int) -> list[OnImage]:
        return [follow.crop(numbered("crop", n))]

    def in_graph(self, graph: Graph, first: int) -> None:
        graph.cut(lambda run: self.window(run.h, run.w))


# RandomHorizontalFlip and RandomVerticalFlip.


@dataclass(frozen=True, slots=True)
class Flip(Op):
    """Mirror left-right (`axis` "x") or upside down ("y") with probability `p`."""

    axis: Literal["x", "y"]
    p: float = 0.5

    streams: ClassVar[int] = 1
    normalized: ClassVar[bool] = True
    in_nest: ClassVar[bool] = True
    of_finish: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_p("RandomHorizontalFlip" if self.axis == "x" else "RandomVerticalFlip", self.p)

    @classmethod
    def horizontal(cls, transform: Any) -> Flip:
        """From torchvision's RandomHorizontalFlip."""
        return cls("x", float(transform.p))

    @classmethod
    def vertical(cls, transform: Any) -> Flip:
        """From torchvision's RandomVerticalFlip."""
        return cls("y", float(transform.p))

    def host_rows(self, run: SizedDraws, n: int) -> None:
        run.arrays[numbered("flip", n)] = run.draw(n * STREAMS_PER_OP)[0] < self.p

    def host_steps(self, n: int, *, window: bool = False) -> list[OnImage]:
        key, axis = numbered("flip", n), -1 if self.axis == "x" else -2

        def apply(image: Any, arrays: Arrays, slot: int) -> Any:
            return image.flip(axis) if arrays[key][slot] else image

        return [apply]

    def follow_steps(self, n: int) -> list[OnImage]:
        return [follow.flip(numbered("flip", n), self.axis)]

    def in_graph(self, graph: Graph, first: int) -> None:
        graph.flip(self.axis, lambda run: run.draw(first)[0] < self.p)
