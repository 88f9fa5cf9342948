"""One pass of torch's own DataLoader: each batch taken moves the position, and is counted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sized
from typing import Any

import torch
from torch.utils.data import DataLoader as TorchLoader

from dali_feed.errors import ClosedError
from dali_feed.feed.meter import Meter
from dali_feed.loader.torch_planning import Rest
from dali_feed.plan.position import Position

__all__ = ["Passing"]


def _rows(item: Any, size: int) -> int:
    """How many samples are in a batch of unknown size: the rows of the first tensor in it, or else `size`."""
    if isinstance(item, torch.Tensor):
        return len(item) if item.ndim else 1
    if isinstance(item, Mapping):
        item = list(item.values())
    if isinstance(item, list | tuple) and item:
        return len(item) if isinstance(item[0], str | bytes | int | float) else _rows(item[0], size)
    return size


class Passing:
    """One pass; each batch taken moves the position. Dropping it ends the pass."""

    def __init__(self, loader: TorchLoader[Any], rest: Rest, at: Position, meter: Meter) -> None:
        self._loader, self._rest, self._at, self._meter = loader, rest, at, meter
        self._left = rest.count
        self._asked = iter(rest.asked)
        self._given: float | None = None
        self._batch = 0
        self._batches: Iterator[Any] | None = iter(loader)
        self._ended = False

    @property
    def under_way(self) -> bool:
        """Whether it may still give batches."""
        return self._batches is not None

    def __len__(self) -> int:
        """Batches still to come; TypeError for an iterable-style dataset."""
        if self._left is None:
            msg = "an iterable-style dataset does not say how many batches are still to come"
            raise TypeError(msg)
        return self._left

    def __iter__(self) -> Passing:
        return self

    def __next__(self) -> Any:
        return self.take()

    def take(self, timeout: float | None = None, make: Callable[[Any], Any] | None = None) -> Any:
        """The next batch as torch's loader made it, which has its own timeout. An error of it ends the pass."""
        del timeout
        if self._ended:
            raise StopIteration
        if self._batches is None:
            msg = (
                "iterator: an error, a newer pass over the same loader, set_epoch() or load_state_dict()"
                " has ended this pass"
            )
            raise ClosedError(msg)
        meter, begun = self._meter, time.perf_counter()
        meter.trainer_wait += 0.0 if self._given is None else begun - self._given
        meter.loop.asked(begun, first=self._given is None)
        try:
            batch = next(self._batches)
        except StopIteration:
            self._batches, self._ended = None, True
            self._at.ended()
            raise
        except BaseException:  # a batch is missing: none behind it may count
            self._failed()
            raise
        came = time.perf_counter()
        meter.steps.add(begun, came, None, first=not self._batch)
        meter.loop.came(came)
        self._batch += 1
        try:
            batch = batch if make is None else make(batch)
        except BaseException:
            self._failed()
            raise
        self._given = time.perf_counter()
        meter.engine_wait += self._given - begun
        meter.batches += 1
        size = self._size(batch)
        meter.samples += size
        meter.loop.given(size)
        count = 0
        if self._left is not None:
            self._left -= 1
            count = min(self._rest.part, self._rest.length - self._at.consumed)
        self._at.took(count, last=self._left == 0)
        return batch

    def _size(self, batch: Any) -> int:
        """Samples in a batch: as many as its indices."""
        if self._rest.single:
            return 1
        asked = next(self._asked, None)
        return len(asked) if isinstance(asked, Sized) else _rows(batch, self._rest.size)

    def _failed(self) -> None:
        self._at.failed()
        self.drop()

    def drop(self) -> None:
        """Leave the pass; workers that are not persistent end, also where an error's traceback still holds them."""
        batches, self._batches = self._batches, None
        shutdown = getattr(batches, "_shutdown_workers", None)
        if shutdown is not None and batches is not getattr(self._loader, "_iterator", None):
            shutdown()
