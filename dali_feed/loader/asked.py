"""What a user gave a DataLoader, in groups: what a batch contains, our options, torch's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dali_feed.columns.kind import Kind
from dali_feed.options import BadRecords, Decode, Tuning
from dali_feed.plan.order import Shuffle
from dali_feed.transforms.mixing import Mixing

__all__ = ["Asked", "Content", "OurOptions", "TorchOptions"]


@dataclass(frozen=True, slots=True)
class Content:
    """What a batch contains, beside its size: arguments of Feed and TorchFeed alike."""

    shuffle: bool | Shuffle | None
    sampler: Iterable[int] | None
    drop_last: bool
    seed: int
    lanes: int | None
    rank: int
    world_size: int


@dataclass(frozen=True, slots=True)
class OurOptions:
    """Arguments that torch's loader does not have; None where not given."""

    transform: object
    decode: Decode
    bad: BadRecords
    info: bool | None
    tuning: Tuning
    columns: Mapping[str, Kind] | Sequence[Kind] | None


@dataclass(frozen=True)
class TorchOptions:
    """torch's arguments for how batches are made, not what is in them, by torch's names, for `vars`."""

    num_workers: int
    collate_fn: Callable[[list[Any]], Any] | Mixing | None
    pin_memory: bool
    timeout: float
    worker_init_fn: Any
    multiprocessing_context: Any
    generator: torch.Generator | None
    prefetch_factor: int | None
    persistent_workers: bool
    pin_memory_device: str
    in_order: bool


@dataclass(frozen=True, slots=True)
class Asked:
    """All of it; `batches` is a batch sampler that is not torch's own."""

    dataset: Any
    batch_size: int | None
    batches: Iterable[Any] | None
    device: torch.device
    content: Content
    ours: OurOptions
    torchs: TorchOptions
