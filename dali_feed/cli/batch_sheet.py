"""One batch of a run as cells of a sheet: its images as a model gets them, who they are and what was drawn for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.cli.findings import blocks
from dali_feed.cli.sheet import Cell
from dali_feed.cli.told_draws import draws_told
from dali_feed.errors import ConfigError
from dali_feed.feed import Batch, Feed
from dali_feed.options import BadRecords, Decode
from dali_feed.records.source import LABEL, Extents, Source, unpack_ids
from dali_feed.screen.screen import header_of
from dali_feed.transforms.recipe import Recipe
from dali_feed.transforms.units import Place

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["Shown", "cells_of_batch"]


@dataclass(frozen=True, slots=True)
class Shown:
    """Which batch is shown: number `batch` of an epoch on one rank, as a run of that seed and shuffle has it."""

    batch: int = 0
    batch_size: int = 24
    epoch: int = 0
    seed: int = 0
    shuffle: bool = True


def cells_of_batch(source: Source, transform: object, shown: Shown) -> list[Cell]:
    """A cell per slot, by the host engine; what comes before the batch is not read.

    Raises ConfigError for a batch that the epoch has not, and for several views; what a Feed raises.
    """
    with Feed(
        source,
        shown.batch_size,
        shuffle=shown.shuffle,
        transform=transform,
        seed=shown.seed,
        decode=Decode(engine="host"),
        bad=BadRecords(limit=None),
    ) as feed:
        if len(feed.program.views) > 1:
            msg = f"--transform: must be one transform; found {len(feed.program.views)} views; show them one by one"
            raise ConfigError(msg)
        feed.set_epoch(shown.epoch)
        if shown.batch >= len(feed):
            msg = f"--batch: must lie in 0..{len(feed) - 1}, the batches of an epoch; found {shown.batch}"
            raise ConfigError(msg)
        first = shown.batch * shown.batch_size
        feed.load_state_dict({**feed.state_dict(), "epoch": shown.epoch, "consumed": first})
        wanted = feed.plan.ids(0, first, first + shown.batch_size) if hasattr(feed.plan, "ids") else None
        batch = next(iter(feed))
        reasons = dict(feed.stats().recent_bad)
        images = _images(batch, feed.program.recipe)
        draws = draws_told(feed.program, _sizes(source, feed, batch.ids), batch.ids, shown.seed, shown.epoch)
        return [
            Cell(
                feed.where(int(batch.ids[slot])),
                _label(batch, slot),
                image,
                tuple(draws[slot]),
                "" if batch.ok[slot] else _replaced(feed, wanted, slot, reasons),
            )
            for slot, image in enumerate(images)
        ]


def _label(batch: Batch, slot: int) -> str:
    values = batch.fields.get(LABEL)
    return "" if values is None else f"label {values[slot]}"


def _replaced(feed: Feed, wanted: NDArray[np.int64] | None, slot: int, reasons: dict[str, str]) -> str:
    if wanted is None:
        return "in place of another record"
    where = feed.where(int(wanted[slot]))
    return f"in place of {where}: {reasons.get(where, 'no record there')}"


def _sizes(source: Source, feed: Feed, ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Height and width in the headers of these records, int64 (n, 2), which are read again."""
    unique = np.unique(ids)
    partition, position = unpack_ids(unique)
    found: dict[int, tuple[int, int]] = {}
    for block in blocks(source, feed.snapshot, Extents(partition, position, position + 1)):
        for sample, payload in zip(block.ids.tolist(), block.payloads, strict=True):
            if payload is not None:
                header = header_of(payload)
                found[sample] = header.height, header.width
    return np.array([found[sample] for sample in ids.tolist()], np.int64).reshape(-1, 2)


def _images(batch: Batch, recipe: Recipe) -> Sequence[Image.Image]:
    """The finished images with levels of 0..255 again: what Normalize and ToDtype did to values is undone."""
    import torch
    from PIL import Image

    place = reduce(lambda place, op: op.place_behind(place), recipe.ops, Place())
    values: Any = torch.utils.dlpack.from_dlpack(batch).float().permute(0, 2, 3, 1)
    scale, bias = (torch.tensor(each, dtype=torch.float32) for each in (place.scale, place.bias))
    levels = ((values - bias) / scale).round().clamp(0, 255).byte().numpy()
    return [Image.fromarray(np.ascontiguousarray(each)) for each in levels]
