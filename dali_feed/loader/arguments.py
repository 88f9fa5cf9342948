"""torch's arguments, read: device, ranks, memory format, and one warning each for those that cannot apply."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn
from warnings import warn

import numpy as np
import torch
from torch.utils.data import IterableDataset

from dali_feed.engines.device.cuda import chosen, is_there
from dali_feed.errors import ConfigError
from dali_feed.options import Tuning
from dali_feed.transforms.mixing import Mixing

log = logging.getLogger("dali_feed")
_warned: set[str] = set()  # what this process was told of once


@contextlib.contextmanager
def as_config_error() -> Iterator[None]:
    """An argument that torch refuses is a ConfigError with torch's text."""
    try:
        yield
    except ValueError as error:
        raise ConfigError(str(error)) from error


def check_by_torch(dataset: object, options: Mapping[str, Any]) -> None:
    """Let torch's own DataLoader check its arguments, on a small stand-in dataset: a later torch may check more.

    With one worker, unless the number is negative: our threads do what torch needs workers for.
    """
    collate, size = options["collate_fn"], options["batch_size"]
    if not (collate is None or callable(collate) or isinstance(collate, Mixing)):
        raise ConfigError(f"collate_fn: must be callable; found {collate!r}")
    plain: dict[str, Any] = {
        **options,
        "batch_size": int(size) if isinstance(size, np.integer) else size,
        "num_workers": min(options["num_workers"], 1) or 1,
    }
    stand_in: Any = dataset if isinstance(dataset, IterableDataset) else range(1)
    with as_config_error():
        torch.utils.data.DataLoader(stand_in, **plain)


def torch_device(device: object) -> torch.device:
    """What `device=` means: None is the current CUDA device, or the CPU where there is none, logged once at INFO."""
    if device is None:
        if is_there():
            return torch.device("cuda", chosen())
        log.info("device: no CUDA device was found; batches are made on the CPU")
        return torch.device("cpu")
    try:
        where: torch.device = torch.device(device)  # type: ignore[call-overload]  # torch says what it takes
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"device: must be a CUDA device or the CPU; found {device!r}") from error
    if where.type not in ("cuda", "cpu"):
        raise ConfigError(f"device: must be a CUDA device or the CPU; found {where}")
    if where.type == "cuda":
        if not is_there():
            msg = f"device: {where} was given, but torch finds no CUDA device. Use device='cpu', or check the driver"
            raise ConfigError(msg)
        where = torch.device("cuda", chosen() if where.index is None else where.index)
    return where


def ranks(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Rank and world size: as given, by torch.distributed, by RANK and WORLD_SIZE, or 0 of 1."""
    if (rank is None) != (world_size is None):
        raise ConfigError(f"rank and world_size: give both or neither; found rank={rank}, world_size={world_size}")
    if rank is not None and world_size is not None:
        return rank, world_size
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    variables = {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE")}
    if all(variables.values()):
        try:
            number, count = int(variables["RANK"] or 0), int(variables["WORLD_SIZE"] or 1)
        except ValueError as error:
            raise ConfigError(f"RANK and WORLD_SIZE: must be ints where both are set; found {variables}") from error
        if "RANK" not in _warned:
            _warned.add("RANK")
            log.warning(
                "rank and world_size: %d of %d, by RANK and WORLD_SIZE, as nobody gave them: this process gets its part"
                " of the samples. Give rank=0, world_size=1 for all of them, as in a validation on one rank, or"
                " rank=%d, world_size=%d, which says no more",
                *(number, count, number, count),
            )
        return number, count
    return 0, 1


def refuse(name: str, cure: str) -> NoReturn:
    """Raise for an argument that would change the data."""
    raise ConfigError(f"{name}: would change the data, and is not supported; {cure}")


def warn_once(name: str, why: str, stacklevel: int = 3, what: str = "has no effect here") -> None:
    """Warn, the first time in this process, of an argument that has no effect."""
    if name not in _warned:
        _warned.add(name)
        warn(f"{name} {what}: {why}", UserWarning, stacklevel=stacklevel)


def tuned(tuning: Tuning, num_workers: int, prefetch_factor: int | None, stacklevel: int) -> Tuning:
    """num_workers and prefetch_factor as ours, where `tuning` does not set them."""
    merged = tuning
    if num_workers and merged.threads is None:
        merged = dataclasses.replace(merged, threads=num_workers)
    elif num_workers:
        warn_once("num_workers", "tuning says how many threads decode", stacklevel + 1)
    if prefetch_factor is not None and tuning == Tuning():
        merged = dataclasses.replace(merged, prefetch=prefetch_factor)
    elif prefetch_factor is not None:
        warn_once("prefetch_factor", "tuning says how many batches are in flight", stacklevel + 1)
    return merged


def unwrapped(batch_sampler: Any) -> tuple[Iterable[int], int, bool] | None:
    """Sampler, batch_size and drop_last of torch's own BatchSampler; None for another one."""
    if type(batch_sampler) is not torch.utils.data.BatchSampler:
        return None
    return batch_sampler.sampler, batch_sampler.batch_size, batch_sampler.drop_last


def seeded(seed: int | None, generator: object) -> int:
    """The seed: as given, or taken from the generator, so that equal generators give equal orders; else 0."""
    if generator is None:
        return 0 if seed is None else seed
    if seed is not None:
        raise ConfigError(f"generator option is mutually exclusive with seed; found generator and seed={seed}")
    if not isinstance(generator, torch.Generator):
        raise ConfigError(f"generator: must be a torch.Generator; found {type(generator).__name__}")
    drawn = torch.empty((), dtype=torch.int64, device=generator.device).random_(generator=generator)
    return int(drawn.item())
