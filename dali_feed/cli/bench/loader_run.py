"""What `dali-feed bench loader` does."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from dali_feed.bench.contract import Contestant, Job, Outcome
from dali_feed.bench.lineup import about, lineup
from dali_feed.bench.loading import SHOWN, measure, told_in_csv
from dali_feed.bench.quick import FirstWay
from dali_feed.bench.work import cuda_index
from dali_feed.cli.bench.data import data_for, scratch_in
from dali_feed.cli.bench.ending import Ending, ending
from dali_feed.cli.bench.progress import listening
from dali_feed.engines.choose import choose_engine
from dali_feed.errors import ConfigError
from dali_feed.loader.arguments import torch_device
from dali_feed.options import Tuning

__all__ = ["Asked", "run"]

QUICK_IMAGES, QUICK_BATCH, QUICK_SECONDS, QUICK_REPEATS = 256, 32, 0.3, 2


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of the command, as it says them."""

    source: tuple[str, ...]
    batch: int
    threads: int | None
    seconds: float
    repeats: int
    device: str | None
    engine: str | None
    images: int
    peers: bool
    quick: bool
    csv: Path | None
    json: bool
    report: Path | None
    plots: Path | None
    data: Path | None
    config: tuple[str, ...]
    timeout: float

    def quickly(self) -> Asked:
        """Less of everything."""
        return replace(
            self,
            images=min(self.images, QUICK_IMAGES),
            batch=min(self.batch, QUICK_BATCH),
            seconds=min(self.seconds, QUICK_SECONDS),
            repeats=min(self.repeats, QUICK_REPEATS),
        )


def run(asked: Asked) -> None:
    """Measure and tell. Raises ConfigError for what cannot be; Ctrl-C ends with what was measured."""
    if asked.quick:
        asked = asked.quickly()
    device = torch_device(asked.device)
    engine = choose_engine(asked.engine, cuda_index(device), graph=False)
    outcome = Outcome("loader", {})
    how = Ending(SHOWN, told_in_csv, asked.csv, asked.report, asked.plots, asked.json)
    with ending(outcome, how), ExitStack() as stack:
        scratch = stack.enter_context(scratch_in(asked.data))
        data = data_for(asked.source, asked.images, scratch, asked.data, config=asked.config, timeout=asked.timeout)
        if asked.batch > data.count:
            msg = f"--batch: must be at most {data.count}, the number of images; found {asked.batch}; take less"
            raise ConfigError(msg)
        threads = Tuning(threads=asked.threads).cpu_threads
        job = Job(data, asked.batch, str(device), threads, scratch)
        outcome.about |= about(job, engine, seconds=asked.seconds, repeats=asked.repeats)
        contestants: list[Contestant] = lineup(engine, peers=asked.peers)
        if asked.quick:
            contestants = [FirstWay(each) for each in contestants]
        listener = stack.enter_context(listening())
        measure(contestants, job, outcome, repeats=asked.repeats, seconds=asked.seconds, listener=listener)
