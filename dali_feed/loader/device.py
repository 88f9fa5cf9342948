"""A batch of any kind on its way to the device."""

from __future__ import annotations

import copy
from collections.abc import MutableMapping
from typing import Any

import torch

__all__ = ["moved"]


def moved(item: Any, device: torch.device) -> Any:
    """A batch with its tensors on the device, inside any lists, tuples and mappings; unchanged on the CPU."""
    if device.type == "cpu":
        return item
    if isinstance(item, torch.Tensor):
        return _pinned(item, device).to(device, non_blocking=True)
    if callable(getattr(item, "to", None)):
        return item.to(device)
    if isinstance(item, MutableMapping):
        out = copy.copy(item)  # of its own class
        out.update({key: moved(value, device) for key, value in item.items()})
        return out
    if isinstance(item, tuple) and hasattr(item, "_fields"):
        return type(item)(*(moved(value, device) for value in item))
    if isinstance(item, list | tuple):
        there = [moved(value, device) for value in item]
        return tuple(there) if isinstance(item, tuple) else there
    return item


def _pinned(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """In page-locked memory where it goes to a GPU: a copy from other memory waits for the GPU's queued work."""
    plain = type(tensor) is torch.Tensor and tensor.layout == torch.strided and not tensor.requires_grad
    if device.type == "cuda" and tensor.device.type == "cpu" and plain and not tensor.is_pinned():
        return tensor.pin_memory()  # of a tensor with a class of its own it would make a plain one
    return tensor
