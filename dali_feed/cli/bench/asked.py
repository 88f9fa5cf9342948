"""What commands of `dali-feed bench` are asked, and the job that most of them make of it."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from dali_feed.bench.contract import Job
from dali_feed.bench.work import CROP, cuda_index
from dali_feed.cli.bench.data import data_for, scratch_in
from dali_feed.engines.choose import choose_engine
from dali_feed.errors import ConfigError
from dali_feed.loader.arguments import torch_device
from dali_feed.options import Tuning

__all__ = ["Asked", "check_batch", "job_for"]

QUICK_IMAGES, QUICK_BATCH, QUICK_SECONDS, QUICK_REPEATS = 256, 32, 0.3, 2
QUICK_LIMIT = 40.0  # seconds after which no other turn begins: with the last one's end it is under a minute
_SEVERAL = ("source", "config")


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of a command, as it says them; one that a command does not have is as here.

    until  on the clock of `time.perf_counter`, when no other turn begins
    """

    source: tuple[str, ...]
    batch: int
    threads: int | None
    repeats: int
    device: str | None
    engine: str | None
    images: int
    quick: bool
    csv: Path | None
    json: bool
    report: Path | None
    plots: Path | None
    data: Path | None
    config: tuple[str, ...]
    timeout: float
    seconds: float = 0.0
    peers: bool = False
    crop: int = CROP
    until: float = math.inf

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Asked:
        """A command's own names and values, its `locals()` before it has made others; less of everything if quick."""
        known = {field.name for field in fields(cls)}
        told = {name: value for name, value in options.items() if name in known}
        asked = cls(**told | {name: tuple(told[name] or ()) for name in _SEVERAL})
        if not asked.quick:
            return asked
        return replace(
            asked,
            images=min(asked.images, QUICK_IMAGES),
            batch=min(asked.batch, QUICK_BATCH),
            seconds=min(asked.seconds, QUICK_SECONDS),
            repeats=min(asked.repeats, QUICK_REPEATS),
            until=time.perf_counter() + QUICK_LIMIT,
        )

    @property
    def where(self) -> tuple[str, str]:
        """The device, and the engine that runs there. Raises ConfigError: there is no such one here."""
        device = torch_device(self.device)
        return str(device), choose_engine(self.engine, cuda_index(device), graph=False)

    @property
    def decoders(self) -> int:
        """Threads."""
        return Tuning(threads=self.threads).cpu_threads


def job_for(asked: Asked, stack: ExitStack) -> tuple[Job, str]:
    """The job, its data made or read, and our engine for it. What is made there is gone when `stack` ends.

    Raises ConfigError: a batch of more images than there are; what cannot be read.
    """
    device, engine = asked.where
    scratch = stack.enter_context(scratch_in(asked.data))
    data = data_for(asked.source, asked.images, scratch, asked.data, config=asked.config, timeout=asked.timeout)
    check_batch(asked.batch, data.count)
    return Job(data, asked.batch, device, asked.decoders, scratch, asked.crop), engine


def check_batch(batch: int, images: int) -> None:
    """Raise ConfigError where a batch would hold more images than there are."""
    if batch > images:
        msg = f"--batch: must be at most the number of images, {images}; found {batch}; take a smaller one"
        raise ConfigError(msg)
