"""Images per second beside the ceiling, the bare loop and the usual loaders, in one run.

    python bench/bench_loader.py [--device cpu] [--seconds 6] [--repeats 5] [--batches 64 256] [--workers 2]
                                 [--sources tar folder kafka] [--engines host dali] [--no-peers]

RandomResizedCrop(224), flip, float32, Normalize of 500x375 JPEGs. For each engine contestants
take turns, each made afresh:

    tar          our loader, tar shards in the page cache
    folder       our loader over the files that torch's reads, as it is given an ImageFolder
    ceiling      the same engine with the same threads, fed from memory (`_contestants.py`)
    loop         beside the host engine: its decoder and resize in a bare loop over bytes in memory (`_loop.py`)
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

Columns, of which a row of results/loader.csv has more:

    img/s, least, most   median of the turns, and the others
    of ceiling           images/s over those of the ceiling in the same round, median of the rounds
    of loop              the same over those of the loop, where it ran
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
import functools
import itertools
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import torch
from _contestants import CROP, Make, ceiling, cuda_index, ours
from _harness import RESULTS, Turn, append, facts, jpeg_engine, quantiles, run_turn, spread, table
from _kafka import Topic, kafka_missing, topic
from _loop import loop
from _peers import dali_reader, spdl_loader, spdl_missing, torch_loader
from _photos import HEIGHT, WIDTH, Photos, photos

from dali_feed import Shuffle, Tuning
from dali_feed.engines.dali.regions import trouble
from dali_feed.external_sources import FileList, KafkaTopic, ShardSet

SHOWN = [
    "who",
    "way",
    "img/s",
    "least",
    "most",
    "of ceiling",
    "of loop",
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
    """Every contestant's turns. Of those named WHO/WAY only each WHO's fastest goes on after the first round."""
    turns: dict[str, list[Turn]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, those in list(turns.items()):
            try:
                those.append(run_turn(contestants[name], seconds))
            except Exception as error:  # whatever it fails on, the others are measured
                if name == "ceiling":  # beside which all are told
                    raise
                print(f"{name}: FAILED, no row: {type(error).__name__}: {error}", flush=True)
                del turns[name]
        fastest: dict[str, str] = {}
        for name in sorted(turns, key=lambda name: turns[name][0].rate):
            fastest[name.partition("/")[0]] = name
        turns = {name: those for name, those in turns.items() if name in fastest.values()}
    return turns


def ratios(turns: list[Turn], beside: list[Turn]) -> tuple[float, float, float]:
    """Rates over those of another contestant in the same rounds: median, least and most."""
    return spread(turn.rate / other.rate for turn, other in zip(turns, beside, strict=True))


def row_of(name: str, turns: list[Turn], beside: list[Turn], bare: list[Turn] | None) -> dict[str, object]:
    """What is told of a contestant; `beside` are the ceiling's turns of the same rounds, `bare` the loop's."""
    rate, least, most = spread(turn.rate for turn in turns)
    ratio, of_loop = ratios(turns, beside), ratios(turns, bare) if bare else None
    cpu = spread(turn.cpu / turn.images for turn in turns)[0]
    cpu_ratio = spread(top.cpu / top.images / (turn.cpu / turn.images) for turn, top in zip(turns, beside, strict=True))
    p50, p99 = quantiles(turns)
    notes = {name: spread(turn.notes[name] for turn in turns)[0] for name in turns[0].notes}
    beside_cpu = spread(turn.beside_cpu / turn.images for turn in turns)[0]
    who, _, way = name.partition("/")
    return {
        "who": who,
        "way": way,
        "img/s": round(rate),
        "least": round(least),
        "most": round(most),
        "of ceiling": f"{ratio[0]:.3f}",
        "of ceiling, least": f"{ratio[1]:.3f}",
        "of ceiling, most": f"{ratio[2]:.3f}",
        "of loop": f"{of_loop[0]:.3f}" if of_loop else "",
        "of loop, least": f"{of_loop[1]:.3f}" if of_loop else "",
        "of loop, most": f"{of_loop[2]:.3f}" if of_loop else "",
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
    """Ours and what they are measured by, in the order of their turns."""
    tuning = Tuning(threads=args.threads)
    shards: Callable[[], ShardSet] = lambda: ShardSet(data.linked)  # noqa: E731
    payloads = functools.cache(lambda: [jpeg for jpeg, _ in data.records()])  # the same bytes objects in every turn
    chosen: dict[str, Make] = {}
    if "tar" in args.sources:
        chosen["tar"] = ours(shards, batch, tuning, args.device, engine)
    if "folder" in args.sources:  # what torch's loader reads, with the import changed
        chosen["folder"] = ours(lambda: FileList.from_folder(data.files), batch, tuning, args.device, engine)
    chosen["ceiling"] = ceiling(payloads, batch, tuning, args.device, engine)
    if engine == "host":
        chosen["loop"] = loop(payloads, batch, tuning.cpu_threads)
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
    return chosen


def peers_for(data: Photos, batch: int, missing: dict[str, str], args: argparse.Namespace) -> dict[str, Make]:
    """The other loaders, each in all its ways, without those that are missing."""
    root, threads = data.files, Tuning(threads=args.threads).cpu_threads
    files = sorted(map(str, root.glob("*/*.jpg")))
    chosen: dict[str, Make] = {}
    for workers, uint8 in itertools.product((args.workers, args.workers + 1), (False, True)):
        way = f"torch/{'uint8' if uint8 else 'all'} x{workers}"
        chosen[way] = torch_loader(root, batch, workers, args.device, uint8=uint8)
    if "spdl" not in missing:
        for count in sorted({threads, threads + 1, 2 * threads}):
            chosen[f"spdl/batches x{count}"] = spdl_loader(files, batch, count, whole=True)
        chosen[f"spdl/images x{2 * threads}"] = spdl_loader(files, batch, 2 * threads, whole=False)
    if "dali-reader" not in missing:
        on_gpu = args.device.type == "cuda"
        for count in (threads, threads + 1):
            if not on_gpu or trouble(cuda_index(args.device), Tuning()) is None:  # or it may take this process along
                chosen[f"dali-reader/x{count}"] = dali_reader(root, batch, count, args.device)
            if on_gpu:
                chosen[f"dali-reader/whole x{count}"] = dali_reader(root, batch, count, args.device, whole=True)
    return chosen


def missing_of(data: Photos, args: argparse.Namespace) -> dict[str, str]:
    """Who cannot take part, and why."""
    reasons = {"kafka": kafka_missing() if "kafka" in args.sources else "not asked for"}
    if not args.no_peers:
        gpu = None if args.device.type == "cpu" else "measured on the CPU alone"
        reasons |= {"spdl": gpu or spdl_missing(str(next(data.files.glob("*/*.jpg"))))}
    return {name: reason for name, reason in reasons.items() if reason is not None}


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
    made = facts() | {"image": f"{WIDTH}x{HEIGHT}", "crop": CROP, "mean bytes": data.mean_bytes, "images": data.count}
    made |= {"device": args.device if args.device.type == "cpu" else torch.cuda.get_device_name(args.device)}
    made["workers"] = args.workers
    made |= {"threads": Tuning(threads=args.threads).cpu_threads, "seconds": args.seconds, "repeats": args.repeats}
    print("\n".join(f"{name:10} {value}" for name, value in made.items()))
    missing = missing_of(data, args)
    with ExitStack() as stack:
        kafka = None
        if "kafka" not in missing:
            kafka = stack.enter_context(topic(record for _ in range(COPIES) for record in data.records()))
            print(f"{'kafka':10} {kafka.broker}: {kafka.count:,} records, {kafka.size / 1e6:,.0f} MB")
        for engine, batch in itertools.product(args.engines, args.batches):
            chosen = contestants_for(data, kafka, batch, engine, args)
            if not args.no_peers and engine == args.engines[0]:
                chosen |= peers_for(data, batch, missing, args)
            turns = turns_of(chosen, args.repeats, args.seconds)
            new = [row_of(name, those, turns["ceiling"], turns.get("loop")) for name, those in turns.items()]
            print(f"\nengine {engine}, batch {batch}\n{table(new, SHOWN)}")
            for row in new:
                if row["broker us"]:
                    print(
                        f"{row['who']}: the broker takes another {row['broker us']} us of CPU per image on these CPUs"
                    )
            for name, reason in missing.items():
                if name == "kafka" or engine == args.engines[0]:
                    print(f"{name}: NOT MEASURED: {reason}")
            rows = [made | {"jpeg engine": jpeg_engine(), "engine": engine, "batch": batch} | row for row in new]
            print(f"\nadded {len(rows)} rows to {append('loader', rows, args.results)}", flush=True)


if __name__ == "__main__":
    main()
