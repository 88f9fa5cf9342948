"""ToTensor, ToDtype, ConvertImageDtype: to another dtype, and to 0..1 where that is a float."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from dali_feed.errors import TransformError
from dali_feed.transforms.op import Effect, Graph, Op, Place, torch, v2
from dali_feed.transforms.settings import DType, numbers, refuse

_DTYPES: dict[str, DType] = {
    "torch.uint8": "uint8",
    "torch.float32": "float32",
    "torch.float16": "float16",
    "torch.bfloat16": "bfloat16",
}


@dataclass(frozen=True, slots=True)
class ToFloat(Op):
    """To a dtype; `scale` maps 0..255 to 0..1 where the dtype is a float."""

    dtype: DType = "float32"
    scale: bool = True

    normalized: ClassVar[bool] = True
    of_finish: ClassVar[bool] = True
    by_level: ClassVar[bool] = True

    @classmethod
    def of(cls, transform: Any) -> ToFloat:
        """From torchvision's ToDtype; where it has a dtype per kind of input, that of images."""
        dtype = transform.dtype
        if isinstance(dtype, dict):
            known = {getattr(k, "__name__", str(k)): v for k, v in dtype.items()}
            dtype = known.get("Image", known.get("Tensor", known.get("others")))
        return cls._named(transform, dtype, scale=bool(transform.scale))

    @classmethod
    def converting(cls, transform: Any) -> ToFloat:
        return cls._named(transform, transform.dtype, scale=True)

    @classmethod
    def to_tensor(cls, transform: Any) -> ToFloat:
        del transform
        return cls("float32", scale=True)

    @classmethod
    def whole_levels(cls, transform: Any) -> ToFloat:
        """From timm's own ToTensor, which leaves 0..255 as they are."""
        name = str(transform.dtype).removeprefix("torch.")
        if name not in ("uint8", "float32", "float16", "bfloat16"):
            refuse(transform, "dtype must be uint8, float32, float16 or bfloat16", transform.dtype)
        return cls(name, scale=False)  # type: ignore[arg-type]

    @classmethod
    def _named(cls, transform: Any, dtype: object, *, scale: bool) -> ToFloat:
        name = str(dtype)
        if name not in _DTYPES:
            refuse(transform, f"dtype must be one of {', '.join(_DTYPES)}", name)
        return cls(_DTYPES[name], scale)

    def check(self, dtype: str) -> None:
        if dtype != "uint8" and self.dtype == "uint8":
            raise TransformError(f"ToDtype: {dtype} pixels cannot become uint8 again; leave out the first conversion")

    def output_place(self, place: Place) -> Place:
        """Pixels after it. Only the first conversion, from whole levels, scales."""
        scales = place.dtype == "uint8" and self.dtype != "uint8" and self.scale
        return replace(place, dtype=self.dtype, scale=place.scale / 255 if scales else place.scale)

    def image(self, image: Any) -> Any:
        return v2.functional.to_dtype_image(image, getattr(torch, self.dtype), scale=self.scale)

    def dali(self, graph: Graph) -> None:
        """Left for the last step, which goes by the units of its place."""


# Normalize: (value - mean) / std per channel.


@dataclass(frozen=True, slots=True)
class Normalize(Op):
    """(value - mean) / std per channel, in the units that pixels have at this point."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    normalized: ClassVar[bool] = True
    normalizes: ClassVar[bool] = True
    of_finish: ClassVar[bool] = True
    by_level: ClassVar[bool] = True

    def agree(self) -> None:
        if len(self.mean) not in (1, 3) or len(self.std) not in (1, 3):
            refuse("Normalize", "mean and std need one value per channel (3)", (self.mean, self.std))
        if not all(s > 0 for s in self.std):
            refuse("Normalize", "std must be positive", self.std)

    @classmethod
    def of(cls, transform: Any) -> Normalize:
        mean, std = numbers(transform.mean), numbers(transform.std)
        if any(math.isnan(x) for x in mean + std):
            refuse(transform, "mean and std must be numbers", (mean, std))
        return cls(mean, std)

    def check(self, dtype: str) -> None:
        if dtype == "uint8":
            cure = "Put ToTensor or ToDtype(torch.float32, scale=True) first"
            raise TransformError(f"Normalize: needs float pixels; found uint8. {cure}")

    def output_place(self, place: Place) -> Place:
        mean, std = np.broadcast_to(self.mean, 3), np.broadcast_to(self.std, 3)
        return replace(place, scale=place.scale / std, bias=(place.bias - mean) / std)

    def image(self, image: Any) -> Any:
        return v2.functional.normalize_image(image, list(self.mean), list(self.std))

    def dali(self, graph: Graph) -> None:
        """Left for the last step, which goes by the units of its place."""


# An op of the user's own: a function of one PIL image, somewhere in front of the conversion to tensors.
#
# It gets the PIL image that torchvision would give it. Many threads call it at once, each with an image of its own.


def name_of(one: Any) -> str:
    """What a user calls a function, or an object that is called like one."""
    inner = getattr(one, "lambd", one)
    shown: str = getattr(inner, "__qualname__", type(inner).__qualname__)
    return shown if inner is one else f"{type(one).__name__}({shown})"


@dataclass(frozen=True, slots=True)
class UserFunction(Effect):
    """`function` of a PIL image, which gives one of the same size and mode; `gray`: of mode L, else RGB.

    Random numbers that it draws are its own and are not repeated by a resume.
    """

    function: Callable[[Any], Any]
    gray: bool = False

    streams: ClassVar[int] = 0
    moves: ClassVar[bool | None] = None

    def check(self, dtype: str) -> None:
        if dtype != "uint8":
            rule = f"takes PIL images, so it must stand before the conversion to {dtype}"
            raise TransformError(f"transform: {name_of(self.function)} {rule}")

    def image(self, image: Any, on: Any) -> Any:
        """What the function makes of the image. Raises TransformError where it fails, or changes mode or size."""
        picture = v2.functional.to_pil_image((image[:1] if self.gray else image).contiguous())
        try:
            changed = self.function(picture)
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            msg = f"transform: {name_of(self.function)} raised on an image that can be decoded; {what}"
            raise TransformError(msg) from error
        mode = picture.mode
        if getattr(changed, "size", None) != picture.size or getattr(changed, "mode", None) != mode:
            shown = f"{getattr(changed, 'mode', type(changed).__name__)} of {getattr(changed, 'size', 'no size')}"
            rule = f"must give a PIL image of the mode and size that it was given, {mode} of {picture.size}"
            msg = f"transform: {name_of(self.function)} {rule}; found {shown}. Use torch's own DataLoader with it"
            raise TransformError(msg)
        return v2.functional.pil_to_tensor(changed).to(image.device)
