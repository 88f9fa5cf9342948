"""Images per second beside the ceiling, the bare loop and the usual loaders, in one run.

    python bench/bench_loader.py [--device cpu] [--seconds 6] [--repeats 5] [--batches 64 256] [--workers 2]
                                 [--sources tar folder kafka] [--engines host dali] [--peers torch spdl ...]

RandomResizedCrop(224), flip, float32, Normalize of 500x375 JPEGs. For each engine contestants
take turns, each made afresh:

    tar          our loader, tar shards in the page cache
    folder       our loader over the files that torch's reads, as it is given an ImageFolder
    ceiling      the same engine with the same threads, fed from memory
    loop         beside the host engine: its decoder and resize in a bare loop over bytes in memory
    loop-read    the same, with each image read from the tar shards first: what a loader over them has to do too
    kafka        our loader, the same images in a topic of 4 partitions, windows of 2 extents (64 MB). The broker runs
                 on the same machine, and what it takes of the CPUs is told below the table; KAFKA_BOOTSTRAP names one
                 that runs already
    torch        torch's DataLoader over files with --workers, or one more; either all is done in the workers ("all"),
                 or they send uint8 and Normalize runs on the batch in this process ("uint8")
    and each of the other loaders in `dali_feed/bench/peers/` that is installed (the extra "peers")

The other loaders run once per batch size, with the first engine. Each has several ways; the first round finds the
fastest, whose name is in the column `way`, and the others run no more.

Columns are those of `dali_feed/bench/loading.py`, which says what each is; results/loader.csv has more of them than the
table. `dali-feed bench loader` measures alike over images of your own.

Nothing here passes or fails by a time.
"""

from __future__ import annotations

import argparse
import itertools
import os
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from _kafka import kafka_missing, topic
from _results import RESULTS

from dali_feed import Tuning
from dali_feed.bench.ceiling import Ceiling
from dali_feed.bench.contract import Contestant, Job, Outcome, Topic
from dali_feed.bench.facts import facts, jpeg_engine
from dali_feed.bench.loading import COLUMNS, SHOWN, measure, told_in_csv
from dali_feed.bench.loop import Loop, LoopRead
from dali_feed.bench.ours import Ours
from dali_feed.bench.peers._ray import TAKES_PART
from dali_feed.bench.peers.table import IMAGE, image_peers
from dali_feed.bench.peers.torch_loader import Torch
from dali_feed.bench.photos import HEIGHT, WIDTH, photos
from dali_feed.bench.rows import append, table
from dali_feed.bench.turns import Listener
from dali_feed.bench.work import CROP

TABLE = (*SHOWN[:10], "feed us", "own us", "take us", "p50 ms", "p99 ms", "peak MB")
PEERS = ("torch", *IMAGE)
BY_DEFAULT = tuple(name for name in PEERS if name != "ray-files")  # Ray takes tens of seconds to begin a turn
COPIES = 4  # of the images in the topic, so that the end of an epoch is not what is measured


class Failures(Listener):
    """Says who failed."""

    def failed(self, who: str, way: str, reason: str) -> None:
        """At once, for a run may take an hour."""
        print(f"{who}{'/' if way else ''}{way}: FAILED, no row: {reason}", flush=True)


def ours_for(engine: str, args: argparse.Namespace) -> list[Contestant]:
    """Ours and what they are measured by, in the order of their turns."""
    chosen: list[Contestant] = [Ours(reads, engine) for reads in ("tar", "folder") if reads in args.sources]
    chosen.append(Ceiling(engine))
    if engine == "host":
        chosen += [Loop(), LoopRead()]
    if "kafka" in args.sources:
        chosen.append(Ours("kafka", engine))
    return chosen


def peers_for(args: argparse.Namespace) -> list[Contestant]:
    """The other loaders, each in all its ways."""
    return [each for each in (Torch(args.workers), *image_peers()) if each.name in args.peers]


def main() -> None:
    """Measure, print, and add rows to results/loader.csv."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"), help="default %(default)s")
    parser.add_argument("--seconds", type=float, default=6, help="of a turn (default %(default)s)")
    parser.add_argument("--repeats", type=int, default=5, help="turns of each contestant (default %(default)s)")
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--sources", nargs="*", choices=("tar", "folder", "kafka"), default=["tar", "folder", "kafka"])
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=BY_DEFAULT, help="(default: all but Ray)")
    parser.add_argument("--no-peers", dest="peers", action="store_const", const=(), help="none of them")
    parser.add_argument("--engines", nargs="+", choices=("host", "dali"), default=None, help="default: all there are")
    parser.add_argument("--workers", type=int, default=2, help="of torch's DataLoader (default %(default)s)")
    parser.add_argument("--threads", type=int, default=None, help="of the decoder (default: the CPUs)")
    parser.add_argument("--photos", type=int, default=3000, help="different images (default %(default)s)")
    parser.add_argument("--data", type=Path, default=None, help="where they are kept (default: the user's cache)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where loader.csv is (default: beside this file)")
    args = parser.parse_args()
    if "ray-files" in args.peers:
        os.environ[TAKES_PART] = "1"  # by its name
    args.engines = args.engines or (["host", "dali"] if args.device.type == "cpu" else ["dali", "host"])
    data = photos(args.photos, cache=args.data)
    data.touch()
    made: dict[str, Any] = facts() | {
        "image": f"{WIDTH}x{HEIGHT}",
        "crop": CROP,
        "mean bytes": data.mean_bytes,
        "images": data.count,
    }
    made |= {"device": args.device if args.device.type == "cpu" else torch.cuda.get_device_name(args.device)}
    made["workers"] = args.workers
    made |= {"threads": Tuning(threads=args.threads).cpu_threads, "seconds": args.seconds, "repeats": args.repeats}
    print("\n".join(f"{name:10} {value}" for name, value in made.items()))
    no_broker = kafka_missing() if "kafka" in args.sources else "not asked for"
    with ExitStack() as stack:
        whole, scratch = data.data, Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if no_broker is None:
            there = stack.enter_context(topic(record for _ in range(COPIES) for record in data.records()))
            whole = replace(whole, topic=Topic(there.name, there.servers, there.pid))
            print(f"{'kafka':10} {there.broker}: {there.count:,} records, {there.size / 1e6:,.0f} MB")
        for engine, batch in itertools.product(args.engines, args.batches):
            job = Job(whole, batch, str(args.device), made["threads"], scratch)
            contestants, outcome = ours_for(engine, args), Outcome("loader", {})
            if engine == args.engines[0]:
                contestants += peers_for(args)
            measure(contestants, job, outcome, repeats=args.repeats, seconds=args.seconds, listener=Failures())
            new = [told_in_csv(row) for row in outcome.rows]
            print(f"\nengine {engine}, batch {batch}\n{table(new, TABLE)}")
            for row in new:
                if row["broker us"]:
                    print(
                        f"{row['who']}: the broker takes another {row['broker us']} us of CPU per image on these CPUs"
                    )
            for name, reason in (outcome.missing | ({"kafka": no_broker} if no_broker else {})).items():
                print(f"{name}: NOT MEASURED: {reason}")
            here = made | {"jpeg engine": jpeg_engine(), "engine": engine, "batch": batch}
            rows = [here | {column: row[column] for column in COLUMNS} for row in new]
            print(f"\nadded {len(rows)} rows to {append('loader', rows, args.results)}", flush=True)


if __name__ == "__main__":
    main()
