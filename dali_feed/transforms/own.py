"""An op of the user's own: a function of one PIL image, somewhere in front of the conversion to tensors.

It gets the PIL image that torchvision would give it. Many threads call it at once, each with an image of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from dali_feed.errors import TransformError
from dali_feed.transforms.base import Effect, OnImage

__all__ = ["Own", "name_of"]


def name_of(one: Any) -> str:
    """What a user calls a function, or an object that is called like one."""
    inner = getattr(one, "lambd", one)
    shown: str = getattr(inner, "__qualname__", type(inner).__qualname__)
    return shown if inner is one else f"{type(one).__name__}({shown})"


@dataclass(frozen=True, slots=True)
class Own(Effect):
    """`function` of a PIL image, which gives one of the same size and mode; `gray`: of mode L, else RGB.

    Random numbers that it draws are its own and are not repeated by a resume.
    """

    function: Callable[[Any], Any]
    gray: bool = False

    streams: ClassVar[int] = 0
    of_pil: ClassVar[bool] = True

    def follow_steps(self, n: int) -> list[OnImage]:
        self.no_follower()

    def check(self, dtype: str) -> None:
        if dtype != "uint8":
            rule = f"takes PIL images, so it must stand before the conversion to {dtype}"
            msg = f"transform: {name_of(self.function)} {rule}"
            raise TransformError(msg)

    def image(self, image: Any, row: Any) -> Any:
        """What the function makes of the image. Raises TransformError where it fails, or changes mode or size."""
        from torchvision.transforms.v2 import functional

        given = functional.to_pil_image((image[:1] if self.gray else image).contiguous())
        try:
            made = self.function(given)
        except Exception as error:
            told = f"{type(error).__name__}: {error}"
            msg = f"transform: {name_of(self.function)} raised on an image that can be decoded; {told}"
            raise TransformError(msg) from error
        mode = given.mode
        if getattr(made, "size", None) != given.size or getattr(made, "mode", None) != mode:
            found = f"{getattr(made, 'mode', type(made).__name__)} of {getattr(made, 'size', 'no size')}"
            rule = f"must give a PIL image of the mode and size that it was given, {mode} of {given.size}"
            msg = f"transform: {name_of(self.function)} {rule}; found {found}. Use torch's own DataLoader with it"
            raise TransformError(msg)
        return functional.pil_to_tensor(made).to(image.device)
