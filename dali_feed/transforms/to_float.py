"""ToTensor, ToDtype, ConvertImageDtype: to another dtype, and to 0..1 where that is a float."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from dali_feed.errors import TransformError
from dali_feed.transforms.base import Arrays, OnImage, Op
from dali_feed.transforms.fields import fail
from dali_feed.transforms.graph import Graph
from dali_feed.transforms.rules import DType
from dali_feed.transforms.units import Place

__all__ = ["ToFloat"]

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
        """From torchvision's ConvertImageDtype."""
        return cls._named(transform, transform.dtype, scale=True)

    @classmethod
    def to_tensor(cls, transform: Any) -> ToFloat:
        """From ToTensor and similar classes."""
        del transform
        return cls("float32", scale=True)

    @classmethod
    def whole_levels(cls, transform: Any) -> ToFloat:
        """From timm's own ToTensor, which leaves 0..255 as they are."""
        name = str(transform.dtype).removeprefix("torch.")
        if name not in ("uint8", "float32", "float16", "bfloat16"):
            raise fail(transform, "dtype must be uint8, float32, float16 or bfloat16", transform.dtype)
        return cls(name, scale=False)  # type: ignore[arg-type]

    @classmethod
    def _named(cls, transform: Any, dtype: object, *, scale: bool) -> ToFloat:
        name = str(dtype)
        if name not in _DTYPES:
            raise fail(transform, f"dtype must be one of {', '.join(_DTYPES)}", name)
        return cls(_DTYPES[name], scale)

    def check(self, dtype: str) -> None:
        if dtype != "uint8" and self.dtype == "uint8":
            msg = f"ToDtype: {dtype} pixels cannot become uint8 again; leave out the first conversion"
            raise TransformError(msg)

    def place_behind(self, place: Place) -> Place:
        """Pixels after it. Only the first conversion, from whole levels, scales."""
        scales = place.dtype == "uint8" and self.dtype != "uint8" and self.scale
        return replace(place, dtype=self.dtype, scale=place.scale / 255 if scales else place.scale)

    def host_steps(self, n: int, *, window: bool = False) -> list[OnImage]:
        def apply(image: Any, _: Arrays, __: int) -> Any:
            import torch
            from torchvision.transforms.v2 import functional

            return functional.to_dtype_image(image, getattr(torch, self.dtype), scale=self.scale)

        return [apply]

    def into_batch(self) -> Callable[[Any, Any], None] | None:
        """Torchvision's operations on uint8 in its order, so its bits, without a copy of the image between them."""
        if self.dtype == "uint8":
            return None
        import torch

        scale = self.scale
        # A tensor for float32: torch would make one from the number at each call. The others multiply in float32.
        share: Any = torch.tensor(1 / 255) if self.dtype == "float32" else 1 / 255

        def write(image: Any, out: Any) -> None:
            out.copy_(image)  # one call for both would cost twice as much: dtypes and strides of the two differ
            if scale:
                out.mul_(share)

        return write

    def in_graph(self, graph: Graph, first: int) -> None:
        graph.place = self.place_behind(graph.place)
