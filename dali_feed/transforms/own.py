"""An op of the user's own: a function of one PIL image, somewhere in front of the conversion to tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["Own", "name_of"]


def name_of(one: Any) -> str:
    """What a user calls a function, or an object that is called like one."""
    inner = getattr(one, "lambd", one)
    shown: str = getattr(inner, "__qualname__", type(inner).__qualname__)
    return shown if inner is one else f"{type(one).__name__}({shown})"


@dataclass(frozen=True, slots=True)
class Own:
    """`function` of a PIL image, which gives one of the same size and mode; `gray`: of mode L, else RGB.

    What it draws at random is its own.
    """

    function: Callable[[Any], Any]
    gray: bool = False
