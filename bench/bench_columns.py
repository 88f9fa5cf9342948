"""Records of any shape: small arrays from tar and from Kafka beside straight reads and peers; pairs beside images.

    python bench/bench_columns.py [--seconds 2] [--repeats 3] [--batch 256] [--only arrays features tables pairs kafka]
                                  [--mosaic PYTHON] [--quick]

Contestants take turns, each made afresh. The cases, and beside whom each contestant is told (`beside`, `of it`: the
median of the ratios within a round):

    arrays    32x32x3 uint8 (3,072 bytes) and a label from tar shards in the page cache, beside `straight`: the same
              files read in order by one thread, 4 MiB at a time, into memory that is used again. "ours" reads shuffled
              record by record, "ours in windows" in windows of 32 extents of 256 records, "ours in order" not shuffled.
              Peers shuffle too: torch's DataLoader over the members' offsets, with collate or making whole batches
              by itself; WebDataset with a buffer of 1,000; Mosaic Streaming over the same records as MDS, run by the
              interpreter --mosaic, which has mosaicml-streaming (it wants an older NumPy than we do). Each has several
              ways, and the first round finds the fastest
    features  2048 float32 (8 KB) and a label, beside `straight`
    tables    the features as .npy files (`ArrayShards`) and as Parquet in row groups of 1,024 (`ParquetRows`), batches
              of 128, shuffled (Parquet in windows of groups) and in order, beside `straight`, a plain read of the .npy
    kafka     the same two in topics of 4 partitions and --topic-mb each, whole passes: `straight`, our bounded reader
              with two threads (bench_kafka's "straight x2", with labels), `plain` (confluent_kafka's consumer, values
              counted and dropped), `C straight` (read_c.c, without labels), and our loader in order. Labels are
              headers. The broker runs on the same machine unless KAFKA_BOOTSTRAP names one. A pass begins with new
              consumers and connections, so short ones tell of those
    pairs     500x375 JPEGs, RandomResizedCrop(224) and floats: the image with its caption, mask or boxes beside the
              image alone, and image and label with columns= beside image and label without

Rows go to results/columns.csv. Nothing here passes or fails by a time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from _columns import Small, as_tables, mosaic, ours, pairs, small, straight, torch_tar, webdataset, webdataset_missing
from _kafka import Topic, kafka_missing, topic
from _read_c import missing_c
from _results import RESULTS
from bench_kafka import in_c, plain
from bench_kafka import ours as read_by_ours

from dali_feed import DataLoader, Shuffle, Tuning
from dali_feed.bench.facts import facts
from dali_feed.bench.photos import photos
from dali_feed.bench.rows import append, table
from dali_feed.bench.turns import Make, Turn, run_turn, spread
from dali_feed.bench.work import transform
from dali_feed.columns import Array, Boxes, Image, Kind, Mask, Number, Text
from dali_feed.external_sources import ArrayShards, KafkaTopic, ParquetRows, ShardSet

CASES = ("arrays", "features", "tables", "kafka", "pairs")
TABLE_BATCH = 128
SHOWN = ("case", "who", "way", "samples/s", "least", "most", "MB/s", "beside", "of it", "cpu us", "feed us", "take us")
WINDOWS = Shuffle(extent=256, window=32)


def turns_of(ways: dict[str, Callable[[], Turn]], repeats: int) -> dict[str, list[Turn]]:
    """Everyone's turns. Of those named WHO/WAY only each WHO's fastest goes on after the first round."""
    turns: dict[str, list[Turn]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, those in list(turns.items()):
            try:
                those.append(ways[name]())
            except Exception as error:  # noqa: BLE001  whatever one fails on, the others are measured
                print(f"{name}: FAILED, no row: {type(error).__name__}: {error}", flush=True)
                del turns[name]
        fastest: dict[str, str] = {}
        for name in sorted(turns, key=lambda name: turns[name][0].rate):
            fastest[name.partition("/")[0]] = name
        turns = {name: those for name, those in turns.items() if name in fastest.values()}
    return turns


def rows_of(case: str, turns: dict[str, list[Turn]], beside: dict[str, str], size: int) -> list[dict[str, object]]:
    """A row for each; `beside` names the one that each is told beside, `size` is the bytes of a record."""
    rows: list[dict[str, object]] = []
    for name, those in turns.items():
        rate, least, most = spread(turn.rate for turn in those)
        who, _, way = name.partition("/")
        its = beside.get(who, "")
        both = zip(those, turns.get(its, ()), strict=False)
        ratio = spread(turn.rate / other.rate for turn, other in both) if turns.get(its) else None
        rows.append(
            {
                "case": case,
                "who": who,
                "way": way,
                "samples/s": round(rate),
                "least": round(least),
                "most": round(most),
                "bytes": size,
                "MB/s": round(rate * size / 1e6),
                "beside": its,
                "of it": f"{ratio[0]:.3f}" if ratio else "",
                "of it, least": f"{ratio[1]:.3f}" if ratio else "",
                "of it, most": f"{ratio[2]:.3f}" if ratio else "",
                "cpu us": f"{spread(turn.cpu / turn.images * 1e6 for turn in those)[0]:.1f}",
                "feed us": f"{those[0].notes['feed_us']:.1f}" if "feed_us" in those[0].notes else "",
                "take us": f"{spread(turn.consumer_cpu / turn.images * 1e6 for turn in those)[0]:.1f}",
            }
        )
    return rows


def timed(make: Make, seconds: float) -> Callable[[], Turn]:
    """A turn of so many seconds."""
    return lambda: run_turn(make, seconds)


def tar_case(which: Small, batch: int, seconds: float, peers: dict[str, Make]) -> dict[str, Callable[[], Turn]]:
    """Ours, the straight read, and peers, over tar shards."""
    columns: dict[str, Kind] = {"x": Array(which.suffix, which.dtype, which.shape), "y": Number("cls")}
    shuffles: dict[str, bool | Shuffle] = {"ours": True, "ours in windows": WINDOWS, "ours in order": False}
    makes = {"straight": straight(which)}
    for name, shuffle in shuffles.items():
        makes[name] = ours(lambda: ShardSet(which.paths), batch, columns, shuffle=shuffle)
    return {name: timed(make, seconds) for name, make in (makes | peers).items()}


def table_case(which: Small, folder: Path, batch: int, seconds: float) -> dict[str, Callable[[], Turn]]:
    """Ours over the arrays in files of tables, and a plain read of the .npy."""
    x, y, rows = str(folder / "x.npy"), str(folder / "y.npy"), str(folder / "rows.parquet")
    columns: dict[str, Kind] = {"x": Array("x", which.dtype, which.shape), "y": Number("y")}
    makes = {"straight": straight(replace(which, paths=(x,)))}
    for name, shuffle in {"": True, " in order": False}.items():
        makes[f"ArrayShards{name}"] = ours(lambda: ArrayShards(x, label=y), batch, None, shuffle=shuffle)
        makes[f"ParquetRows{name}"] = ours(lambda: ParquetRows(rows, image=None), batch, columns, shuffle=shuffle)
    return {name: timed(make, seconds) for name, make in makes.items()}


def peers_of(which: Small, batch: int, python: str | None, missing: dict[str, str]) -> dict[str, Make]:
    """The other loaders, each in all its ways."""
    made: dict[str, Make] = {}
    for workers in (2, 3):
        made[f"torch/collate x{workers}"] = torch_tar(which, batch, workers, whole=False)
        made[f"torch/whole x{workers}"] = torch_tar(which, batch, workers, whole=True)
    if why := webdataset_missing():
        missing["webdataset"] = why
    else:
        made |= {f"webdataset/x{workers}": webdataset(which, batch, workers) for workers in (0, 2, 3)}
    if python is None:
        missing["mosaic"] = "no --mosaic PYTHON; it needs an interpreter that has mosaicml-streaming"
    else:
        made |= {f"mosaic/x{workers}": mosaic(which, python, batch, workers) for workers in (1, 2)}
    return made


def pass_of(which: Topic, read: Callable[[Topic], tuple[int, float, float]]) -> Turn:
    """One pass over a topic by one of bench_kafka's ways."""
    size, seconds, used = read(which)
    assert size == which.size, f"read {size} of {which.size} bytes"
    return Turn(which.count, seconds, used, 0.0, 0.0, [], 0)


def loaded(which: Topic, columns: dict[str, Kind], batch: int, readers: int) -> Turn:
    """One pass by our loader in order, from making its readers on."""
    source = KafkaTopic(which.name, which.servers, label=None)
    with DataLoader(source, batch, columns=columns, device="cpu", tuning=Tuning(readers=readers)) as loader:
        assert len(loader)  # the topic's ends and a sample are asked for here
        begun, used, taking, count = time.perf_counter(), time.process_time(), time.thread_time(), 0
        for item in loader:
            count += len(item["x"])
        assert count == which.count
        end, used, taking = time.perf_counter(), time.process_time() - used, time.thread_time() - taking
        loader.close()
        feed = loader.stats().feed_cpu / count * 1e6
    return Turn(count, end - begun, used, 0.0, taking, [], 0, {"feed_us": feed})


def kafka_case(which: Topic, told: Small, batch: int) -> dict[str, Callable[[], Turn]]:
    """Ours and the straight reads, whole passes."""
    array = Array("value", told.dtype, told.shape)
    ways: dict[str, Callable[[], Turn]] = {
        "straight": partial(pass_of, which, partial(read_by_ours, readers=2, shuffled=False)),
        "plain": partial(pass_of, which, plain),
    }
    if (missing := missing_c()) is not None:
        print(f"C: NOT MEASURED: {missing}")
    else:
        ways["C straight"] = partial(pass_of, which, partial(in_c, readers=0))
    for readers in (1, 2):
        ways[f"ours/x{readers}"] = partial(loaded, which, {"x": array, "y": Number("label")}, batch, readers)
        ways[f"ours, no label/x{readers}"] = partial(loaded, which, {"x": array}, batch, readers)
    return ways


def pairs_case(paths: list[str], batch: int, seconds: float) -> dict[str, Callable[[], Turn]]:
    """Images with what belongs to them."""
    image, chosen = Image("jpg", transform()), dict[str, dict[str, Kind] | None]()
    chosen["image alone"] = {"image": image}
    chosen["image and text"] = {"image": image, "text": Text("txt")}
    chosen["image and mask"] = {"image": image, "mask": Mask("seg.png")}
    chosen["image and boxes"] = {"image": image, "boxes": Boxes("boxes.json", more=0)}
    chosen["image and label"] = {"image": image, "label": Number("cls")}
    makes = {name: ours(lambda: ShardSet(paths), batch, kinds, shuffle=True) for name, kinds in chosen.items()}
    makes["no columns"] = ours(lambda: ShardSet(paths), batch, None, shuffle=True, transform=transform())
    return {name: timed(make, seconds) for name, make in makes.items()}


PAIRS_BESIDE = {f"image and {what}": "image alone" for what in ("text", "mask", "boxes")} | {
    "image and label": "no columns"
}


def main() -> None:
    """Measure, print, and add rows to results/columns.csv."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2, help="of a turn (default %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="turns of each contestant (default %(default)s)")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--image-batch", type=int, default=64)
    parser.add_argument("--records", type=int, default=60_000, help="of the arrays; a third as many features")
    parser.add_argument("--topic-mb", type=float, default=800, help="bytes of each topic (default %(default)s)")
    parser.add_argument("--photos", type=int, default=600)
    parser.add_argument("--only", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--mosaic", default=None, metavar="PYTHON", help="an interpreter with mosaicml-streaming")
    parser.add_argument("--quick", action="store_true", help="one second, two turns, a third of the records")
    parser.add_argument("--data", type=Path, default=None, help="where they are kept (default: the user's cache)")
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    if args.quick:
        args.seconds, args.repeats, args.records, args.photos = 1.0, 2, args.records // 3, args.photos // 3
        args.topic_mb /= 3
    arrays = small(args.records, "bin", "uint8", (32, 32, 3), args.data)
    features = small(args.records // 3, "f32", "float32", (2048,), args.data)
    made = facts() | {"torch threads": torch.get_num_threads(), "seconds": args.seconds, "repeats": args.repeats}
    made |= {"readers": Tuning().readers, "threads": Tuning().cpu_threads}
    print("\n".join(f"{name:10} {value}" for name, value in made.items()), flush=True)
    missing: dict[str, str] = {}
    added = 0

    def measure(
        case: str, ways: dict[str, Callable[[], Turn]], beside: dict[str, str], *, count: int, size: int, batch: int
    ) -> None:
        nonlocal added
        rows = rows_of(case, turns_of(ways, args.repeats), beside, size)
        print(f"\n{table(rows, SHOWN)}", flush=True)
        append("columns", [made | {"batch": batch, "records": count} | row for row in rows], args.results)
        added += len(rows)

    for case, which in (("arrays", arrays), ("features", features)):
        if case in args.only:
            which.touch()
            peers = peers_of(which, args.batch, args.mosaic, missing) if which is arrays else {}
            ways = tar_case(which, args.batch, args.seconds, peers)
            beside = dict.fromkeys((name.partition("/")[0] for name in ways), "straight")
            measure(f"{case}, tar", ways, beside, count=which.count, size=which.size, batch=args.batch)
    if "tables" in args.only:
        folder = as_tables(features, args.data)
        batch = min(args.batch, TABLE_BATCH)
        (folder / "x.npy").read_bytes()  # into the page cache
        (folder / "rows.parquet").read_bytes()
        ways = table_case(features, folder, batch, args.seconds)
        beside = dict.fromkeys(ways, "straight")
        measure("tables", ways, beside, count=features.count, size=features.size, batch=batch)
    if "pairs" in args.only:
        data = photos(args.photos, cache=args.data)
        ways = pairs_case(pairs(data, args.data), args.image_batch, args.seconds)
        measure("pairs, tar", ways, PAIRS_BESIDE, count=data.count, size=data.mean_bytes, batch=args.image_batch)
    if "kafka" in args.only and (why := kafka_missing()) is not None:
        missing["kafka"] = why
    elif "kafka" in args.only:
        for case, told in (("arrays", arrays), ("features", features)):
            which = replace(told, count=max(1, int(args.topic_mb * 1e6 / told.size)))
            with topic(which.records()) as there:
                ways = kafka_case(there, which, args.batch)
                beside = dict.fromkeys((name.partition("/")[0] for name in ways), "straight")
                measure(f"{case}, kafka", ways, beside, count=which.count, size=which.size, batch=args.batch)
    for name, reason in missing.items():
        print(f"{name}: NOT MEASURED: {reason}")
    print(f"\nadded {added} rows to {args.results / 'columns.csv'}")


if __name__ == "__main__":
    main()
