"""What `dali-feed bench kafka` does."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from dali_feed.bench.contract import Data, Job, Outcome, Topic
from dali_feed.bench.facts import facts
from dali_feed.bench.kafka import SHOWN, Reads, contestants, measure, others
from dali_feed.bench.kafka_topics import topic_at, topic_here
from dali_feed.bench.photos import photos
from dali_feed.bench.work import CROP
from dali_feed.cli.bench.asked import Asked, check_batch
from dali_feed.cli.bench.data import scratch_in
from dali_feed.cli.bench.ending import Ending, ending
from dali_feed.cli.bench.progress import listening
from dali_feed.cli.targets import KAFKA, Access, sources, topic_of
from dali_feed.errors import ConfigError
from dali_feed.external_sources import KafkaTopic
from dali_feed.records.source import Source
from dali_feed.secrets import revealed

__all__ = ["run"]


def run(asked: Asked) -> None:
    """Measure and tell. Raises ConfigError for what cannot be; Ctrl-C ends with what was measured."""
    device, engine = asked.where
    outcome, access = Outcome("kafka", {}), Access.of(asked.config, asked.timeout)
    config = dict(access.config)
    how = Ending(SHOWN, csv=asked.csv, report=asked.report, plots=asked.plots, json=asked.json)
    with ending(outcome, how), ExitStack() as stack:
        which, given, about = _topic(asked, stack)

        def whole() -> Source:
            if given is None:
                return KafkaTopic(which.name, which.servers)
            return sources([given], access)[0]

        threads = asked.decoders
        reads = Reads(
            topic=which,
            alone=lambda: KafkaTopic(which.name, which.servers, label=None, config=config, timeout=asked.timeout),
            whole=whole,
            config=revealed(which.name, config),
            batch=asked.batch,
            threads=threads,
            device=device,
            engine=engine,
        )
        timing = {"seconds": asked.seconds, "repeats": asked.repeats}
        outcome.about |= facts() | about | {"device": device, "threads": threads, "crop": CROP} | timing
        outcome.about |= {"engine": engine, "batch": asked.batch}
        listener = stack.enter_context(listening())
        makers = contestants(reads)
        if asked.quick:
            makers = {who: dict(list(ways.items())[:1]) for who, ways in makers.items()}
        if asked.peers:
            folder = stack.enter_context(scratch_in(asked.data))
            data = Data(str(outcome.about["data"]), folder, (), 0, 0, 0, 0, which)
            job = Job(data, asked.batch, device, threads, folder, CROP)
            theirs, missing = others(job, config, mock=not asked.source, quick=asked.quick)
            makers |= theirs
            outcome.missing |= missing
        how_long: dict[str, Any] = timing | {"until": asked.until}
        measure(makers, outcome, **how_long, listener=listener)


def _topic(asked: Asked, stack: ExitStack) -> tuple[Topic, str | None, dict[str, object]]:
    """The topic; the target that names it, where it is the user's; and what rows say of it."""
    target = asked.source[0] if asked.source else None
    if target is not None and "/" in target.removeprefix(KAFKA):
        name, servers = topic_of(target)
        return Topic(name, servers), target, {"data": f"the topic {name}", "broker": servers}
    if target is not None and (not target.startswith(KAFKA) or not target.removeprefix(KAFKA)):
        topic_of(target)  # which says how one is named
    if asked.config:
        msg = f"--config: is only for a topic of your own, kafka://host:port/topic; found {target or 'no target'}"
        raise ConfigError(msg)
    made = photos(asked.images, cache=asked.data)
    check_batch(asked.batch, made.count)
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
