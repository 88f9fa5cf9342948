"""Lambda, and functions and modules of the user's own, in a Compose.

The law: a function gets what torchvision would give it. After the conversion to tensors that is one finished image (3,
height, width) on the batch's device, and transforms without random numbers may follow; before it, a PIL image, on an
engine's thread. Random numbers that it draws are its own: they are not repeated where a run is resumed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dali_feed.errors import TransformError
from dali_feed.transforms.colour import Grayscale
from dali_feed.transforms.convert import UserFunction, name_of
from dali_feed.transforms.lower import Chain, flatten, is_graph_function, is_theirs, is_timm, is_torchvision, lower
from dali_feed.transforms.op import Op, Recipe, walk
from dali_feed.transforms.program import as_views, outline

_PRESETS = {"ImageClassification", "ObjectDetection", "SemanticSegmentation"}
_TENSORS = {  # after these images are tensors
    *("ToTensor", "ToImage", "PILToTensor", "ToDtype", "ConvertImageDtype", "MaybeToTensor", "MaybePILToTensor"),
    *_PRESETS,
}
_CERTAIN = {  # without random numbers, so they may be run after a function as they are
    *(
        "CenterCrop",
        "ConvertImageDtype",
        "Grayscale",
        "Normalize",
        "Pad",
        "Resize",
        "ToDtype",
        "ToImage",
        "ToPureTensor",
    ),
}
_PURE = {
    "ToTensor",
    "PILToTensor",
    "ToPureTensor",
    "MaybeToTensor",
    "MaybePILToTensor",
    *_PRESETS,
}  # after these they are no tv_tensors.Image


@dataclass(frozen=True, slots=True)
class UserTransforms:
    """`functions` in their order; `typed`: the first gets a tv_tensors.Image, as torchvision's v2 hands it on."""

    functions: tuple[Callable[[Any], Any], ...]
    typed: bool

    def __call__(self, images: torch.Tensor, where: Callable[[int], str]) -> list[Any]:
        """Run them on each image. An exception goes on with a note of `where` the image of that slot is from."""
        return [self._one(image, slot, where) for slot, image in enumerate(images.unbind(0))]

    def _one(self, image: Any, slot: int, where: Callable[[int], str]) -> Any:
        if self.typed:
            from torchvision import tv_tensors

            image = tv_tensors.Image(image)
        for function in self.functions:
            try:
                image = function(image)
            except Exception as error:
                error.add_note(f"transform: {name_of(function)} raised it on the image of {where(slot)}")
                raise
        return image


def split(transform: Any) -> tuple[Any, tuple[UserTransforms | None, ...]]:
    """A transform without the user's functions at its end, and these functions, by view.

    The first is the transform as it was, or a recipe where functions of PIL images or gray of one channel are in it.

    Raises TransformError for a function at a place where it cannot be run.
    """
    views = as_views(transform)
    if views is None:
        kept, own = _split(transform)
        return kept, (own,)
    parts = [_split(each) for each in views]
    return [kept for kept, _ in parts], tuple(own for _, own in parts)


def leaves_pil(transform: Any) -> bool:
    """Whether torchvision would give a PIL image after it: nothing in it makes a tensor."""
    views = as_views(transform)
    parts = [transform] if views is None else views
    return any(
        not _TENSORS.intersection(type(one).__name__ for one in flatten(each) if is_theirs(one)) for each in parts
    )


def _split(transform: Any) -> tuple[Any, UserTransforms | None]:
    every = list(flatten(transform))
    if every == [transform] and not is_theirs(transform):  # no Compose: its error is raised where it is lowered
        return transform, None
    at = _first_tensor(every)
    first = next((n for n in range(at, len(every)) if _is_users(every[n])), len(every))
    for one in every[first:]:
        if not (_is_users(one) or (is_torchvision(one) and type(one).__name__ in _CERTAIN)):
            rest = (
                f"found {type(one).__name__} after it. Move it to the end (only transforms without random numbers "
                "may follow)"
            )
            name = name_of(every[first])
            raise TransformError(f"transform: {name} is run on finished images, so it must come last; {rest}")
    kept = every[:first]
    ready = lower(Chain(tuple(kept)), _beyond)
    plain = len(kept) == len(every) and not any(
        isinstance(op, UserFunction) or op == Grayscale(1) for _, op in walk(ready.ops)
    )
    names = [type(one).__name__ for one in kept if is_theirs(one)]
    last = next((name for name in reversed(names) if name in _PURE or name == "ToImage"), "")
    own = UserTransforms(tuple(every[first:]), typed=last == "ToImage") if first < len(every) else None
    return transform if plain else ready, own


def _first_tensor(every: list[Any]) -> int:
    """How many of them get a PIL image from torchvision; all, where none makes a tensor of it."""
    makes = (n for n, one in enumerate(every) if is_theirs(one) and type(one).__name__ in _TENSORS)
    return next(makes, len(every) - 1) + 1


def _beyond(one: Any, before: tuple[Op, ...]) -> Op | None:
    """The op of a transform that the table does not have: gray of one channel, or a user's function of a PIL image."""
    name = type(one).__name__
    if is_torchvision(one) and name == "Grayscale" and one.num_output_channels == 1:
        return Grayscale(1)
    if is_torchvision(one) and name == "RGB" and Recipe(before).channels == 1:
        msg = "RGB: makes three channels of one; found Grayscale(1) before it. Use Grayscale(3) and leave RGB out"
        raise TransformError(msg)
    if not _is_users(one):
        return None
    size = outline(Recipe(before)).size
    if size is None:
        raise TransformError(
            f"transform: {name_of(one)} is run on finished tensors, or PIL images of one size; found no "
            "conversion to either before it. Put ToTensor, or ToImage and ToDtype, there"
        )
    # A Lambda of v2 that is for masks, say, leaves an image as it is.
    every = not is_torchvision(one) or getattr(one, "types", (object,)) == (object,)
    function = one.lambd if is_torchvision(one) and every else one
    gray = Recipe(before).channels == 1
    _check_kept(function, name_of(one), size, "L" if gray else "RGB")
    return UserFunction(function, gray)


def _check_kept(function: Callable[[Any], Any], name: str, size: tuple[int, int], mode: str) -> None:
    """Try it on an image of that (height, width): a function between our steps must keep size and mode."""
    from torchvision.transforms.v2.functional import to_pil_image

    height, width = size
    rows = torch.arange(height)[:, None] + 2 * torch.arange(width)
    pixels = torch.stack([(rows * k % 256).to(torch.uint8) for k in ((1,) if mode == "L" else (1, 3, 5))])
    image = to_pil_image(pixels)
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002  what they may draw from
    try:
        result = function(image)
        outcome = f"{getattr(result, 'mode', type(result).__name__)} of {getattr(result, 'size', 'no size')}"
        kept = getattr(result, "size", None) == image.size and getattr(result, "mode", None) == mode
    except Exception as error:  # noqa: BLE001  whatever the user's code raises
        outcome, kept = f"{type(error).__name__}: {error}", False
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        torch.set_rng_state(states[2])
    if not kept:
        rule = (
            f"is run on finished tensors, or on PIL images whose mode and size it keeps; given {mode} of {image.size}"
        )
        raise TransformError(f"transform: {name} {rule} it gave {outcome}. Put it after the conversion to tensors")


def _is_users(one: Any) -> bool:
    if is_torchvision(one):
        return type(one).__name__ == "Lambda"
    return callable(one) and not isinstance(one, type) and not is_timm(one) and not is_graph_function(one)
