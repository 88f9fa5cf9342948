"""The settings of an op: rules that they must keep, and how they are read from torchvision's transforms and timm's.

Each error names the op, the rule and what was found. A field is read from the attribute of its name by `READ`, which
goes by the type that it is declared with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NoReturn, get_args

from dali_feed.errors import TransformError

Interpolation = Literal["nearest", "nearest-exact", "bilinear", "bicubic"]
Drawn = Literal["random"]  # one of these, at random for each sample
DRAWN: tuple[Interpolation, ...] = ("bilinear", "bicubic")
Turning = Literal["nearest", "bilinear"]  # the interpolations of a transform that can turn an image
DType = Literal["uint8", "float32", "float16", "bfloat16"]
Layout = Literal["NCHW", "NHWC"]
PadMode = Literal["constant", "edge", "reflect", "symmetric"]
Edges = tuple[int, int, int, int]  # left, top, right, bottom
Range = tuple[float, float]
Size = tuple[int, int]  # height, width
Probability = float
Fill = float | tuple[float, float, float]  # one for all channels, or one each for red, green, blue
Background = Fill | None  # the colour of pixels from outside the image; None is torchvision's own default
Masks = Fill | None  # what fills those that follow; None: as the image
Antialias = bool  # v1 always antialiases where it does not have this argument yet


def refuse(op: object, rule: str, value: object) -> NoReturn:
    """Raise TransformError; `op`: what users call it, or torchvision's transform itself."""
    raise TransformError(f"{op if isinstance(op, str) else type(op).__name__}: {rule}; found {value!r}")


def as_list(fill: Fill) -> list[float]:
    """A fill as torchvision's functions take it: one value for all channels, or one for each."""
    return [fill] if isinstance(fill, int | float) else list(fill)


def check_uint8(op: str, dtype: str) -> None:
    """Check that pixels are uint8, for a transform that takes no others."""
    if dtype != "uint8":
        cure = "Put it before ToTensor or ToDtype"
        raise TransformError(f"{op}: must have uint8 pixels, as the original does; found {dtype}. {cure}")


def mask_fill(fill: Fill, masks: Masks) -> float:
    """What a mask is filled with: `masks`, or where that is None as the image is.

    0 in place of three numbers, which no mask can be filled with: boxes and points do not look at it.
    """
    colour = fill if masks is None else masks
    return colour if isinstance(colour, int | float) else 0.0


# Rules: what a setting must keep, by the op's name, the setting's and its value. They raise TransformError.


Rule = Callable[[str, str, Any], None]


def probability(op: str, name: str, value: float) -> None:
    """A number in 0..1."""
    if not 0.0 <= value <= 1.0:
        refuse(op, f"{name} must lie in 0..1", value)


def at_least_zero(op: str, name: str, value: float) -> None:
    """A finite number that is not negative."""
    if not 0.0 <= value < float("inf"):
        refuse(op, f"{name} must be at least 0", value)


def above_zero(op: str, name: str, value: float) -> None:
    """A finite number above 0."""
    if not 0.0 < value < float("inf"):
        refuse(op, f"{name} must be a number above 0", value)


def height_width(op: str, name: str, value: tuple[int, int]) -> None:
    """(height, width)."""
    if len(value) != 2 or not all(isinstance(n, int) and n > 0 for n in value):
        refuse(op, f"{name} must be two positive ints (height, width)", value)


def four_edges(op: str, name: str, value: Edges) -> None:
    """Widths of the four edges."""
    if len(value) != 4 or not all(isinstance(n, int) and n >= 0 for n in value):
        refuse(op, f"{name} must be four ints of at least 0 (left, top, right, bottom)", value)


def span(low: float, high: float) -> Rule:
    """Two numbers in order, within low..high; None is left to the op."""

    def rule(op: str, name: str, value: Range | None) -> None:
        if value is not None and (len(value) != 2 or not low <= value[0] <= value[1] <= high):
            refuse(op, f"{name} must be (low, high) with {low} <= low <= high <= {high}", value)

    return rule


def whole(low: int | None = None, high: int | None = None) -> Rule:
    """An int within low..high, either of which may be left open."""
    within = f"of at least {low}" if high is None else f"of at most {high}" if low is None else f"in {low}..{high}"

    def rule(op: str, name: str, value: int) -> None:
        inside = isinstance(value, int) and (low is None or low <= value) and (high is None or value <= high)
        if not inside:
            refuse(op, f"{name} must be an int {within}", value)

    return rule


def pad_mode(op: str, name: str, value: str) -> None:
    """A mode of padding."""
    if value not in get_args(PadMode):
        refuse(op, f"{name} must be constant, edge, reflect or symmetric", value)


KEPT: Mapping[str, Rule] = {  # by the type that a field is declared with
    "Edges": four_edges,
    "PadMode": pad_mode,
    "Probability": probability,
    "Size": height_width,
}


# The fields of torchvision's transforms, and of those made like them: from a transform and an attribute's name.


def pair(t: Any, size: Any) -> tuple[int, int]:
    """A size as (height, width)."""
    both = [size, size] if isinstance(size, int) else list(size)
    if len(both) == 1:
        both *= 2
    if len(both) != 2:
        refuse(t, "size must be an int or (height, width)", size)
    return int(both[0]), int(both[1])


def numbers(values: Any) -> tuple[float, ...]:
    """The numbers in a list, a tensor, an array or a single number."""
    flat = values.tolist() if hasattr(values, "tolist") else values  # tensors, arrays and single numbers too
    return tuple(float(x) for x in flat) if isinstance(flat, Sequence) else (float(flat),)


def span_of(t: Any, name: str) -> Range:
    """A range as torchvision keeps it, which may be whatever it was given."""
    try:
        low, high = map(float, getattr(t, name))
    except (TypeError, ValueError):
        refuse(t, f"{name} must be (low, high)", getattr(t, name))
    return low, high


def _mode(*modes: str, shown: str) -> Callable[[Any, str], str]:
    def read(t: Any, name: str) -> str:
        mode = str(getattr(getattr(t, name), "value", getattr(t, name)))
        if mode not in modes:
            refuse(t, f"{name} must be {shown}", mode)
        return mode

    return read


_turning = _mode("nearest", "bilinear", shown="NEAREST or BILINEAR")
_interpolation = _mode(
    *("bilinear", "bicubic", "nearest", "nearest-exact"), shown="BILINEAR, BICUBIC, NEAREST or NEAREST_EXACT"
)


def _maybe_drawn(t: Any, name: str) -> str:
    """The interpolation of a resize of timm's may be a random one of two."""
    value = getattr(t, name)
    if not isinstance(value, tuple | list):
        return _interpolation(t, name)
    if sorted(str(getattr(mode, "value", mode)) for mode in value) != ["bicubic", "bilinear"]:
        refuse(t, f"{name} must be one mode, or random", value)
    return "random"


def _background(t: Any, name: str, *types: str) -> Background:
    """A fill; where it is given for each type of tv_tensors, that of `types`, of images unless they are said."""
    fill = getattr(t, name)
    if isinstance(fill, dict):
        known = {getattr(k, "__name__", str(k)): v for k, v in fill.items()}
        fill = next((known[kind] for kind in (*(types or ("Image", "Tensor")), "others") if kind in known), 0)
    levels = tuple(map(float, fill)) if isinstance(fill, Sequence) and not isinstance(fill, str) else (fill,)
    if len(levels) not in (1, 3) or not all(n is None or isinstance(n, int | float) for n in levels):
        refuse(t, f"{name} must be one number, or one for each of three channels", fill)
    if len(levels) == 3:
        return levels
    return None if levels[0] is None else float(levels[0])


def masks_of(t: Any, name: str) -> Masks:
    """What masks are filled with, where that is said for each type of tv_tensors; None: what images are."""
    return (_background(t, name, "Mask") or 0.0) if isinstance(getattr(t, name), dict) else None


def fill_of(t: Any, name: str) -> Fill:
    """The fill; black where none is given."""
    return _background(t, name) or 0.0


def _edges(t: Any, name: str) -> Edges:
    """Left, top, right, bottom. v2.RandomCrop keeps them as left, right, top, bottom."""
    padding = getattr(t, name) or 0
    edges = [padding] if isinstance(padding, int) else [int(edge) for edge in padding]
    if len(edges) not in (1, 2, 4):
        refuse(t, f"{name} must be an int, or 1, 2 or 4 of them", padding)
    if len(edges) == 4:
        a, b, c, d = edges
        swapped = type(t).__name__ == "RandomCrop" and type(t).__module__.startswith("torchvision.transforms.v2")
        return (a, c, b, d) if swapped else (a, b, c, d)
    across, down = edges[0], edges[-1]
    return across, down, across, down


READ: Mapping[str, Callable[[Any, str], Any]] = {  # by the type that a field is declared with
    "Antialias": lambda t, name: bool(getattr(t, name, True)),
    "Background": _background,
    "Edges": _edges,
    "Fill": fill_of,
    "Interpolation": _interpolation,
    "Interpolation | Drawn": _maybe_drawn,
    "Masks": lambda t, _: masks_of(t, "fill"),
    "PadMode": getattr,
    "Probability": lambda t, name: float(getattr(t, name)),
    "Range": span_of,
    "Size": lambda t, name: pair(t, getattr(t, name)),
    "Range | None": lambda t, name: None if getattr(t, name) is None else span_of(t, name),
    "Turning": _turning,
    "bool": lambda t, name: bool(getattr(t, name)),
    "float": lambda t, name: float(getattr(t, name)),
    "int": getattr,
    "tuple[int, int]": lambda t, name: pair(t, getattr(t, name)),
}
