"""Images in the memory of a device, a row for each record: what a cache there keeps.

The law: a row is given for the record and the parameters that it was made with, and for no others. Nothing is taken
away until all is. Where the device has no memory left, nothing more is kept; it is never an error.
"""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dali_feed.engines.failures import out_of_memory

__all__ = ["DeviceRows"]

FIRST = 64 << 20  # bytes; then each time as many as are held: few pieces, of which the last may be empty in part

log = logging.getLogger("dali_feed")

Rows = NDArray[np.int64]


class DeviceRows:
    """Rows of one shape, in up to `limit` bytes of `device`; `forget` says of how many records, before the first.

    first  bytes that are taken first
    held   bytes that are taken now
    Used by one thread, on whatever stream is current there: always the same one.
    """

    def __init__(self, limit: int, device: torch.device) -> None:
        self._limit, self._device, self.first = limit, device, FIRST
        self.hits = self.misses = 0
        self.forget(0)

    def forget(self, records: int) -> None:
        """Let all go: from here on rows are of another snapshot, of so many records."""
        self._most = records
        self._at: dict[int, int] = {}
        self._pieces: list[tuple[int, torch.Tensor]] = []  # the number of the first row, and (rows, bytes of one)
        self._room = 0  # rows that all of them have
        self._kind: tuple[tuple[int, ...], torch.dtype] | None = None
        self._keys = np.zeros((0, 0), np.uint8)
        self._full = False
        self.held = 0  # bytes

    def __len__(self) -> int:
        return len(self._at)

    def find(self, ids: NDArray[np.int64], keys: NDArray[np.uint8]) -> Rows:
        """The rows of records whose parameters are `keys` (n, bytes); -1 where there is none."""
        get = self._at.get
        at = np.fromiter((get(sample, -1) for sample in ids.tolist()), np.int64, len(ids))
        if not self._at or self._keys.shape[1] != keys.shape[1]:
            at[:] = -1
        else:
            at[(self._keys[at] != keys).any(axis=1)] = -1
        found = int((at >= 0).sum())
        self.hits, self.misses = self.hits + found, self.misses + len(ids) - found
        return at

    def new(self, count: int) -> torch.Tensor:
        """Memory for a batch of rows, of which there are some."""
        shape, dtype = self._kind or ((), torch.uint8)
        return torch.empty((count, *shape), dtype=dtype, device=self._device)

    def give(self, at: Rows, slots: Rows, out: torch.Tensor) -> None:
        """Copy the rows to these slots of a batch."""
        flat = _bytes(out)
        for first, piece in self._pieces:
            here = (at >= first) & (at < first + len(piece))
            if here.any():
                flat.index_copy_(0, self.there(slots[here]), piece.index_select(0, self.there(at[here] - first)))

    def row(self, number: int) -> torch.Tensor:
        """An image where it lies."""
        shape, dtype = self._kind or ((), torch.uint8)
        first, piece = next(each for each in reversed(self._pieces) if each[0] <= number)
        return piece[number - first].view(dtype).view(shape)

    def there(self, numbers: NDArray[Any]) -> torch.Tensor:
        """Numbers on the device, without a wait."""
        here = torch.from_numpy(np.ascontiguousarray(numbers))
        return here if self._device.type == "cpu" else here.pin_memory().to(self._device, non_blocking=True)

    def keep(self, ids: NDArray[np.int64], keys: NDArray[np.uint8], images: torch.Tensor) -> None:
        """Keep images of records that are not there yet, as many as there is room for."""
        if self._full or not len(ids):
            return
        if self._kind is None:
            self._kind = tuple(images.shape[1:]), images.dtype
            self._keys = np.zeros((0, keys.shape[1]), np.uint8)
        if self._kind != (tuple(images.shape[1:]), images.dtype) or self._keys.shape[1] != keys.shape[1]:
            return
        fresh = {sample: slot for slot, sample in enumerate(ids.tolist()) if sample not in self._at}
        flat, wanted = _bytes(images), np.array(list(fresh.values()), np.int64)
        while len(wanted) and (len(self._at) < self._room or self._grown(flat.shape[1])):
            first, piece = self._pieces[-1]
            used = len(self._at) - first
            now, wanted = wanted[: len(piece) - used], wanted[len(piece) - used :]
            whole = len(now) == len(flat)
            piece[used : used + len(now)].copy_(flat if whole else flat.index_select(0, self.there(now)))
            self._keys[first + used : first + used + len(now)] = keys[now]
            self._at.update(zip(ids[now].tolist(), range(first + used, first + used + len(now)), strict=True))

    def _grown(self, row: int) -> bool:
        """Take memory for more rows of so many bytes."""
        rows = min(max(1, self.first // row, self._room), self._most - self._room, (self._limit - self.held) // row)
        if self._full or rows <= 0:
            self._full = True
            return False
        try:
            piece = torch.empty((rows, row), dtype=torch.uint8, device=self._device)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            self._full = True
            log.warning(
                "Cache(device=...): %s has no memory for %.0f MB more; %s images in %.0f of %.0f MB stay there,"
                " and no more are added",
                self._device,
                rows * row / 1e6,
                f"{len(self._at):,}",
                self.held / 1e6,
                self._limit / 1e6,
            )
            return False
        self._pieces.append((self._room, piece))
        self._keys = np.concatenate([self._keys, np.zeros((rows, self._keys.shape[1]), np.uint8)])
        self._room, self.held = self._room + rows, self.held + rows * row
        return True


def _bytes(images: torch.Tensor) -> torch.Tensor:
    """Dense images as bytes (n, bytes of one): a view."""
    return images.reshape(len(images), math.prod(images.shape[1:])).view(torch.uint8)
