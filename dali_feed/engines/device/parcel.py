"""The small arrays of a batch on their way to a GPU: end to end in one page-locked block, which one copy moves.

The law: what arrives has the dtype, the shape and the bits of what was sent. What the training loop needs is there
before it asks: the feed thread packs and sends it.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dali_feed.engines.device.cuda import Device
from dali_feed.transforms.op import Key, viewed
from dali_feed.transforms.program import Tail

ALIGNED = 16  # bytes: the widest that a thread of a GPU loads at once, and a multiple of every item's size

_DTYPES = frozenset(
    np.dtype(name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
)


def can_travel(values: object) -> bool:
    """Whether it is an array of numbers in the machine's byte order, of a dtype that torch has too."""
    return isinstance(values, np.ndarray) and values.dtype.isnative and np.dtype(values.dtype.str) in _DTYPES


_ROWS = tuple(each.name for each in fields(Tail) if each.name != "finish")


def _part(block: torch.Tensor, start: int, like: NDArray[Any]) -> torch.Tensor:
    """The part of a block, from byte `start` on, that has that array: a view of it."""
    dtype: torch.dtype = getattr(torch, like.dtype.name)
    return block[start : start + like.nbytes].view(dtype).view(like.shape)


class Parcels:
    """Sends arrays to a device in blocks. Used by one thread."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._rooms: dict[int, torch.Tensor] = {}  # by the address, those given since the last call

    def room(self, size: int) -> NDArray[np.uint8]:
        """A block for an array of so many bytes: one that fills it is sent from there by the next call."""
        block = self._block(size)
        self._rooms[block.data_ptr()] = block
        return block.numpy()

    def __call__(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, torch.Tensor]:
        """Those of the arrays that can travel, sent in one copy, but for those in rooms of theirs.

        All but the latter may be changed at once.
        """
        arrays = {name: values for name, values in arrays.items() if can_travel(values)}
        sent = self._from_rooms(arrays)
        rest = {name: values for name, values in arrays.items() if name not in sent}
        if not rest:
            return sent
        ends = itertools.accumulate(-(-values.nbytes // ALIGNED) * ALIGNED for values in rest.values())
        *starts, size = 0, *ends
        block = self._block(size)
        for start, values in zip(starts, rest.values(), strict=True):
            _part(block, start, values).numpy()[...] = values
        one = self._device.send(block)
        for start, (name, values) in zip(starts, rest.items(), strict=True):
            sent[name] = _part(one, start, values)
        return sent

    def _block(self, size: int) -> torch.Tensor:
        return self._device.pinned((size,), torch.uint8)

    def _from_rooms(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, torch.Tensor]:
        rooms, self._rooms = self._rooms, {}
        sent = {}
        for name, values in arrays.items():
            block = rooms.get(values.__array_interface__["data"][0])
            if block is not None and values.nbytes == block.nbytes and values.flags.c_contiguous:
                sent[name] = _part(self._device.send(block), 0, values)
        return sent

    def with_tails(
        self, tails: list[Tail | None], arrays: Mapping[str, NDArray[Any]]
    ) -> tuple[list[Tail | None], dict[str, torch.Tensor]]:
        """The tails with their rows sent, and the arrays, all in one copy. No array is named as a row of a tail."""
        rows: dict[str, Any] = {}
        for view, tail in enumerate(tails):
            known = {name: None if tail is None else getattr(tail, name) for name in _ROWS}
            rows |= {viewed(Key(name), view): values for name, values in known.items() if values is not None}
        sent = self({**rows, **arrays})
        moved: list[Tail | None] = []
        for view, tail in enumerate(tails):
            own: dict[str, Any] = {
                name: sent[viewed(Key(name), view)] for name in _ROWS if viewed(Key(name), view) in rows
            }
            moved.append(None if tail is None else replace(tail, **own))
        return moved, {name: each for name, each in sent.items() if name in arrays}
