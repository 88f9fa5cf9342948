"""The checks of an op's settings: each error names the op, the rule and what was found."""

from __future__ import annotations

from typing import Literal, NoReturn

from dali_feed.errors import TransformError

__all__ = [
    "DType",
    "Drawn",
    "Edges",
    "Fill",
    "Interpolation",
    "Layout",
    "PadMode",
    "Range",
    "as_list",
    "check_p",
    "check_padding",
    "check_range",
    "check_size",
    "check_uint8",
    "refuse",
]

Interpolation = Literal["nearest-exact", "bilinear", "bicubic"]
Drawn = Literal["random"]  # bilinear or bicubic, at random for each sample
DType = Literal["uint8", "float32", "float16", "bfloat16"]
Layout = Literal["NCHW", "NHWC"]
PadMode = Literal["constant", "edge", "reflect", "symmetric"]
Edges = tuple[int, int, int, int]  # left, top, right, bottom
Range = tuple[float, float]
Fill = float | tuple[float, float, float]  # one for all channels, or one each for red, green, blue


def refuse(op: str, rule: str, found: object) -> NoReturn:
    """Raise TransformError."""
    msg = f"{op}: {rule}; found {found!r}"
    raise TransformError(msg)


def as_list(fill: Fill) -> list[float]:
    """A fill as torchvision's functions take it: one value for all channels, or one for each."""
    return [fill] if isinstance(fill, int | float) else list(fill)


def check_range(op: str, name: str, pair: Range, low: float, high: float) -> None:
    """Both ends of `pair` in order, within low..high."""
    if len(pair) != 2 or not low <= pair[0] <= pair[1] <= high:
        refuse(op, f"{name} must be (low, high) with {low} <= low <= high <= {high}", pair)


def check_p(op: str, p: float) -> None:
    """A probability."""
    if not 0.0 <= p <= 1.0:
        refuse(op, "p must lie in 0..1", p)


def check_size(op: str, size: tuple[int, int]) -> None:
    """(height, width)."""
    if len(size) != 2 or not all(isinstance(n, int) and n > 0 for n in size):
        refuse(op, "size must be two positive ints (height, width)", size)


def check_uint8(op: str, dtype: str) -> None:
    """Check that pixels are uint8, for a transform that takes no others."""
    if dtype != "uint8":
        cure = "Put it before ToTensor or ToDtype"
        msg = f"{op}: must have uint8 pixels, as the original does; found {dtype}. {cure}"
        raise TransformError(msg)


def check_padding(op: str, padding: Edges, mode: PadMode) -> None:
    """Widths of the four edges, and what they are filled with."""
    if len(padding) != 4 or not all(isinstance(n, int) and n >= 0 for n in padding):
        refuse(op, "padding must be four ints of at least 0 (left, top, right, bottom)", padding)
    if mode not in ("constant", "edge", "reflect", "symmetric"):
        refuse(op, "padding_mode must be constant, edge, reflect or symmetric", mode)
