"""Lambda, and functions and modules of the user's own, at the end of a Compose: run on each finished image.

The law: a function sees what torchvision would hand it, one image (3, height, width) behind all transforms before it,
on the batch's device. What random numbers it draws are its own: they are not repeated where a run is resumed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from dali_feed.errors import TransformError
from dali_feed.graph_function import is_graph_function
from dali_feed.transforms import flatten, is_torchvision
from dali_feed.views import Views, as_views

__all__ = ["UserTransforms", "split"]

_TENSORS = {"ToTensor", "ToImage", "PILToTensor", "ToDtype", "ConvertImageDtype"}  # behind which images are tensors
_PURE = {"ToTensor", "PILToTensor", "ToPureTensor"}  # behind which they are no tv_tensors.Image


@dataclass(frozen=True, slots=True)
class UserTransforms:
    """`functions` in their order; `typed`: the first gets a tv_tensors.Image, as torchvision's v2 hands it on."""

    functions: tuple[Callable[[Any], Any], ...]
    typed: bool

    def __call__(self, images: torch.Tensor, where: Callable[[int], str]) -> list[Any]:
        """What they make of each image. An exception goes on with a note of `where` the image of that slot is from."""
        return [self._one(image, slot, where) for slot, image in enumerate(images.unbind(0))]

    def _one(self, image: Any, slot: int, where: Callable[[int], str]) -> Any:
        if self.typed:
            from torchvision import tv_tensors

            image = tv_tensors.Image(image)
        for function in self.functions:
            try:
                image = function(image)
            except Exception as error:
                error.add_note(f"transform: {_name(function)} raised it on the image of {where(slot)}")
                raise
        return image


def split(transform: Any) -> tuple[Any, tuple[UserTransforms | None, ...]]:
    """A transform without the user's functions at its end, and these, by view.

    Raises TransformError where one stands elsewhere.
    """
    views = as_views(transform)
    if views is None:
        kept, own = _split(transform)
        return kept, (own,)
    parts = [_split(each) for each in views.transforms]
    return Views(kept for kept, _ in parts), tuple(own for _, own in parts)


def _split(transform: Any) -> tuple[Any, UserTransforms | None]:
    every = list(flatten(transform))
    first = len(every)
    while first and _is_users(every[first - 1]):
        first -= 1
    if len(every) > 1 and any(isinstance(one, Views) for one in every):
        msg = "Views: stands in a Compose; found other transforms beside it. Give Views of whole transforms"
        raise TransformError(msg)
    if not any(map(_is_users, every)) or every[0] is transform:  # no Compose: what it is, is told elsewhere
        return transform, None
    early = next((n for n, one in enumerate(every[:first]) if _is_users(one)), None)
    if early is not None:
        found = f"found {_name(every[first - 1])} behind it. Move it to the end"
        msg = f"transform: {_name(every[early])} is run on finished images, so it must come last; {found}"
        raise TransformError(msg)
    names = [type(one).__name__ for one in every[:first] if is_torchvision(one)]
    if not _TENSORS.intersection(names):
        msg = (
            f"transform: {_name(every[first])} is run on finished tensors; found no conversion to one in front of it."
            " Put ToTensor, or ToImage and ToDtype, there"
        )
        raise TransformError(msg)
    last = next((name for name in reversed(names) if name in _PURE or name == "ToImage"), "")
    kept = type(transform)(every[:first]) if is_torchvision(transform) else type(transform)(*every[:first])
    return kept, UserTransforms(tuple(every[first:]), typed=last == "ToImage")


def _is_users(one: Any) -> bool:
    if is_torchvision(one):
        return type(one).__name__ == "Lambda"
    return callable(one) and not is_graph_function(one)


def _name(one: Any) -> str:
    inner = getattr(one, "lambd", one)
    shown = getattr(inner, "__qualname__", type(inner).__qualname__)
    return shown if inner is one else f"{type(one).__name__}({shown})"
