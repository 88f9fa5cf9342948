"""The checks of an op's settings: each error names the op, the rule and what was found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NoReturn

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
    "antialias_of",
    "as_list",
    "background",
    "check_p",
    "check_padding",
    "check_range",
    "check_size",
    "check_uint8",
    "edges_of",
    "fail",
    "fill_of",
    "interpolation_of",
    "mask_fill_of",
    "maybe_drawn",
    "numbers",
    "pair",
    "refuse",
    "turning",
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


# The fields of torchvision's transforms, and of those made like them: errors have name, rule and value.


def fail(transform: object, rule: str, found: object) -> TransformError:
    """The error of a setting that no engine can do."""
    return TransformError(f"{type(transform).__name__}: {rule}; found {found!r}")


def pair(t: Any, size: Any) -> tuple[int, int]:
    """A size as (height, width)."""
    found = [size, size] if isinstance(size, int) else list(size)
    if len(found) == 1:
        found *= 2
    if len(found) != 2:
        raise fail(t, "size must be an int or (height, width)", size)
    return int(found[0]), int(found[1])


def interpolation_of(t: Any) -> Interpolation:
    """The interpolation of a resize."""
    mode = str(getattr(t.interpolation, "value", t.interpolation))
    if mode not in ("bilinear", "bicubic", "nearest-exact"):
        raise fail(t, "interpolation must be BILINEAR, BICUBIC or NEAREST_EXACT", mode)
    return mode  # type: ignore[return-value]


def maybe_drawn(t: Any) -> Interpolation | Drawn:
    """The interpolation of a resize of timm's: one, or a random one of two."""
    if not isinstance(t.interpolation, tuple | list):
        return interpolation_of(t)
    names = sorted(str(getattr(mode, "value", mode)) for mode in t.interpolation)
    if names != ["bicubic", "bilinear"]:
        raise fail(t, "interpolation must be one mode, or random", t.interpolation)
    return "random"


def antialias_of(t: Any) -> bool:
    """Whether a resize is antialiased; v1 always is where it does not have this argument yet."""
    return bool(getattr(t, "antialias", True))


def turning(t: Any) -> Literal["nearest", "bilinear"]:
    """The interpolation of a transform that can turn an image."""
    mode = str(getattr(t.interpolation, "value", t.interpolation))
    if mode not in ("nearest", "bilinear"):
        raise fail(t, "interpolation must be NEAREST or BILINEAR", mode)
    return mode  # type: ignore[return-value]


def fill_of(t: Any) -> Fill:
    """The fill; black where none is given."""
    return background(t) or 0.0


def background(t: Any) -> Fill | None:
    """The colour of pixels from outside the image; None is torchvision's own default."""
    return _filled(t, "Image", "Tensor")


def mask_fill_of(t: Any) -> Fill | None:
    """What masks are filled with, where that is told for each type of tv_tensors; None: what images are."""
    return (_filled(t, "Mask") or 0.0) if isinstance(t.fill, dict) else None


def _filled(t: Any, *types: str) -> Fill | None:
    fill = t.fill
    if isinstance(fill, dict):
        known = {getattr(k, "__name__", str(k)): v for k, v in fill.items()}
        fill = next((known[name] for name in (*types, "others") if name in known), 0)
    found = tuple(map(float, fill)) if isinstance(fill, Sequence) and not isinstance(fill, str) else (fill,)
    if len(found) not in (1, 3) or not all(n is None or isinstance(n, int | float) for n in found):
        raise fail(t, "fill must be one number, or one for each of three channels", fill)
    if len(found) == 3:
        return found
    return None if found[0] is None else float(found[0])


def edges_of(t: Any, *, swapped: bool) -> Edges:
    """The padding as left, top, right, bottom. v2.RandomCrop keeps it as left, right, top, bottom."""
    found = t.padding or 0
    edges = [found] if isinstance(found, int) else [int(edge) for edge in found]
    if len(edges) not in (1, 2, 4):
        raise fail(t, "padding must be an int, or 1, 2 or 4 of them", found)
    if len(edges) == 4:
        a, b, c, d = edges
        return (a, c, b, d) if swapped else (a, b, c, d)
    across, down = edges[0], edges[-1]
    return across, down, across, down


def numbers(values: Any) -> tuple[float, ...]:
    """The numbers in a list, a tensor, an array or a single number."""
    flat = values.tolist() if hasattr(values, "tolist") else values  # tensors, arrays and single numbers too
    return tuple(float(x) for x in flat) if isinstance(flat, Sequence) else (float(flat),)
