"""What a loop gets from a topic with one reader, two, four, and with readers="auto".

    python bench/bench_adapting.py [--mb 1500] [--seconds 40] [--repeats 2] [--round-trip-ms 20]

    near    bytes alone, from a broker on this machine: reading is all there is to do
    far     the same over a link of --round-trip-ms (`_far.py`)
    photos  JPEGs from a broker on this machine, RandomResizedCrop(224) on the host engine: CPU is what lacks

A shuffled DataLoader, epoch after epoch. The first half of a turn is not counted: in it "auto" finds its way. "of 2"
is the ratio to two readers in the same round. Ways take turns.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

from _far import far
from _kafka import broker_module, kafka_missing
from _results import RESULTS
from bench_kafka import values
from torchvision.transforms import v2

from dali_feed import DataLoader, Tuning
from dali_feed.bench.facts import facts
from dali_feed.bench.photos import photos
from dali_feed.bench.rows import append, table
from dali_feed.bench.turns import spread
from dali_feed.columns import Bytes, Number
from dali_feed.external_sources import KafkaTopic
from dali_feed.testing import Message, publish

WAYS: tuple[int | Literal["auto"], ...] = (1, 2, 4, "auto")
CASES = ("near", "far", "photos")
SHOWN = ("case", "readers", "samples/s", "least", "most", "of 2", "cpus used", "at the end", "changes")


def turn(case: str, readers: int | Literal["auto"], source: KafkaTopic, seconds: float) -> dict[str, Any]:
    """One loader for so many seconds; rates are those of the second half."""
    options: dict[str, Any] = {"shuffle": True, "device": "cpu", "tuning": Tuning(readers=readers)}
    if case == "photos":
        options |= {"transform": v2.RandomResizedCrop(224)}
    else:
        options |= {"columns": {"label": Number("label"), "value": Bytes("value")}}
    with DataLoader(source, 64, **options) as loader:
        samples, half, used, begun = 0, 0.0, 0.0, time.perf_counter()
        now = begun
        while now < begun + seconds or not samples:
            for batch in loader:
                now = time.perf_counter()
                if half:
                    samples += len(batch["label"] if isinstance(batch, dict) else batch[1])
                elif now > begun + seconds / 2:
                    half, used = now, time.process_time()
                if now > begun + seconds and samples:
                    break
        stats = loader.stats()
        return {
            "rate": samples / (now - half),
            "cpus": (time.process_time() - used) / (now - half),
            "at the end": f"{stats.readers} x{stats.fetch_times}",
            "changes": len(stats.decisions),
            "why": stats.decisions,
        }


@contextlib.contextmanager
def filled(cluster: Any, case: str, size: int) -> Iterator[str]:
    """A topic of eight partitions, of random bytes or of photographs."""
    name = f"dali-feed-bench-{uuid.uuid4().hex[:8]}"
    cluster.create(name, 8)
    records = values(size, 100 << 10)
    if case == "photos":
        few = list(photos(1000).records())
        records = (few[n % len(few)] for n in range(size * len(few) // sum(len(each) for each, _ in few)))
    publish(cluster.servers, name, (Message(each, headers=(("label", b"%d" % label),)) for each, label in records))
    try:
        yield name
    finally:
        cluster.delete(name)


def main() -> None:
    """Measure, print, and add rows to results/adapting.csv."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=float, default=1500, help="in a topic (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=40, help="of a turn")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--round-trip-ms", type=float, default=20)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    if (missing := kafka_missing()) is not None:
        print(f"adapting: NOT MEASURED: {missing}")
        return
    made = facts() | {"mb": args.mb, "seconds": args.seconds, "repeats": args.repeats, "rtt ms": args.round_trip_ms}
    rows: list[dict[str, object]] = []
    given, real = os.environ.get("KAFKA_BOOTSTRAP"), broker_module()
    if given and "far" in args.cases:
        print("far: NOT MEASURED: the link leads to a broker of our own; KAFKA_BOOTSTRAP is set")
        args.cases = [case for case in args.cases if case != "far"]
    with contextlib.nullcontext(real.Cluster(given)) if given else real.RealBroker() as cluster:
        for case in args.cases:
            link: AbstractContextManager[None] = contextlib.nullcontext()
            if case == "far":
                port, target = cluster.link_ports
                link = far(port, target, args.round_trip_ms / 1e3)
            with filled(cluster, case, int(args.mb * 1e6)) as name, link:
                source = KafkaTopic(name, cluster.link_servers if case == "far" else cluster.servers)
                found: dict[int | str, list[dict[str, Any]]] = {way: [] for way in WAYS}
                for _ in range(args.repeats):
                    for way in WAYS:
                        found[way].append(turn(case, way, source, args.seconds))
            for readers, turns in found.items():
                rate, least, most = spread(each["rate"] for each in turns)
                ratio = spread(a["rate"] / b["rate"] for a, b in zip(turns, found[2], strict=True))[0]
                row = {"case": case, "readers": readers, "samples/s": round(rate), "least": round(least)}
                row |= {"most": round(most), "of 2": f"{ratio:.2f}"}
                row |= {"cpus used": f"{spread(each['cpus'] for each in turns)[0]:.2f}"}
                row |= {name: ", ".join(str(each[name]) for each in turns) for name in ("at the end", "changes")}
                rows.append(made | row)
            path = append("adapting", rows[-len(found) :], args.results)
            print(table(rows[-len(found) :], SHOWN), flush=True)
            for each in found["auto"]:
                print("auto:", *each["why"], sep="\n  ", flush=True)
            print(f"added {len(found)} rows to {path}", flush=True)


if __name__ == "__main__":
    main()
