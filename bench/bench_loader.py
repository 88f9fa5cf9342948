"""Images per second beside the ceiling and beside torch, in one run.

    python bench/bench_loader.py [--device cpu] [--seconds 6] [--repeats 3] [--batches 64 256] [--sources tar kafka]
                                 [--engines host dali] [--no-torch] [--workers 2]

RandomResizedCrop(224), flip, float32, Normalize of 500x375 JPEGs. For each engine contestants
take turns, each made afresh:

    tar      our loader, tar shards in the page cache
    ceiling  the same engine with the same threads, fed from memory (`_contestants.py`)
    kafka    our loader, the same images in a topic of 4 partitions, windows of 2 extents (64 MB). The broker runs on
             the same machine, and what it takes of the CPUs is told below the table; KAFKA_BOOTSTRAP names one that
             runs already
    torch    torch's DataLoader with --workers, the better of two ways (found in the first round): all in the workers
             ("torch"), or uint8 in the workers and Normalize on the batch in this process ("torch-uint8")

Columns, of which a row of results/loader.csv has more:

    img/s, least, most   median of the turns, and the others
    of ceiling           images/s over those of the ceiling in the same round, median of the rounds
    of its CPU           CPU time per image of the ceiling over ours, in the same round: what `of ceiling` comes to
                         where other programs do not get in the way
    cpu us               CPU time per image, of all threads and workers
    feed us              of it the feed thread's (Stats.feed_cpu)
    own us               of that our Python: screen, draws, hand-over, metadata; the rest is DALI's own Run and Outputs
    take us              and that of the thread that takes the batches
    p50 ms, p99 ms       how long a step waits for its batch
    peak MB              most memory held, the interpreter and its libraries included

Nothing here passes or fails by a time.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import torch
from _contestants import CROP, Make, ceiling, ours, torch_loader
from _harness import RESULTS, Turn, append, facts, quantiles, run_turn, spread, table
from _kafka import Topic, kafka_missing, topic
from _photos import HEIGHT, WIDTH, Photos, photos

from dali_feed import Shuffle, Tuning
from dali_feed.external_sources import KafkaTopic, ShardSet

SHOWN = [
    "who",
    "img/s",
    "least",
    "most",
    "of ceiling",
    "of its CPU",
    "cpu us",
    "feed us",
    "own us",
    "take us",
    "p50 ms",
    "p99 ms",
    "peak MB",
]
KAFKA_SHUFFLE = Shuffle(window=2)  # 64 MB read at a time: with the usual 256 a turn sees too few windows
COPIES = 4  # of the images in the topic, so that the end of an epoch is not what is measured


def turns_of(contestants: dict[str, Make], repeats: int, seconds: float) -> dict[str, list[Turn]]:
    """Every contestant's turns; of the two ways of torch the slower one is left out after the first round."""
    turns: dict[str, list[Turn]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, those in turns.items():
            those.append(run_turn(contestants[name], seconds))
        ways = sorted((name for name in turns if name.startswith("torch")), key=lambda name: turns[name][0].rate)
        for slower in ways[:-1]:
            del turns[slower]
    return turns


def row_of(who: str, turns: list[Turn], beside: list[Turn]) -> dict[str, object]:
    """What is told of a contestant; `beside` are the ceiling's turns of the same rounds."""
    rate, least, most = spread(turn.rate for turn in turns)
    ratio = spread(turn.rate / top.rate for turn, top in zip(turns, beside, strict=True))
    cpu = spread(turn.cpu / turn.images for turn in turns)[0]
    cpu_ratio = spread(top.cpu / top.images / (turn.cpu / turn.images) for turn, top in zip(turns, beside, strict=True))
    p50, p99 = quantiles(turns)
    notes = {name: spread(turn.notes[name] for turn in turns)[0] for name in turns[0].notes}
    beside_cpu = spread(turn.beside_cpu / turn.images for turn in turns)[0]
    return {
        "who": who,
        "img/s": round(rate),
        "least": round(least),
        "most": round(most),
        "of ceiling": f"{ratio[0]:.3f}",
        "of ceiling, least": f"{ratio[1]:.3f}",
        "of ceiling, most": f"{ratio[2]:.3f}",
        "of its CPU": f"{cpu_ratio[0]:.3f}",
        "cpu us": round(cpu * 1e6),
        "feed us": f"{notes['feed_us']:.1f}" if "feed_us" in notes else "",
        "own us": f"{notes['own_us']:.1f}" if "own_us" in notes else "",
        "take us": f"{spread(turn.consumer_cpu / turn.images * 1e6 for turn in turns)[0]:.1f}",
        "p50 ms": f"{p50 * 1e3:.1f}",
        "p99 ms": f"{p99 * 1e3:.1f}",
        "peak MB": round(max(turn.peak for turn in turns) / 1e6),
        "slab peak MB": round(notes["slab_peak"] / 1e6) if "slab_peak" in notes else "",
        "broker us": round(beside_cpu * 1e6) if beside_cpu else "",
        "waits": " ".join(
            f"{n}={notes[f'{n}_wait']:.2f}" for n in ("read", "engine", "trainer") if f"{n}_wait" in notes
        ),
    }


def contestants_for(
    data: Photos, kafka: Topic | None, batch: int, engine: str, args: argparse.Namespace
) -> dict[str, Make]:
    """Who takes part, in the order of their turns."""
    tuning = Tuning(threads=args.threads)
    shards: Callable[[], ShardSet] = lambda: ShardSet(data.linked)  # noqa: E731
    chosen: dict[str, Make] = {}
    if "tar" in args.sources:
        chosen["tar"] = ours(shards, batch, tuning, args.device, engine)
    chosen["ceiling"] = ceiling(lambda: [jpeg for jpeg, _ in data.records()], batch, tuning, args.device, engine)
    if kafka is not None:
        chosen["kafka"] = ours(
            lambda: KafkaTopic(kafka.name, kafka.servers),
            batch,
            tuning,
            args.device,
            engine,
            shuffle=KAFKA_SHUFFLE,
            beside=kafka.pid,
        )
    if not args.no_torch and engine == args.engines[0]:
        chosen["torch"] = torch_loader(data.files, batch, args.workers, args.device, uint8=False)
        chosen["torch-uint8"] = torch_loader(data.files, batch, args.workers, args.device, uint8=True)
    return chosen


def main() -> None:
    """Measure, print, and add rows to results/loader.csv."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"), help="default %(default)s")
    parser.add_argument("--seconds", type=float, default=6, help="of a turn (default %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="turns of each contestant (default %(default)s)")
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--sources", nargs="*", choices=("tar", "kafka"), default=["tar", "kafka"])
    parser.add_argument("--no-torch", action="store_true")
    parser.add_argument("--engines", nargs="+", choices=("host", "dali"), default=None, help="default: all there are")
    parser.add_argument("--workers", type=int, default=2, help="of torch's DataLoader (default %(default)s)")
    parser.add_argument("--threads", type=int, default=None, help="of the decoder (default: the CPUs)")
    parser.add_argument("--photos", type=int, default=3000, help="different images (default %(default)s)")
    parser.add_argument("--data", type=Path, default=None, help="where they are kept (default: the user's cache)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where loader.csv is (default: beside this file)")
    args = parser.parse_args()
    args.engines = args.engines or (["host", "dali"] if args.device.type == "cpu" else ["dali"])
    data = photos(args.photos, cache=args.data)
    data.touch()
    made = facts() | {"image": f"{WIDTH}x{HEIGHT}", "crop": CROP, "mean bytes": data.mean_bytes, "images": data.count}
    made |= {"device": args.device if args.device.type == "cpu" else torch.cuda.get_device_name(args.device)}
    made["workers"] = args.workers
    made |= {"threads": Tuning(threads=args.threads).cpu_threads, "seconds": args.seconds, "repeats": args.repeats}
    print("\n".join(f"{name:10} {value}" for name, value in made.items()))
    missing = kafka_missing() if "kafka" in args.sources else "not asked for"
    rows: list[dict[str, object]] = []
    with ExitStack() as stack:
        kafka = None
        if missing is None:
            kafka = stack.enter_context(topic(record for _ in range(COPIES) for record in data.records()))
            print(f"{'kafka':10} {kafka.broker}: {kafka.count:,} records, {kafka.size / 1e6:,.0f} MB")
        for engine, batch in itertools.product(args.engines, args.batches):
            turns = turns_of(contestants_for(data, kafka, batch, engine, args), args.repeats, args.seconds)
            new = [row_of(who, those, turns["ceiling"]) for who, those in turns.items()]
            print(f"\nengine {engine}, batch {batch}\n{table(new, SHOWN)}")
            for row in new:
                if row["broker us"]:
                    print(
                        f"{row['who']}: the broker takes another {row['broker us']} us of CPU per image on these CPUs"
                    )
            if missing is not None:
                print(f"kafka: NOT MEASURED: {missing}")
            rows += [made | {"engine": engine, "batch": batch} | row for row in new]
    print(f"\nadded {len(rows)} rows to {append('loader', rows, args.results)}")


if __name__ == "__main__":
    main()
