"""torchvision's transforms, v1 and v2, and timm's, lowered (translated) to a recipe.

Transforms are recognised by class name and module, so torchvision is never imported here: a user who has a transform
has imported it. A transform that cannot be lowered is an error that names it; nothing is skipped in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from dali_feed.transforms.base import Op
from dali_feed.transforms.recipe import Recipe
from dali_feed.transforms.table import NESTS, TIMM, TORCHVISION, maker
from dali_feed.transforms.unknown import unknown
from dali_feed.transforms.wrappers import Chain, taken_apart

__all__ = ["SUPPORTED", "Beyond", "flatten", "is_theirs", "is_timm", "is_torchvision", "lower"]

SUPPORTED = ("Compose", "Identity", *sorted([*TORCHVISION, *NESTS]))

Beyond = Callable[[Any, tuple[Op, ...]], Op | None]


def is_torchvision(transform: object) -> bool:
    """Whether it is of a class of torchvision's own."""
    return f"{type(transform).__module__}.".startswith("torchvision.transforms.")


def is_timm(transform: object) -> bool:
    """Whether it is of a class of timm's own."""
    return f"{type(transform).__module__}.".startswith("timm.data.")


def is_theirs(transform: object) -> bool:
    """Whether it is of a class of torchvision's or timm's."""
    return is_torchvision(transform) or is_timm(transform)


def flatten(transform: Any) -> Iterable[Any]:
    """The single transforms of a Compose, torch's Sequential or an object that only holds transforms, nested ones too.

    Transforms that leave every image as it is are left out.
    """
    name, module = type(transform).__name__, type(transform).__module__
    ours, torchs = is_torchvision(transform), module.startswith("torch.nn.")
    inner: Iterable[Any]
    if name == "Compose" and ours:
        inner = transform.transforms
    elif name == "Sequential" and torchs:
        inner = transform
    elif name == "Identity" and (ours or torchs):
        return
    elif isinstance(transform, Chain):
        inner = transform.transforms
    else:
        apart = None if ours or torchs or is_timm(transform) else taken_apart(transform)
        if not isinstance(apart, Chain):
            yield transform
            return
        inner = apart.transforms
    for each in inner:
        yield from flatten(each)


def lower(transform: Any, beyond: Beyond | None = None) -> Recipe:
    """The recipe of a torchvision transform, a Compose of them, or None (pixels as decoded); a recipe is its own.

    `beyond` is called first for each transform, with the ops before it: it gives an op, or None to use the table of
    this room.

    Raises TransformError for a transform, or a setting of one, that cannot be lowered.
    """
    if isinstance(transform, Recipe):
        return transform
    return Recipe() if transform is None else Recipe(_ops(transform, beyond))


def _ops(transform: Any, beyond: Beyond | None, before: tuple[Op, ...] = ()) -> tuple[Op, ...]:
    ops: list[Op] = []
    for one in flatten(transform):
        so_far = (*before, *ops)
        found = None if beyond is None else beyond(one, so_far)
        ops += (found,) if found is not None else _known(one, beyond, so_far)
    return tuple(ops)


def _known(one: Any, beyond: Beyond | None, before: tuple[Op, ...]) -> tuple[Op, ...]:
    name = type(one).__name__
    if is_torchvision(one) and name in NESTS:
        return (maker(NESTS[name])(one, tuple(_ops(inner, beyond, before) for inner in one.transforms)),)
    table = TORCHVISION if is_torchvision(one) else TIMM if is_timm(one) else {}
    if name not in table:
        raise unknown(one, SUPPORTED)
    found: Op | tuple[Op, ...] = maker(table[name])(one)
    return found if isinstance(found, tuple) else (found,)
