"""Watched: a loader as its watchers see it. What it says is taken when asked, and kept for nobody.

The law: a look is the asker's business. It runs in the asker's thread, takes no lock of the loader, and what goes
wrong in it is said to the asker; a run that nobody looks at pays nothing.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from dali_feed.errors import ConfigError
from dali_feed.feed.stats import Stats
from dali_feed.watching.figures import PREFIX, Figure, Metric, figures, metrics
from dali_feed.watching.gpu import GpuStats, gpu_of
from dali_feed.watching.names import Form

__all__ = ["ALL", "Gives", "Look", "Watched", "job_here"]

TRIES = 3  # of a look at counters that others change meanwhile
_EPOCH = Metric(f"{PREFIX}epoch", Form("gauge", "epoch", "The epoch that the loop is in."))
LABELS = ("job", "loader", "rank")
ALL: tuple[Metric, ...] = (
    _EPOCH,
    *metrics(Stats),
    *metrics(GpuStats, f"{PREFIX}gpu_", ("gpu",), one=False),
)  # that a loader can have, without `LABELS`


class Gives(Protocol):
    """What can be watched: a `DataLoader`, a `Feed`, a `LiveFeed`."""

    def stats(self) -> Stats:
        """Counts and waits since it was made."""
        ...


@dataclass(frozen=True, slots=True)
class Look:
    """A loader at one moment; `error` says why there are no stats where there are none.

    at  of a clock that never goes back, seconds: differences of two looks at one loader are times between them
    """

    job: str
    loader: str
    rank: int
    at: float
    epoch: int = 0
    stats: Stats | None = None
    gpu: GpuStats | None = None
    error: str = ""

    @property
    def labels(self) -> dict[str, str]:
        """What separates it from other loaders."""
        return {"job": self.job, "loader": self.loader, "rank": str(self.rank)}

    def figures(self) -> Iterator[Figure]:
        """All that is known of it, without its own labels."""
        if self.stats is None:
            return
        yield Figure(_EPOCH, (), float(self.epoch))
        yield from figures(self.stats)
        if self.gpu is not None:
            yield from figures(self.gpu, f"{PREFIX}gpu_", {"gpu": self.gpu.gpu}, one=False)


class Watched:
    """One loader; `look` may be called from any thread, whatever the loader is doing, and after its end too.

    It does not keep the loader alive. Raises ConfigError for what has no stats.
    """

    def __init__(self, loader: Gives, name: str = "", job: str | None = None) -> None:
        if not callable(getattr(loader, "stats", None)):
            msg = f"loader: must be a DataLoader, a Feed or a LiveFeed; found {type(loader).__name__}"
            raise ConfigError(msg)
        for what, given in (("a loader's name", name), ("job", "" if job is None else job)):
            if not isinstance(given, str):
                msg = f"{what}: must be a str; found {given!r}"
                raise ConfigError(msg)
        self._loader = weakref.ref(loader)
        self._lock = threading.Lock()  # two who ask at once do not work at once
        self.name, self.rank = name, _rank(loader)
        self.job = job_here() if job is None else job
        self._pid = os.getpid()

    @property
    def there(self) -> bool:
        """Whether anybody still has the loader."""
        return self._loader() is not None

    def look(self) -> Look:
        """How it is now."""
        found = Look(self.job, self.name, self.rank, time.monotonic())
        loader = self._loader()
        if loader is None:
            return replace(found, error="the loader does not exist any more")
        if os.getpid() != self._pid:
            return replace(found, error="the loader belongs to another process")
        with self._lock:
            for left in reversed(range(TRIES)):
                try:
                    stats = loader.stats()
                    epoch = int(getattr(loader, "epoch", 0))
                    gpu = gpu_of(getattr(loader, "device", None))
                except Exception as error:  # noqa: BLE001  a look must not end a run
                    if left:
                        continue
                    return replace(found, error=f"{type(error).__name__}: {error}")
                return replace(found, epoch=epoch, stats=stats, gpu=gpu)
        return found


def job_here() -> str:
    """What this process belongs to: DALI_FEED_JOB, or the number that Slurm gives it; "" where neither is set."""
    return os.environ.get("DALI_FEED_JOB") or os.environ.get("SLURM_JOB_ID") or ""


def _rank(loader: Gives) -> int:
    """Which of the run's processes this is: by the loader, or where a sampler has dealt to ranks, by who started it."""
    if getattr(loader, "world_size", 1) > 1:
        return int(getattr(loader, "rank", 0))
    torch = sys.modules.get("torch")
    if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
        return int(torch.distributed.get_rank())
    told = os.environ.get("RANK", "")
    return int(told) if told.isdecimal() else int(getattr(loader, "rank", 0))
