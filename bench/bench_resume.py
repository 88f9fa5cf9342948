"""How long a restored loader takes to its first batch, by where in the epoch it stands; and what bad records cost.

    python bench/bench_resume.py [--repeats 5] [--sources tar kafka] [--engines host dali] [--seconds 6]

Resume: a new loader (RandomResizedCrop(224), batches of 64, shuffled) is given a state at 1 % and at 90 % of an epoch
in turns; counted is the time from its making to its first batch. An epoch is 36,000 images of tar shards in the page
cache, or 12,000 of a topic in windows of 64 MB. Rows go to results/resume.csv.

Bad records: images per second from shards of which 1 % are bad, beside the same shards whole, in turns. Half of the bad
ones are cut off, which the screen sees; half pass it and fail in the decoder. Rows go to results/bad.csv.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from _kafka import kafka_missing, topic
from _mutations import late
from _results import RESULTS

from dali_feed import DataLoader, Shuffle
from dali_feed.bench.facts import facts
from dali_feed.bench.photos import HEIGHT, WIDTH, photos
from dali_feed.bench.resuming import first_batch, loader_of, state_at
from dali_feed.bench.rows import append, table
from dali_feed.bench.turns import spread
from dali_feed.external_sources import KafkaTopic, ShardSet
from dali_feed.records.source import Source
from dali_feed.testing.shards import write_shard

BATCH = 64
COPIES = 4
PLACES = (0.01, 0.9)


def resumes(name: str, make: Callable[[], Source], shuffle: bool | Shuffle, repeats: int) -> list[dict[str, object]]:
    """A row per place."""

    def loader() -> DataLoader:
        return loader_of(make(), BATCH, shuffle=shuffle, engine="host")

    with loader() as one:
        batches = len(one)
    states = {place: state_at(loader, int(batches * place), BATCH) for place in PLACES}
    first_batch(loader, states[PLACES[0]])  # libraries are loaded by now
    times: dict[float, list[float]] = {place: [] for place in PLACES}
    for _ in range(repeats):
        for place in PLACES:
            times[place].append(first_batch(loader, states[place]))
    ratio = spread(b / a for a, b in zip(times[PLACES[0]], times[PLACES[1]], strict=True))[0]
    return [
        {
            "source": name,
            "at": f"{place:.0%}",
            **{key: f"{value:.3f}" for key, value in zip(("s", "least", "most"), spread(times[place]), strict=True)},
            "of 1%": f"{ratio:.2f}" if place != PLACES[0] else "1.00",
        }
        for place in PLACES
    ]


def rate(shards: list[str], engine: str, seconds: float) -> tuple[float, int]:
    """Images per second, and the bad records found."""
    with loader_of(ShardSet(shards), BATCH, engine=engine) as loader:
        images, begun = 0, 0.0
        while not begun or time.perf_counter() - begun < seconds:
            for batch, _ in loader:
                images += len(batch) if begun else 0
                begun = begun or time.perf_counter()
                if time.perf_counter() - begun >= seconds:
                    break
        return images / (time.perf_counter() - begun), loader.stats().bad


def damaged(records: list[tuple[bytes, int]]) -> list[tuple[bytes, int]]:
    """The same, one in a hundred bad: every other of those cut off, the others for the decoder to find."""
    made = list(records)
    for n in range(50, len(made), 100):
        payload, label = made[n]
        made[n] = (payload[: len(payload) // 2] if n % 200 == 50 else late(HEIGHT, WIDTH), label)
    return made


def bad_shards(data: Any, folder: Path) -> dict[str, list[str]]:
    """Whole and damaged ones."""
    records = list(data.records())
    shards: dict[str, list[str]] = {}
    for name, chosen in (("whole", records), ("1 % bad", damaged(records))):
        path = folder / f"{name[0]}.tar"
        write_shard(path, chosen)
        links = [folder / f"{name[0]}-{n:02d}.tar" for n in range(12)]
        for link in links:
            link.hardlink_to(path)
        shards[name] = [str(link) for link in links]
    return shards


def bad_rows(shards: dict[str, list[str]], engine: str, args: argparse.Namespace) -> list[dict[str, object]]:
    """A row for whole and one for damaged shards."""
    turns: dict[str, list[float]] = {name: [] for name in shards}
    found: dict[str, int] = {}
    for _ in range(args.repeats):
        for name, paths in shards.items():
            images, found[name] = rate(paths, engine, args.seconds)
            turns[name].append(images)
    ratio = spread(b / a for a, b in zip(turns["whole"], turns["1 % bad"], strict=True))[0]
    rows: list[dict[str, object]] = []
    for name, rates in turns.items():
        middle, least, most = (round(value) for value in spread(rates))
        beside = "1.000" if name == "whole" else f"{ratio:.3f}"
        rows.append(
            {
                "engine": engine,
                "shards": name,
                "img/s": middle,
                "least": least,
                "most": most,
                "bad found": found[name],
                "of whole": beside,
            }
        )
    return rows


def main() -> None:
    """Measure, print, and add rows to results/resume.csv and results/bad.csv."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6, help="of a turn (default %(default)s)")
    parser.add_argument("--sources", nargs="*", choices=("tar", "kafka"), default=["tar", "kafka"])
    parser.add_argument("--engines", nargs="*", choices=("host", "dali"), default=["host", "dali"])
    parser.add_argument("--photos", type=int, default=3000, help="different images (default %(default)s)")
    parser.add_argument("--data", type=Path, default=None, help="where they are kept (default: the user's cache)")
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    data = photos(args.photos, cache=args.data)
    data.touch()
    made = facts() | {"images": data.count, "batch": BATCH, "repeats": args.repeats}
    rows: list[dict[str, object]] = []
    if "tar" in args.sources:
        rows += resumes("tar", lambda: ShardSet(data.linked), shuffle=True, repeats=args.repeats)
    missing = kafka_missing() if "kafka" in args.sources else "not asked for"
    if missing is None:
        with ExitStack() as stack:
            kafka = stack.enter_context(topic(record for _ in range(COPIES) for record in data.records()))
            source = lambda: KafkaTopic(kafka.name, kafka.servers)  # noqa: E731
            rows += resumes("kafka", source, Shuffle(window=2), args.repeats)
    else:
        print(f"kafka: NOT MEASURED: {missing}")
    if rows:
        print(table(rows, list(rows[0])))
        print(f"\nadded {len(rows)} rows to {append('resume', [made | row for row in rows], args.results)}")
    with TemporaryDirectory(dir=data.root) as folder:
        shards = bad_shards(data, Path(folder))
        bad = [row for engine in args.engines for row in bad_rows(shards, engine, args)]
    print(table(bad, list(bad[0])))
    made |= {"seconds": args.seconds}
    print(f"\nadded {len(bad)} rows to {append('bad', [made | row for row in bad], args.results)}")


if __name__ == "__main__":
    main()
