"""DataLoader: the feed as torch tensors, under torch's names.

torch's own arguments keep torch's meaning. One that cannot apply warns once; one that would change the
data is honoured or refused, never ignored.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Self
from warnings import warn

import numpy as np
import torch

from dali_feed.errors import ConfigError
from dali_feed.feed import Batch, Feed
from dali_feed.feed.passes import Batches
from dali_feed.options import BadRecords, Tuning
from dali_feed.plan import Shuffle
from dali_feed.records import Source
from dali_feed.stats import Stats

__all__ = ["DataLoader", "Info"]

log = logging.getLogger("dali_feed")


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


def _torch_device(device: object) -> torch.device:
    if device is None:
        if torch.cuda.is_available():
            return torch.device("cuda", torch.cuda.current_device())
        log.info("device: no CUDA device is there; batches are made on the CPU")
        return torch.device("cpu")
    try:
        found: torch.device = torch.device(device)  # type: ignore[call-overload]  # torch says what it takes
    except (RuntimeError, TypeError) as error:
        msg = f"device: must be a CUDA device or the CPU; found {device!r}"
        raise ConfigError(msg) from error
    if found.type not in ("cuda", "cpu"):
        msg = f"device: must be a CUDA device or the CPU; found {found}"
        raise ConfigError(msg)
    if found.type == "cuda":
        if not torch.cuda.is_available():
            msg = (
                f"device: {found} was asked for and torch sees no CUDA device. Use device='cpu', or look at the driver"
            )
            raise ConfigError(msg)
        found = torch.device("cuda", torch.cuda.current_device() if found.index is None else found.index)
    return found


def _layout(memory_format: torch.memory_format | None) -> Literal["NCHW", "NHWC"]:
    if memory_format not in (None, torch.contiguous_format, torch.channels_last):
        msg = f"memory_format: must be torch.contiguous_format or torch.channels_last; found {memory_format!r}"
        raise ConfigError(msg)
    return "NHWC" if memory_format is torch.channels_last else "NCHW"


def _ranks(rank: int | None, world_size: int | None) -> tuple[int, int]:
    if (rank is None) != (world_size is None):
        msg = f"rank and world_size: give both or neither; found rank={rank}, world_size={world_size}"
        raise ConfigError(msg)
    if rank is not None and world_size is not None:
        return rank, world_size
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    found = {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE")}
    if all(found.values()):
        try:
            return int(found["RANK"] or 0), int(found["WORLD_SIZE"] or 1)
        except ValueError as error:
            msg = f"RANK and WORLD_SIZE: must be ints where both are set; found {found}"
            raise ConfigError(msg) from error
    return 0, 1


def _refuse(name: str, cure: str) -> None:
    msg = f"{name}: would change the data, and is not supported; {cure}"
    raise ConfigError(msg)


_warned: set[str] = set()


def _warn_once(name: str, why: str, stacklevel: int = 3) -> None:
    if name not in _warned:
        _warned.add(name)
        warn(f"{name} has no effect here: {why}", UserWarning, stacklevel=stacklevel)


def _tuned(tuning: Tuning | None, num_workers: int, prefetch_factor: int | None) -> Tuning:
    """The two knobs of torch, where `tuning` leaves them free."""
    found = tuning or Tuning()
    if num_workers and found.threads is None:
        found = dataclasses.replace(found, threads=num_workers)
    elif num_workers:
        _warn_once("num_workers", "tuning says how many threads decode", stacklevel=4)
    if prefetch_factor is not None and tuning is None:
        found = dataclasses.replace(found, prefetch=prefetch_factor)
    elif prefetch_factor is not None:
        _warn_once("prefetch_factor", "tuning says how many batches are in flight", stacklevel=4)
    return found


class DataLoader:
    """Batches of tensors from a source of `dali_feed.external_sources`.

    Gives `(images, labels)` per batch, or `(images, labels, info)` with `info=True`; just `images` where
    the source has no other fields. images: (n, 3, height, width) on the device, of the dtype that the
    transform ends in (uint8 without one); labels: int64 (n,) on the device.

    Args:
        dataset: the source.
        batch_size: samples per batch on this rank.
        shuffle: bool, or a `Shuffle` that says how far samples are mixed.
        sampler: indices in the order wanted, instead of shuffle; an iterable that is read anew each epoch.
        batch_sampler: refused.
        num_workers: decoder threads, where `tuning` does not say; 0 leaves the choice to it.
        collate_fn: refused; batches are made on the device.
        pin_memory: has no effect.
        drop_last: leave out the last batch where it is not full.
        timeout: seconds to wait for a batch before a TimeoutError; 0 waits for ever.
        worker_init_fn, generator: refused; `seed` is where randomness comes from.
        multiprocessing_context, persistent_workers, pin_memory_device: have no effect.
        prefetch_factor: batches in flight, where `tuning` does not say.
        in_order: must be True.
        transform: torchvision transforms (v1 or v2), or a DALI graph function (images, draws) -> images.
        memory_format: torch.channels_last, or torch.contiguous_format; None is the latter, or a graph function's own.
        decode: "reduced" lets the host engine decode a JPEG at 1/2, 1/4 or 1/8 where the first transform shrinks it
            at least as much. Faster on large photographs; it changes pixels.
        device: None for the current CUDA device, or the CPU where there is none.
        engine: None: dali on a GPU or for a DALI graph function, host on the CPU; or "dali", "host".
        seed: of order and augmentation, 0..2**64-1.
        lanes: the largest world size this run may ever resume at; None for today's.
        rank, world_size: default torch.distributed, then RANK and WORLD_SIZE, then 0 of 1.
        bad: what is done with records that cannot be used.
        info: add an `Info` to each batch.
        tuning: threads, readers, prefetch, memory; never changes a batch.

    Raises:
        ConfigError: (a ValueError) for arguments that cannot be, and for transforms that cannot be lowered.
        SourceError: at the first use of the source, where records cannot be had.
    """

    def __init__(  # noqa: PLR0913, PLR0917  the first 17 are torch's, in torch's order
        self,
        dataset: Source,
        batch_size: int = 1,
        shuffle: bool | Shuffle | None = None,
        sampler: Iterable[int] | None = None,
        batch_sampler: object = None,
        num_workers: int = 0,
        collate_fn: object = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: object = None,
        multiprocessing_context: object = None,
        generator: object = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        transform: object = None,
        memory_format: torch.memory_format | None = None,
        decode: Literal["exact", "reduced"] = "exact",
        device: torch.device | str | int | None = None,
        engine: str | None = None,
        seed: int = 0,
        lanes: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        bad: BadRecords | None = None,
        info: bool = False,
        tuning: Tuning | None = None,
    ) -> None:
        if sampler is not None and shuffle:
            msg = "sampler option is mutually exclusive with shuffle"
            raise ConfigError(msg)
        if num_workers < 0:
            msg = "num_workers option should be non-negative; use num_workers=0 to let tuning choose"
            raise ConfigError(msg)
        if timeout < 0:
            msg = "timeout option should be non-negative"
            raise ConfigError(msg)
        refused = {
            "batch_sampler": (batch_sampler, "use batch_size with sampler"),
            "collate_fn": (collate_fn, "work on the batch that the loader gives"),
            "worker_init_fn": (worker_init_fn, "there are no worker processes"),
            "generator": (generator, "use seed="),
        }
        for name, (value, cure) in refused.items():
            if value is not None:
                _refuse(name, cure)
        if not in_order:
            _refuse("in_order=False", "batches always come in order")
        idle = {
            "pin_memory": (pin_memory, "batches are made on the device"),
            "pin_memory_device": (pin_memory_device, "batches are made on the device"),
            "persistent_workers": (persistent_workers, "threads and engine last as long as the loader"),
            "multiprocessing_context": (multiprocessing_context, "there are no worker processes"),
        }
        for name, (value, why) in idle.items():
            if value:
                _warn_once(name, why)
        found = _tuned(tuning, num_workers, prefetch_factor)
        self.dataset, self.batch_size, self.sampler, self.drop_last = dataset, batch_size, sampler, drop_last
        self.num_workers, self.timeout, self.info = num_workers, timeout, info
        self.device = _torch_device(device)
        rank, world_size = _ranks(rank, world_size)
        self._feed = Feed(
            dataset,
            batch_size,
            shuffle=False if shuffle is None else shuffle,
            sampler=sampler,
            drop_last=drop_last,
            transform=transform,
            layout=_layout(memory_format),
            decode=decode,
            device=self.device.index if self.device.type == "cuda" else None,
            engine=engine,
            seed=seed,
            lanes=lanes,
            rank=rank,
            world_size=world_size,
            bad=bad,
            tuning=found,
        )
        self._close_at_exit = weakref.finalize(self, self._feed.close)

    def __len__(self) -> int:
        """Batches in an epoch, the same on every rank."""
        return len(self._feed)

    def __iter__(self) -> Iterator[Any]:
        """The next epoch's batches, or the rest of the one that a restored state stands in."""
        return _Tensors(self, iter(self._feed))

    @property
    def epoch(self) -> int:
        """The epoch that state_dict() stands in."""
        return self._feed.epoch

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be that of `epoch`; where a restored state stands inside it, it goes on there."""
        self._feed.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where the trainer stands: plain JSON, the same on every rank. Counts batches handed over, not prefetched."""
        return self._feed.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next pass go on where `state` was taken, in O(1). Raises StateError that lists every difference."""
        self._feed.load_state_dict(state)

    def commit(self) -> None:
        """Publish for lag tools how far the epoch is; call it after a checkpoint, which alone owns the position.

        Per partition its first position and the number of records that all ranks have consumed of it in this epoch;
        its end when the epoch is over. On rank 0, and where the source can (`KafkaTopic(group=...)`); elsewhere it
        does nothing. What goes wrong is one warning in the log, within seconds, and never an exception.
        """
        self._feed.commit()

    def describe(self) -> str:
        """What an epoch is made of, how well it mixes, and what that costs in memory and reads."""
        return self._feed.describe()

    def stats(self) -> Stats:
        """Counts and waits since the start; says who is the bottleneck."""
        return self._feed.stats()

    def close(self) -> None:
        """Stop all threads and let go of engine and connections. Safe to call twice and in any state."""
        self._feed.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _images(self, batch: Batch) -> torch.Tensor:
        images = self._as_made(batch)
        return images.permute(0, 3, 1, 2) if self._feed.program.recipe.layout == "NHWC" else images

    def _as_made(self, batch: Batch) -> torch.Tensor:
        if batch.tail is not None:
            from dali_feed.engines.gpu_tail import finished  # CuPy: on a GPU only

            return finished(batch.images, batch.tail, self.device)
        if isinstance(batch.images, torch.Tensor):
            return batch.images
        images: torch.Tensor = torch.utils.dlpack.from_dlpack(batch.images)
        return images

    def _item(self, batch: Batch) -> Any:
        out: list[Any] = [self._images(batch)]
        for name in self._feed.source.fields:
            values = batch.fields[name]
            if isinstance(values, np.ndarray):
                out.append(torch.from_numpy(values).to(self.device, non_blocking=True))
            else:
                out.append(values)
        if self.info:
            where = tuple(map(self._feed._where, batch.ids.tolist()))
            out.append(Info(torch.from_numpy(batch.ids), torch.from_numpy(batch.ok), where))
        return tuple(out) if len(out) > 1 else out[0]


class _Tensors(Iterator[Any]):
    """One pass as torch tensors."""

    def __init__(self, loader: DataLoader, batches: Batches) -> None:
        self._loader, self._batches = loader, batches

    def __len__(self) -> int:
        """Batches still to come."""
        return len(self._batches)

    def __next__(self) -> Any:
        timeout = self._loader.timeout
        try:
            return self._loader._item(self._batches.take(timeout or None))
        except TimeoutError as error:
            msg = f"DataLoader timed out after {timeout} seconds; {error}"
            raise TimeoutError(msg) from error
