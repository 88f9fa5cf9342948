"""One pass of torch's own DataLoader: each batch taken moves the state, and is counted."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sized
from typing import TYPE_CHECKING, Any

import torch

from dali_feed.errors import ClosedError

if TYPE_CHECKING:
    from dali_feed.loader.torch_feed import TorchFeed

__all__ = ["Passing", "moved"]


def moved(item: Any, device: torch.device) -> Any:
    """A batch with its tensors on the device, whatever lists, tuples and mappings they lie in; untouched on the CPU."""
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
    """In page-locked memory where it goes to a GPU: a copy from other memory waits for what the GPU has to do."""
    plain = type(tensor) is torch.Tensor and tensor.layout == torch.strided and not tensor.requires_grad
    if device.type == "cuda" and tensor.device.type == "cpu" and plain and not tensor.is_pinned():
        return tensor.pin_memory()  # of a tensor with a class of its own it would make a plain one
    return tensor


def _rows(item: Any, size: int) -> int:
    """How many samples are in a batch that nobody counted: the rows of the first tensor in it, or else `size`."""
    if isinstance(item, torch.Tensor):
        return len(item) if item.ndim else 1
    if isinstance(item, Mapping):
        item = list(item.values())
    if isinstance(item, list | tuple) and item:
        return len(item) if isinstance(item[0], str | bytes | int | float) else _rows(item[0], size)
    return size


class Passing:
    """One pass; each batch taken moves the state. Dropping it ends the pass."""

    def __init__(self, feed: TorchFeed, batches: Iterator[Any], count: int | None) -> None:
        self._feed, self._left = feed, count
        self._asked = iter(feed._order.batches)
        self._given: float | None = None
        self._batches: Iterator[Any] | None = batches
        self._ended = False

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
        """The next batch as torch's loader made it, which has its own timeout. What it raises ends the pass."""
        del timeout
        feed = self._feed
        if self._ended:
            raise StopIteration
        if self._batches is None:
            msg = (
                "iterator: an error, a newer pass over the same loader, set_epoch() or load_state_dict()"
                " has ended this pass"
            )
            raise ClosedError(msg)
        meter, begun = feed._meter, time.perf_counter()
        meter.trainer_wait += 0.0 if self._given is None else begun - self._given
        try:
            batch = next(self._batches)
        except StopIteration:
            self._batches, self._ended, feed._pass = None, True, None
            feed._at.ended()
            raise
        except BaseException:  # a batch is missing: none behind it may count
            feed._at.failed()
            feed._end()
            raise
        try:
            batch = batch if make is None else make(batch)
        except BaseException:
            feed._at.failed()
            feed._end()
            raise
        self._given = time.perf_counter()
        meter.step_waits.append(self._given - begun)
        meter.engine_wait += self._given - begun
        meter.batches += 1
        meter.samples += self._size(batch)
        count = 0
        if self._left is not None:
            self._left -= 1
            count = min(feed._part, feed._planned().length - feed._at.consumed)
        feed._at.took(count, last=self._left == 0)
        return batch

    def _size(self, batch: Any) -> int:
        """Samples in a batch: as many as were asked for."""
        if self._feed._single:
            return 1
        asked = next(self._asked, None)
        return len(asked) if isinstance(asked, Sized) else _rows(batch, self._feed.batch_size)

    def drop(self) -> None:
        """Leave it; the workers of one that is not persistent end, also where an error's traceback still holds them."""
        batches, self._batches = self._batches, None
        shutdown = getattr(batches, "_shutdown_workers", None)
        if shutdown is not None and batches is not self._feed._loader._iterator:
            shutdown()
