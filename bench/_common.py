"""What the programs of this folder share: their arguments, results, a broker, a compiler, and steps in processes.

The law: a program says what is raced, in heats; how turns are taken and what is kept is the package's runner's.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from dali_feed.bench.report import kept, shown_columns, text_of
from dali_feed.bench.runner import Called, Contestant, Listener, Opens, Race, Timed, about_machine, named, opened, race
from dali_feed.external_sources.kafka.by_column import librdkafka

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "tests"))  # what tests use too: a broker, damaged images

from kit.broker import real  # noqa: E402

__all__ = ["HERE", "Heat", "broker", "child", "compiled", "main", "new_topic", "once", "timed"]

Options = argparse.Namespace


@dataclass(frozen=True, slots=True)
class Heat:
    """Contestants that take turns at one case; `seconds` 0: a turn is one step; `server`: the broker's process."""

    case: str
    contestants: Sequence[Contestant]
    unit: str = "images"
    seconds: float = 0.0
    server: int | None = None


class _Lines(Listener):
    def took(self, who: str, way: str, rate: float) -> None:
        print(f"{named(who, way)}: {rate:,.4g}/s", file=sys.stderr, flush=True)

    def failed(self, who: str, way: str, reason: str) -> None:
        print(f"{named(who, way)}: FAILED: {reason}", file=sys.stderr, flush=True)


def main(doc: str, kind: str, cases: Mapping[str, Callable[[Options], Iterable[Heat]]], shown: Sequence[str]) -> int:
    """Run the cases that are asked for; print and keep a race for each unit. 1 where a contestant failed."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", choices=[[], *cases], help="default: all")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each contestant (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=4.0, help="of a turn (default %(default)s)")
    parser.add_argument("--scale", type=float, default=1.0, help="of all sizes; 0.01 only shows that it works")
    parser.add_argument("--folder", default=None, help="where large files are written")
    parser.add_argument("--out", type=Path, action="append", help=f"default: results/{kind}.jsonl")
    options = parser.parse_args()
    races: dict[str, Race] = {}
    about = about_machine() | {"rounds": options.rounds, "seconds": options.seconds, "scale": options.scale}
    try:
        for name in options.cases or cases:
            for heat in cases[name](options):
                each = races.setdefault(heat.unit, Race(kind, heat.unit, about=about))
                each.shown = ["case", "who", "way", each.figure, "least", "most", *shown]
                each.shown += ["beside", "of it", "cpu us", "busy"]
                how: dict[str, Any] = {"rounds": options.rounds, "seconds": heat.seconds, "server": heat.server}
                race(each, heat.contestants, case=heat.case, heard=_Lines(), **how)
    except KeyboardInterrupt:
        print("interrupted: what follows was measured before", file=sys.stderr)
    for each in races.values():
        columns = shown_columns(each)
        print("\t".join(columns))
        for row in each.rows:
            print("\t".join(text_of(column, each.cell(row, column)) for column in columns))
        for who, reason in each.missing.items():
            print(f"{who}: NOT MEASURED: {reason}")
        for path in options.out or [HERE / "results" / f"{kind}.jsonl"]:
            kept(each, path)
    return int(any(reason.startswith("failed") for each in races.values() for reason in each.missing.values()))


def once(work: Callable[[], Any]) -> Opens:
    """`Contestant.opens` of a turn that is one call, which gives what `Called` takes."""
    return opened(lambda: Called(work))


def timed(work: Callable[[], tuple[float, float, dict[str, float | str]]]) -> Opens:
    """The same of a call that knows the seconds of it that count."""
    return opened(lambda: Timed(work))


def child(*arguments: str, **more: Any) -> dict[str, Any]:
    """What a process printed as its last line, JSON. CalledProcessError where it failed."""
    done = subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.PIPE, text=True, **more)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


@contextmanager
def broker(**options: Any) -> Iterator[real.Cluster]:
    """Apache Kafka on this machine, or the cluster at KAFKA_BOOTSTRAP. SystemExit where there is none."""
    if servers := os.environ.get("KAFKA_BOOTSTRAP"):
        yield real.Cluster(servers)
        return
    if (missing := real.missing()) is not None:
        print(f"NOT RUN: {missing}")
        raise SystemExit(0)
    with real.RealBroker(**options) as running:
        yield running


@contextmanager
def new_topic(cluster: real.Cluster, partitions: int = 4, **options: Any) -> Iterator[str]:
    """An empty topic, which is deleted at the end."""
    name = f"dali-feed-bench-{uuid.uuid4().hex[:8]}"
    cluster.create(name, partitions, **options)
    try:
        yield name
    finally:
        cluster.delete(name)


@cache
def compiled(source: Path) -> str | None:
    """The program of a file in C, linked with confluent_kafka's librdkafka; None where nothing compiles it here."""
    library = librdkafka()
    if shutil.which("gcc") is None or not library:
        return None
    out = Path(tempfile.mkdtemp(prefix="dali_feed-bench-"), source.stem)
    atexit.register(shutil.rmtree, out.parent, ignore_errors=True)
    command = ["gcc", "-O2", "-Wall", "-Werror", str(source), str(library), "-o", str(out), "-pthread"]
    command += [f"-Wl,-rpath,{Path(str(library)).parent}", "-Wl,--allow-shlib-undefined"]
    subprocess.run(command, check=True)
    return str(out)
