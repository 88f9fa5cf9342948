"""What `dali-feed bench kafka` does."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from dali_feed.bench.contract import Outcome, Topic
from dali_feed.bench.facts import facts
from dali_feed.bench.kafka import SHOWN, Reads, contestants, measure
from dali_feed.bench.kafka_topics import topic_at, topic_here
from dali_feed.bench.photos import photos
from dali_feed.bench.work import CROP, cuda_index
from dali_feed.cli.bench.ending import Ending, ending
from dali_feed.cli.bench.progress import listening
from dali_feed.cli.targets import KAFKA, named, options_of, sources
from dali_feed.engines.choose import choose_engine
from dali_feed.errors import ConfigError
from dali_feed.external_sources import KafkaTopic
from dali_feed.loader.arguments import torch_device
from dali_feed.options import Tuning
from dali_feed.records.source import Source
from dali_feed.secrets import revealed

__all__ = ["Asked", "run"]

QUICK_IMAGES, QUICK_BATCH, QUICK_SECONDS, QUICK_REPEATS = 256, 32, 0.3, 2


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of the command, as it says them."""

    target: str | None
    batch: int
    threads: int | None
    seconds: float
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
    outcome, config = Outcome("kafka", {}), options_of(asked.config)
    how = Ending(SHOWN, csv=asked.csv, report=asked.report, plots=asked.plots, json=asked.json)
    with ending(outcome, how), ExitStack() as stack:
        which, given, about = _topic(asked, stack)

        def whole() -> Source:
            if given is None:
                return KafkaTopic(which.name, which.servers)
            return sources([given], config=config, timeout=asked.timeout)[0]

        threads = Tuning(threads=asked.threads).cpu_threads
        reads = Reads(
            topic=which,
            alone=lambda: KafkaTopic(which.name, which.servers, label=None, config=config, timeout=asked.timeout),
            whole=whole,
            config=revealed(which.name, config),
            batch=asked.batch,
            threads=threads,
            device=str(device),
            engine=engine,
        )
        timing = {"seconds": asked.seconds, "repeats": asked.repeats}
        outcome.about |= facts() | about | {"device": str(device), "threads": threads, "crop": CROP} | timing
        outcome.about |= {"engine": engine, "batch": asked.batch}
        listener = stack.enter_context(listening())
        makers = contestants(reads)
        if asked.quick:
            makers = {who: dict(list(ways.items())[:1]) for who, ways in makers.items()}
        measure(makers, outcome, repeats=asked.repeats, seconds=asked.seconds, listener=listener)


def _topic(asked: Asked, stack: ExitStack) -> tuple[Topic, str | None, dict[str, object]]:
    """The topic; the target that names it, where it is the user's; and what rows say of it."""
    target = asked.target
    if target is not None and "/" in target.removeprefix(KAFKA):
        name, servers = named(target)
        return Topic(name, servers), target, {"data": f"the topic {name}", "broker": servers}
    if target is not None and (not target.startswith(KAFKA) or not target.removeprefix(KAFKA)):
        named(target)  # which says how one is named
    if asked.config:
        msg = f"--config: is for a topic that is named, kafka://host:port/topic; found {target or 'no target'}"
        raise ConfigError(msg)
    made = photos(asked.images, cache=asked.data)
    if asked.batch > made.count:
        msg = f"--batch: must be at most the number of images, {made.count}; found {asked.batch}; take a smaller one"
        raise ConfigError(msg)
    about = {"data": made.data.name, "mean bytes": made.mean_bytes, "images": made.count}
    if target is None:
        which = stack.enter_context(topic_here(made.records(), made.count * made.mean_bytes))
        return which, None, about | {"broker": "librdkafka's mock, in this process"}
    servers = target.removeprefix(KAFKA)
    return (
        stack.enter_context(topic_at(servers, made.records(), timeout=asked.timeout)),
        None,
        about | {"broker": servers},
    )
