"""Parcel: the small arrays that go with a batch, end to end in one block of bytes, so that one copy moves them all.

The law: an unpacked array has the dtype, the shape and the bits of the packed one, wherever the block is unpacked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dali_feed.engines.device.cuda import Device
from dali_feed.transforms.keys import Key, viewed
from dali_feed.transforms.program import Tail

__all__ = ["ALIGNED", "Parcels", "can_travel", "pack", "packing", "unpacked"]


ALIGNED = 16  # bytes: the widest that a thread of a GPU loads at once, and a multiple of every item's size

_DTYPES = frozenset(
    np.dtype(name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
)


@dataclass(frozen=True, slots=True)
class ParcelPart:
    """Where an array lies in its block: `nbytes` from byte `start` on, C contiguous, in the machine's byte order."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int

    @property
    def nbytes(self) -> int:
        """Bytes of the array alone."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Packing:
    """Which array lies where in a block of `size` bytes. Parts begin at multiples of ALIGNED and do not overlap."""

    parts: Mapping[str, ParcelPart]
    size: int


def can_travel(values: object) -> bool:
    """Whether it is an array of numbers in the machine's byte order, of a dtype that torch has too."""
    return isinstance(values, np.ndarray) and values.dtype.isnative and np.dtype(values.dtype.str) in _DTYPES


def packing(arrays: Mapping[str, NDArray[Any]]) -> Packing:
    """How those arrays, of which each can travel, lie in a block, in their order."""
    parts, end = dict[str, ParcelPart](), 0
    for name, values in arrays.items():
        start = -(-end // ALIGNED) * ALIGNED
        parts[name] = ParcelPart(np.dtype(values.dtype.str), values.shape, start)
        end = start + values.nbytes
    return Packing(parts, end)


def pack(plan: Packing, arrays: Mapping[str, NDArray[Any]], block: NDArray[np.uint8]) -> None:
    """Write the arrays, of any strides, into `block`, uint8 (size,); bytes between them stay what they are."""
    for name, part in plan.parts.items():
        unpacked(part, block)[...] = arrays[name]


def unpacked(part: ParcelPart, block: NDArray[np.uint8]) -> NDArray[Any]:
    """An array of the block: a view."""
    return block[part.start : part.start + part.nbytes].view(part.dtype).reshape(part.shape)


# The small arrays of a batch on their way to a GPU: one page-locked block, one copy.
#
# The law: the arrays that the training loop needs are on the GPU before it asks. The feed thread packs and sends them.


_ROWS = tuple(each.name for each in fields(Tail) if each.name != "finish")


def _there(part: ParcelPart, block: torch.Tensor) -> torch.Tensor:
    """An array of a block that has been sent: a view of it."""
    raw = block[part.start : part.start + part.nbytes]
    return raw.view(getattr(torch, part.dtype.name)).view(part.shape)


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
        plan = packing(rest)
        block = self._block(plan.size)
        pack(plan, rest, block.numpy())
        one = self._device.send(block)
        return sent | {name: _there(part, one) for name, part in plan.parts.items()}

    def _block(self, size: int) -> torch.Tensor:
        return self._device.pinned((size,), torch.uint8)

    def _from_rooms(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, torch.Tensor]:
        rooms, self._rooms = self._rooms, {}
        sent = {}
        for name, values in arrays.items():
            block = rooms.get(values.__array_interface__["data"][0])
            if block is not None and values.nbytes == block.nbytes and values.flags.c_contiguous:
                sent[name] = _there(packing({name: values}).parts[name], self._device.send(block))
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
