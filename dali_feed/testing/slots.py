"""What a trainer can see of each slot of a batch, for comparing runs."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from dali_feed.columns.packed import PackedBatch
from dali_feed.engines.engine import Pixels
from dali_feed.feed import Batch


@dataclass(frozen=True, slots=True)
class Slot:
    """What a trainer can see of one slot."""

    sample: int
    ok: bool
    fields: tuple[Any, ...]
    pixels: str


Slots = list[Slot]
Packs = list[tuple[Any, ...]]


def slots_of(batch: Batch) -> Slots:
    """The slots of a batch, in order."""
    pixels = [_hashed(np.zeros(1))] * len(batch) if batch.images is None else _rows(batch)
    columns = [_rows(values) for values in batch.fields.values() if not isinstance(values, PackedBatch)]
    return [
        Slot(
            int(sample),
            bool(ok),
            tuple(column[k] for column in columns),
            pixels[k],
        )
        for k, (sample, ok) in enumerate(zip(batch.ids.tolist(), batch.ok.tolist(), strict=True))
    ]


def packs_of(batch: Batch) -> Packs:
    """What a trainer can see of packed columns, in order: their rows are of several slots."""
    packed = [(name, values) for name, values in batch.fields.items() if isinstance(values, PackedBatch)]
    return [(name, *map(_hashable, row)) for name, values in packed for row in _rows(values)]


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _rows(values: Any) -> list[Any]:
    """A field's values, one per slot; of several arrays a tuple per slot, of images a hash of each one's pixels."""
    if isinstance(values, Pixels):
        try:
            pixels = np.asarray(values.images)
        except TypeError:  # bfloat16, which NumPy does not know; float32 holds it exactly
            pixels = np.asarray(values.images.float())
        return [_hashed(image) for image in pixels]
    if isinstance(values, tuple):
        return list(zip(*map(_rows, values), strict=True))
    return values.tolist() if isinstance(values, np.ndarray) else list(values)


def _hashed(pixels: Any) -> str:
    return hashlib.blake2b(np.ascontiguousarray(pixels).tobytes(), digest_size=8).hexdigest()
