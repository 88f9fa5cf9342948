"""The error for a transform that cannot be translated: its name as people write it, the nearest that can, the cure."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Iterable
from typing import Any

from dali_feed.errors import TransformError

__all__ = ["NotMadeError", "unknown"]


class NotMadeError(TransformError):
    """A class was given where an object of it is needed: no loader can run that."""


def unknown(one: Any, supported: Iterable[str]) -> TransformError:
    """The error for an object that cannot be lowered."""
    if inspect.isclass(one):
        error = NotMadeError if _makes_transforms(one) else TransformError
        return error(f"transform: {_public(one)} is a class, not a transform; write {one.__name__}(), with parentheses")
    made = getattr(one, "transforms", None)
    weights = isinstance(one, functools.partial) or isinstance(made, functools.partial)
    if weights:
        preset = one.func if isinstance(one, functools.partial) else made.func  # type: ignore[union-attr]
        name = getattr(preset, "__name__", "a function")
        call = "weights.transforms(), with parentheses"
        error = NotMadeError if _makes_transforms(preset) else TransformError
        return error(f"transform: {name} must be called to make a transform; write {call} (or call the partial)")
    kind = type(one)
    near = difflib.get_close_matches(kind.__name__, list(supported), n=1, cutoff=0.5)
    told = f" The nearest that is: torchvision's {near[0]}." if near and near[0] != kind.__name__ else ""
    return TransformError(
        f"transform: {_public(kind)} is not supported.{told} docs/transforms.md lists all that are; in a"
        " Compose a DataLoader also takes Lambda and functions of an image, and alone a DALI graph function (images,"
        " draws) -> images"
    )


def _makes_transforms(made: object) -> bool:
    """Whether it is a class whose objects can be called; one whose objects cannot may be a type to wrap images in."""
    return inspect.isclass(made) and any("__call__" in vars(base) for base in made.__mro__)


def _public(kind: type) -> str:
    """Its name with the module that people import it from."""
    module = kind.__module__
    for public in ("torchvision.transforms.v2", "torchvision.transforms", "torch.nn", "timm.data"):
        if module.startswith(f"{public}."):
            return f"{public}.{kind.__name__}"
    return f"{module}.{kind.__name__}"
