"""Columns as their kinds made them, given to a training loop: arrays as tensors, all else as it is.

A kind gives a batch an array, a list of n values, or a named tuple of those: a user's own kind too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["arrays_of", "given_out", "per_sample"]


def arrays_of(name: str, values: Any) -> dict[str, NDArray[Any]]:
    """The arrays of numbers in a column, by `name`, or by "name.part" for each part of a named tuple."""
    if _is_named(values):
        return {f"{name}.{part}": _sound(each) for part, each in values._asdict().items() if _is_numbers(each)}
    return {name: _sound(values)} if _is_numbers(values) else {}


def given_out(
    name: str, values: Any, given: Callable[[str], torch.Tensor], moved: Callable[[torch.Tensor], torch.Tensor]
) -> Any:
    """A column with tensors on the device in place of arrays of numbers.

    `given` has those that `arrays_of` named; `moved` takes a tensor there: of an array of one record, as its boxes.
    """
    if _is_named(values):
        parts = values._asdict().items()
        return type(values)(*(given_out(f"{name}.{part}", each, given, moved) for part, each in parts))
    if _is_numbers(values):
        return given(name)
    if type(values) is not list:
        return values
    return [moved(torch.from_numpy(_sound(value))) if _is_numbers(value) else value for value in values]


def per_sample(values: Any) -> list[Any]:
    """A column as a list of one value per sample, for a collate_fn; tensors are on the CPU.

    A column of numbers, (n,), gives Python's, as torch's datasets do; a named tuple one of tensors per sample.
    """
    if _is_named(values):
        parts = ([torch.as_tensor(v) for v in each] if _is_numbers(each) else per_sample(each) for each in values)
        return [type(values)(*row) for row in zip(*parts, strict=True)]
    if isinstance(values, np.ndarray) and values.ndim == 1:
        numbers: list[Any] = values.tolist()
        return numbers
    return [torch.from_numpy(_sound(value)) if _is_numbers(value) else value for value in values]


def _is_named(values: Any) -> bool:
    return isinstance(values, tuple) and hasattr(values, "_fields")


def _is_numbers(values: Any) -> bool:
    """Whether it is an array of what torch can hold."""
    return isinstance(values, np.ndarray) and values.dtype.kind in "biufc" and values.dtype.isnative


def _sound(array: NDArray[Any]) -> NDArray[Any]:
    """The array, copied where torch takes none of its kind: read-only, or read backwards as `image[..., ::-1]` is."""
    return array if array.flags.writeable and min(array.strides, default=0) >= 0 else array.copy()
