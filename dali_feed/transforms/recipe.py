"""Recipe: what is done to each image, as a short list of frozen ops in torchvision's meaning.

A recipe says what; `dali_feed.compiler.dali` compiles it to the steps an engine runs and to the per-sample
numbers those steps take. Ops are validated when they are made, so a wrong value never reaches an engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dali_feed.transforms.effects import Effect, Grayscale
from dali_feed.transforms.fit import Fit
from dali_feed.transforms.rules import (
    Decoding,
    Drawn,
    DType,
    Edges,
    Fill,
    Interpolation,
    Layout,
    PadMode,
    Range,
    check_p,
    check_padding,
    check_range,
    check_size,
    refuse,
)

__all__ = [
    "CenterCrop",
    "ColorJitter",
    "Drawn",
    "Fill",
    "Flip",
    "Nest",
    "Normalize",
    "Op",
    "Pad",
    "RandomAffine",
    "RandomApply",
    "RandomChoice",
    "RandomCrop",
    "RandomOrder",
    "RandomResizedCrop",
    "Recipe",
    "Resize",
    "Rotation",
    "ToFloat",
]


@dataclass(frozen=True, slots=True)
class RandomResizedCrop:
    """A window of random area and aspect ratio, resized to `size` (height, width)."""

    size: tuple[int, int]
    scale: Range = (0.08, 1.0)
    ratio: Range = (3 / 4, 4 / 3)
    interpolation: Interpolation | Drawn = "bilinear"
    antialias: bool = True

    def __post_init__(self) -> None:
        check_size("RandomResizedCrop", self.size)
        check_range("RandomResizedCrop", "scale", self.scale, 0.0, float("inf"))
        check_range("RandomResizedCrop", "ratio", self.ratio, 1e-6, 1e6)


@dataclass(frozen=True, slots=True)
class Resize:
    """To `size` (height, width), or, where it is an int, the shorter edge to it; the longer at most `max_size`."""

    size: int | tuple[int, int]
    max_size: int | None = None
    interpolation: Interpolation = "bilinear"
    antialias: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.size, int):
            check_size("Resize", (self.size, self.size))
            if self.max_size is not None and self.max_size <= self.size:
                refuse("Resize", "max_size must be larger than size, the shorter edge", self.max_size)
        else:
            check_size("Resize", self.size)
            if self.max_size is not None:
                refuse("Resize", "max_size goes with an int size", self.max_size)


@dataclass(frozen=True, slots=True)
class CenterCrop:
    """The middle `size` (height, width) of an image; a smaller one is padded with black."""

    size: tuple[int, int]

    def __post_init__(self) -> None:
        check_size("CenterCrop", self.size)


@dataclass(frozen=True, slots=True)
class Pad:
    """Pixels around the image: `padding` is left, top, right, bottom. `fill` is for mode "constant"."""

    padding: Edges
    fill: Fill = 0.0
    mode: PadMode = "constant"

    def __post_init__(self) -> None:
        check_padding("Pad", self.padding, self.mode)


@dataclass(frozen=True, slots=True)
class RandomCrop:
    """A window of `size` (height, width) anywhere in the image, padded before as `Pad` does.

    With `pad_if_needed` an edge that is still too short gets what it lacks on both sides.
    """

    size: tuple[int, int]
    padding: Edges = (0, 0, 0, 0)
    pad_if_needed: bool = False
    fill: Fill = 0.0
    mode: PadMode = "constant"

    def __post_init__(self) -> None:
        check_size("RandomCrop", self.size)
        check_padding("RandomCrop", self.padding, self.mode)

    @property
    def pads(self) -> bool:
        """Whether a window may leave the image."""
        return self.pad_if_needed or any(self.padding)


@dataclass(frozen=True, slots=True)
class Flip:
    """Mirror left-right (`axis` "x") or upside down ("y") with probability `p`."""

    axis: Literal["x", "y"]
    p: float = 0.5

    def __post_init__(self) -> None:
        check_p("RandomHorizontalFlip" if self.axis == "x" else "RandomVerticalFlip", self.p)


@dataclass(frozen=True, slots=True)
class ColorJitter:
    """Brightness, contrast, saturation and hue by random factors, in random order; None leaves one out."""

    brightness: Range | None = None
    contrast: Range | None = None
    saturation: Range | None = None
    hue: Range | None = None

    def __post_init__(self) -> None:
        for name in ("brightness", "contrast", "saturation"):
            pair = getattr(self, name)
            if pair is not None:
                check_range("ColorJitter", name, pair, 0.0, float("inf"))
        if self.hue is not None:
            check_range("ColorJitter", "hue", self.hue, -0.5, 0.5)


@dataclass(frozen=True, slots=True)
class Rotation:
    """Counter-clockwise about the centre by a random angle in degrees; the canvas keeps its size."""

    degrees: Range
    interpolation: Literal["nearest", "bilinear"] = "nearest"
    fill: Fill = 0.0

    def __post_init__(self) -> None:
        check_range("RandomRotation", "degrees", self.degrees, -float("inf"), float("inf"))


@dataclass(frozen=True, slots=True)
class RandomAffine:
    """Turned by `degrees`, moved by up to `translate` (fractions of width and height), scaled, sheared.

    `shear` is (x low, x high, y low, y high) in degrees. All about `center` (x, y in pixels), or the
    middle. The canvas keeps its size.
    """

    degrees: Range
    translate: tuple[float, float] = (0.0, 0.0)
    scale: Range = (1.0, 1.0)
    shear: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    interpolation: Literal["nearest", "bilinear"] = "nearest"
    fill: Fill = 0.0
    center: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        check_range("RandomAffine", "degrees", self.degrees, -float("inf"), float("inf"))
        if len(self.translate) != 2 or not all(0 <= part <= 1 for part in self.translate):
            refuse("RandomAffine", "translate must be two fractions in 0..1 (of width, of height)", self.translate)
        check_range("RandomAffine", "scale", self.scale, 1e-6, float("inf"))
        for pair in (self.shear[:2], self.shear[2:]):
            check_range("RandomAffine", "shear", pair, -90.0, 90.0)


@dataclass(frozen=True, slots=True)
class ToFloat:
    """To a dtype; `scale` maps 0..255 to 0..1 where the dtype is a float."""

    dtype: DType = "float32"
    scale: bool = True


@dataclass(frozen=True, slots=True)
class Normalize:
    """(value - mean) / std per channel, in the units the image has by then."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.mean) not in (1, 3) or len(self.std) not in (1, 3):
            refuse("Normalize", "mean and std need one value per channel (3)", (self.mean, self.std))
        if not all(s > 0 for s in self.std):
            refuse("Normalize", "std must be positive", self.std)


def _check_branches(op: str, branches: Branches) -> None:
    """What stands in a nest may be left out of some images of a batch, which must be alike all the same."""
    if not branches:
        refuse(op, "needs at least one transform", branches)
    for inner in (inner for branch in branches for inner in branch):
        if not isinstance(inner, Flip | ColorJitter | Rotation | RandomAffine | Effect | Nest):
            refuse(op, "what changes the size, dtype or units of an image cannot stand in it", inner)


@dataclass(frozen=True, slots=True)
class RandomApply:
    """All of `ops` with probability `p`, or none."""

    ops: tuple[Op, ...]
    p: float = 0.5

    def __post_init__(self) -> None:
        check_p("RandomApply", self.p)
        _check_branches("RandomApply", (self.ops,))


@dataclass(frozen=True, slots=True)
class RandomChoice:
    """One of `branches`, each a run of ops, by `weights`; equally often where there are none."""

    branches: Branches
    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        _check_branches("RandomChoice", self.branches)
        if self.weights and len(self.weights) != len(self.branches):
            refuse("RandomChoice", "p needs one number for each transform", self.weights)
        if self.weights and not (all(0 <= x < float("inf") for x in self.weights) and sum(self.weights) > 0):
            refuse("RandomChoice", "p must be numbers of at least 0, not all 0", self.weights)


@dataclass(frozen=True, slots=True)
class RandomOrder:
    """All of `branches`, each a run of ops, in random order."""

    branches: Branches

    def __post_init__(self) -> None:
        _check_branches("RandomOrder", self.branches)


Nest = RandomApply | RandomChoice | RandomOrder

Op = (
    RandomResizedCrop
    | Resize
    | CenterCrop
    | RandomCrop
    | Pad
    | Flip
    | ColorJitter
    | Rotation
    | RandomAffine
    | ToFloat
    | Normalize
    | Effect
    | Fit
    | Nest
)
Branches = tuple[tuple[Op, ...], ...]


@dataclass(frozen=True, slots=True)
class Recipe:
    """Ops in the order in which they apply. The empty recipe gives uint8 pixels as decoded.

    layout   of the batch that comes out: "NCHW" (n, 3, height, width) or "NHWC" (n, height, width, 3)
    decode   "reduced": a JPEG may be decoded at 1/2, 1/4 or 1/8 where the first op makes it smaller still;
             "region": a window that it begins with is decoded alone, also where that may change its edges
    hw_decoder_load
             share of a batch's JPEGs that a GPU's JPEG engine decodes, 0..1. Its pixels are not those of the CUDA
             decoder, and who goes there depends on the batch: above 0 a sample's pixels do too
    """

    ops: tuple[Op, ...] = ()
    layout: Layout = "NCHW"
    decode: Decoding = "exact"
    hw_decoder_load: float = 0.0

    @property
    def channels(self) -> int:
        """Of each image: 1 where it is made gray so; a batch then has three that are equal."""
        return next((op.channels for op in reversed(self.ops) if isinstance(op, Grayscale)), 3)
