"""Images per second beside the ceiling, the bare loop and the usual loaders, in one run.

    python bench/bench_loader.py [--device cpu] [--seconds 6] [--repeats 5] [--batches 64 256] [--workers 2]
                                 [--sources tar folder kafka] [--engines host dali] [--no-peers]

RandomResizedCrop(224), flip, float32, Normalize of 500x375 JPEGs. For each engine contestants
take turns, each made afresh:

    tar          our loader, tar shards in the page cache
    folder       our loader over the files that torch's reads, as it is given an ImageFolder
    ceiling      the same engine with the same threads, fed from memory
    loop         beside the host engine: its decoder and resize in a bare loop over bytes in memory
    kafka        our loader, the same images in a topic of 4 partitions, windows of 2 extents (64 MB). The broker runs
                 on the same machine, and what it takes of the CPUs is told below the table; KAFKA_BOOTSTRAP names one
                 that runs already
    torch        torch's DataLoader over files with --workers, or one more; either all is done in the workers ("all"),
                 or they send uint8 and Normalize runs on the batch in this process ("uint8")
    spdl         SPDL's pipeline over the same files, a task per batch or per image, with --threads, one more, or twice
                 as many. It is in the extra "bench" and needs FFmpeg's shared libraries
    dali-reader  DALI's own fn.readers.file and decoders.image_random_crop, with --threads or one more; on a GPU also
                 decoders.image ("whole"), and that alone where its decoder fails on windows

The last three (`_peers.py`) run once per batch size, with the first engine. Each has several ways; the first round
finds the fastest, whose name is in the column `way`, and the others run no more.

Columns are those of `dali_feed/bench/loading.py`, which says what each is; results/loader.csv has more of them than the
table. `dali-feed bench loader` measures alike over images of your own.

Nothing here passes or fails by a time.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from _kafka import kafka_missing, topic
from _peers import dali_reader, spdl_loader, spdl_missing
from _results import RESULTS

from dali_feed import Tuning
from dali_feed.bench.ceiling import Ceiling
from dali_feed.bench.contract import Contestant, Job, Outcome, Steps, Topic
from dali_feed.bench.facts import facts, jpeg_engine
from dali_feed.bench.loading import COLUMNS, SHOWN, measure, told_in_csv
from dali_feed.bench.loop import Loop
from dali_feed.bench.ours import Ours
from dali_feed.bench.peers.torch_loader import Torch
from dali_feed.bench.photos import HEIGHT, WIDTH, photos
from dali_feed.bench.rows import append, table
from dali_feed.bench.turns import Listener, Make
from dali_feed.bench.work import CROP, cuda_index
from dali_feed.engines.dali.regions import trouble

TABLE = (*SHOWN[:9], "feed us", "own us", "take us", "p50 ms", "p99 ms", "peak MB")
COPIES = 4  # of the images in the topic, so that the end of an epoch is not what is measured


class Failures(Listener):
    """Says who failed."""

    def failed(self, who: str, way: str, reason: str) -> None:
        """At once, for a run may take an hour."""
        print(f"{who}{'/' if way else ''}{way}: FAILED, no row: {reason}", flush=True)


@dataclass(frozen=True, slots=True)
class Peer:
    """One of `_peers.py` as a contestant."""

    name: str
    makes: Mapping[str, Make]
    reason: str | None = None
    version: str = ""

    def missing(self, job: Job) -> str | None:
        """Found out beforehand."""
        return self.reason

    def ways(self, job: Job) -> Sequence[str]:
        """All."""
        return list(self.makes)

    def turn(self, job: Job, way: str) -> AbstractContextManager[Steps]:
        """Made afresh."""
        return self.makes[way]()


def ours_for(engine: str, args: argparse.Namespace) -> list[Contestant]:
    """Ours and what they are measured by, in the order of their turns."""
    chosen: list[Contestant] = [Ours(reads, engine) for reads in ("tar", "folder") if reads in args.sources]
    chosen.append(Ceiling(engine))
    if engine == "host":
        chosen.append(Loop())
    if "kafka" in args.sources:
        chosen.append(Ours("kafka", engine))
    return chosen


def peers_for(job: Job, args: argparse.Namespace) -> list[Contestant]:
    """The other loaders, each in all its ways."""
    root, threads, batch = job.data.files, job.threads, job.batch
    files = sorted(map(str, root.glob("*/*.jpg")))
    on_gpu = args.device.type == "cuda"
    spdl = {
        f"batches x{count}": spdl_loader(files, batch, count, whole=True)
        for count in sorted({threads, threads + 1, 2 * threads})
    }
    spdl[f"images x{2 * threads}"] = spdl_loader(files, batch, 2 * threads, whole=False)
    dali: dict[str, Make] = {}
    for count in (threads, threads + 1):
        if not on_gpu or trouble(cuda_index(args.device), Tuning()) is None:  # or it may take this process along
            dali[f"x{count}"] = dali_reader(root, batch, count, args.device)
        if on_gpu:
            dali[f"whole x{count}"] = dali_reader(root, batch, count, args.device, whole=True)
    reason = "measured on the CPU alone" if on_gpu else spdl_missing(files[0])
    return [Torch(args.workers), Peer("spdl", spdl, reason), Peer("dali-reader", dali)]


def main() -> None:
    """Measure, print, and add rows to results/loader.csv."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"), help="default %(default)s")
    parser.add_argument("--seconds", type=float, default=6, help="of a turn (default %(default)s)")
    parser.add_argument("--repeats", type=int, default=5, help="turns of each contestant (default %(default)s)")
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--sources", nargs="*", choices=("tar", "folder", "kafka"), default=["tar", "folder", "kafka"])
    parser.add_argument("--no-peers", action="store_true", help="leave out torch, spdl and dali-reader")
    parser.add_argument("--engines", nargs="+", choices=("host", "dali"), default=None, help="default: all there are")
    parser.add_argument("--workers", type=int, default=2, help="of torch's DataLoader (default %(default)s)")
    parser.add_argument("--threads", type=int, default=None, help="of the decoder (default: the CPUs)")
    parser.add_argument("--photos", type=int, default=3000, help="different images (default %(default)s)")
    parser.add_argument("--data", type=Path, default=None, help="where they are kept (default: the user's cache)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where loader.csv is (default: beside this file)")
    args = parser.parse_args()
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
        whole = data.data
        if no_broker is None:
            there = stack.enter_context(topic(record for _ in range(COPIES) for record in data.records()))
            whole = replace(whole, topic=Topic(there.name, there.servers, there.pid))
            print(f"{'kafka':10} {there.broker}: {there.count:,} records, {there.size / 1e6:,.0f} MB")
        for engine, batch in itertools.product(args.engines, args.batches):
            job = Job(whole, batch, str(args.device), made["threads"], Path())
            contestants, outcome = ours_for(engine, args), Outcome("loader", {})
            if not args.no_peers and engine == args.engines[0]:
                contestants += peers_for(job, args)
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
