"""`dali-feed bench kafka`: what of a topic's records reaches a training loop, beside reading them alone.

Contestants, in turns over the same topic:

    plain      one consumer of confluent_kafka with librdkafka's defaults, all partitions; values counted and dropped
    in order   our readers, extents in the order of shuffle=False, copied into blocks; ways: 1 or 2 readers
    at random  the same in a random order, as a shuffled epoch has them
    tensors    our loader: read, screened, decoded, cropped, normalized
    NAME       another loader that does the same, as far as it is installed
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from dali_feed.bench.chance import CHANCE, overlap
from dali_feed.bench.contract import Job, Outcome, Steps, Topic
from dali_feed.bench.kafka_reads import Reading, extents_of, plain
from dali_feed.bench.ours import KAFKA_SHUFFLE, ours
from dali_feed.bench.peers.table import kafka_peers
from dali_feed.bench.quick import FirstWay
from dali_feed.bench.turns import Listener, Make, Measured, Turn, quantiles, ratios, spread, take_turns
from dali_feed.external_sources import KafkaTopic
from dali_feed.options import Tuning
from dali_feed.records.source import Source

__all__ = ["SHOWN", "Reads", "contestants", "findings", "measure", "others"]

SHOWN = (
    *("who", "way", "records/s", "least", "most", "MB/s", "of plain", "of tensors"),
    *("cpu us", "p50 ms", "p99 ms", "broker us"),
)
READERS = {"x2": 2, "x1": 1}  # the default first
ALONE = ("plain", "in order", "at random")  # that read and make no tensors
NEAR = 0.8  # of reading alone: reading limits


@dataclass(frozen=True, slots=True)
class Reads:
    """What is read, and how.

    topic    where
    alone    makes a source without labels, for reading alone
    whole    makes a source for the loader
    config   options of librdkafka for the plain consumer, secrets revealed
    batch, threads, device, engine  of the loader
    """

    topic: Topic
    alone: Callable[[], KafkaTopic]
    whole: Callable[[], Source]
    config: Mapping[str, Any]
    batch: int
    threads: int
    device: str
    engine: str


class _Sized(Steps):
    """Steps over (records, bytes)."""

    def __init__(self, sizes: Iterator[tuple[int, int]], beside: int | None) -> None:
        self.beside, self._sizes, self._records, self._bytes = beside, sizes, 0, 0

    def __next__(self) -> int:
        records, size = next(self._sizes)
        self._records, self._bytes = self._records + records, self._bytes + size
        self.notes = {"bytes": self._bytes / self._records}
        return records


def contestants(reads: Reads) -> dict[str, dict[str, Make]]:
    """By name, and their ways."""

    @contextmanager
    def plainly() -> Iterator[Steps]:
        sizes = plain(reads.topic, reads.config)
        try:
            yield _Sized(sizes, reads.topic.pid)
        finally:
            sizes.close()  # and with it the consumer

    def reading(readers: int, *, shuffled: bool) -> Make:
        @contextmanager
        def make() -> Iterator[Steps]:
            source = reads.alone()
            with Reading(source, extents_of(source, shuffled=shuffled), readers, endless=True) as sizes:
                yield _Sized(sizes, reads.topic.pid)

        return make

    tensors = ours(
        reads.whole,
        reads.batch,
        Tuning(threads=reads.threads),
        torch.device(reads.device),
        reads.engine,
        shuffle=KAFKA_SHUFFLE,
        beside=reads.topic.pid,
    )
    return {
        "plain": {"": plainly},
        "in order": {way: reading(count, shuffled=False) for way, count in READERS.items()},
        "at random": {way: reading(count, shuffled=True) for way, count in READERS.items()},
        "tensors": {"": tensors},
    }


def others(
    job: Job, config: Mapping[str, Any], *, mock: bool, quick: bool
) -> tuple[dict[str, dict[str, Make]], dict[str, str]]:
    """Other loaders over the job's topic: their ways by name, and who cannot take part, and why.

    config  options of librdkafka that the broker asks for; others are not given any
    mock    the broker is librdkafka's, in this process
    quick   the first way of each alone
    """
    makers: dict[str, dict[str, Make]] = {}
    missing: dict[str, str] = {}
    for each in [FirstWay(peer) if quick else peer for peer in kafka_peers()]:
        reason = each.missing(job)
        if config:
            reason = "it does not take --config; measure on a listener that needs no such options"
        elif mock and each.name == "kafka-python":
            reason = "it cannot talk to the embedded broker; give a real one, kafka://host:port"
        if reason is not None:
            missing[each.name] = reason
            continue
        makers[each.name] = {way: functools.partial(each.turn, job, way) for way in each.ways(job)}
    return makers, missing


def measure(
    makers: Mapping[str, Mapping[str, Make]],
    outcome: Outcome,
    *,
    repeats: int,
    seconds: float,
    listener: Listener | None = None,
    until: float = math.inf,
) -> None:
    """Let them take turns; `outcome` holds what was found, also where it is interrupted."""
    found = Measured()
    try:
        take_turns(makers, found, repeats=repeats, seconds=seconds, listener=listener, until=until)
    finally:
        outcome.missing |= found.missing
        sizes = [turn.notes["bytes"] for turns in found.turns.values() for turn in turns if "bytes" in turn.notes]
        for who, turns in found.turns.items():
            outcome.rows.append(_row(who, found.ways[who], turns, found.turns, spread(sizes)[0] if sizes else None))
            outcome.waits[who] = turns[-1].waits
            if turns[-1].told:
                outcome.told[who] = turns[-1].told
        outcome.findings += findings(outcome.rows)


def _row(
    who: str, way: str, turns: Sequence[Turn], everybody: Mapping[str, Sequence[Turn]], size: float | None
) -> dict[str, Any]:
    rate, least, most = spread(turn.rate for turn in turns)
    beside = ratios(turns, everybody["plain"]) if "plain" in everybody else (None,) * 3
    same_work = who not in ALONE and "tensors" in everybody
    of_ours = ratios(turns, everybody["tensors"]) if same_work else (None,) * 3
    broker = spread(turn.beside_cpu / turn.images for turn in turns)[0]
    p50, p99 = quantiles(turns)
    return {
        "who": who,
        "way": way,
        "records/s": round(rate),
        "least": round(least),
        "most": round(most),
        "MB/s": None if size is None else round(rate * size / 1e6, 1),
        **{f"of plain{end}": r and round(r, 3) for end, r in zip(("", ", least", ", most"), beside, strict=True)},
        **{f"of tensors{end}": r and round(r, 3) for end, r in zip(("", ", least", ", most"), of_ours, strict=True)},
        "cpu us": round(spread(turn.cpu / turn.images for turn in turns)[0] * 1e6, 1),
        "take us": round(spread(turn.consumer_cpu / turn.images for turn in turns)[0] * 1e6, 1),
        "p50 ms": round(p50 * 1e3, 1),
        "p99 ms": round(p99 * 1e3, 1),
        "broker us": round(broker * 1e6) if broker else None,
    }


def findings(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Sentences about what limits a loop that trains from the topic."""
    rates = {row["who"]: row["records/s"] for row in rows}
    found = []
    if "tensors" in rates and "at random" in rates:
        share = rates["tensors"] / rates["at random"]
        start = f"A loop gets {rates['tensors']:,} images/s, {share:.2f} of what reading alone gives in random order: "
        if share >= NEAR:
            found.append(
                start + "reading the topic is the limit; see Tuning(readers=...) and the broker's network and disks."
            )
        else:
            found.append(
                start + "decoding is the limit, and a faster broker would change little; see `dali-feed bench loader`."
            )
    if "plain" in rates and "at random" in rates:
        ratio = rates["at random"] / rates["plain"]
        found.append(f"Our readers in random order give {ratio:.2f} times what a plain consumer gives in order.")
    peers = [row for row in rows if row["who"] not in {*ALONE, "tensors"} and row.get("of tensors")]
    if peers:
        fastest = max(peers, key=lambda row: float(row["of tensors"]))
        way = f" ({fastest['way']})" if fastest["way"] else ""
        said = f"dali_feed gives {1 / fastest['of tensors']:.2f} times the tensors of the fastest other loader"
        chance = any(overlap(row, fastest) for row in rows if row["who"] == "tensors")
        found.append(f"{said}, {fastest['who']}{way}{f'; their turns overlap, so that {CHANCE}' if chance else ''}.")
    return found
