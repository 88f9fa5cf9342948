"""Items: a feed's batch as the tuples of tensors that a training loop is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dali_feed.feed import Batch, Feed
from dali_feed.torch_feed import moved

__all__ = ["Info", "Items"]


@dataclass(frozen=True, slots=True)
class Info:
    """What a batch is made of.

    ids    int64 (n,), on the CPU: (partition << 40) | position of the records in the slots
    ok     bool (n,), on the CPU: False where another record stands in for an absent or bad one
    where  the same records' coordinates as people write them
    """

    ids: torch.Tensor
    ok: torch.Tensor
    where: tuple[str, ...]


class Items:
    """Makes `(images, labels)`, `(images, labels, info)`, or what the user's collate_fn makes of the samples."""

    def __init__(
        self, feed: Feed, device: torch.device, collate_fn: Callable[[list[Any]], Any] | None, *, info: bool
    ) -> None:
        self._feed, self._device, self._wants_info = feed, device, info
        self._collate = None if collate_fn is torch.utils.data.default_collate else collate_fn
        self._last = feed.program.recipe.layout == "NHWC"

    def __call__(self, batch: Batch) -> Any:
        """The item of a batch."""
        images = self._as_made(batch)
        images = images.permute(0, 3, 1, 2) if self._last else images
        fields = [batch.fields[name] for name in self._feed.source.fields]
        if self._collate is not None:
            lists = [values.tolist() if isinstance(values, np.ndarray) else values for values in fields]
            samples = list(zip(images.unbind(0), *lists, strict=True)) if lists else list(images.unbind(0))
            item = moved(self._collate(samples), self._device)
            return (item, self._info(batch)) if self._wants_info else item
        out: list[Any] = [images, *map(self._field, fields)]
        if self._wants_info:
            out.append(self._info(batch))
        return tuple(out) if len(out) > 1 else images

    def _field(self, values: Any) -> Any:
        if isinstance(values, np.ndarray):
            return torch.from_numpy(values).to(self._device, non_blocking=True)
        return values

    def _info(self, batch: Batch) -> Info:
        where = tuple(map(self._feed._where, batch.ids.tolist()))
        return Info(torch.from_numpy(batch.ids), torch.from_numpy(batch.ok), where)

    def _as_made(self, batch: Batch) -> torch.Tensor:
        if batch.tail is not None:
            from dali_feed.engines.gpu_tail import finished  # CuPy: on a GPU only

            return finished(batch.images, batch.tail, self._device)
        if isinstance(batch.images, torch.Tensor):
            return batch.images
        images: torch.Tensor = torch.utils.dlpack.from_dlpack(batch.images)
        return images
