"""`dali-feed tune`: the fastest `Tuning` for this machine and a user's own data, in turns in the bench's runner."""

from __future__ import annotations

import functools
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dali_feed.cli.options import Config, Device, Sources, Storage, Timeout, load_object
from dali_feed.errors import ClosedError, ConfigError, EngineError

if TYPE_CHECKING:
    from dali_feed.loader import DataLoader
    from dali_feed.options import Tuning

TURN = 1.5  # seconds of a turn at most, behind its first batches
WARM = 6  # first batches of a turn, which are not counted where a turn has more than twice as many
ROUNDS = 3
GAIN = 1.05  # what another setting must win over the usual one: less is noise
LOOK = 0.25  # of the time at most for the first look


def tune(  # noqa: PLR0913, PLR0917  an option each
    source: Sources,
    transform: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py:NAME",
            help="Your transform, by the file that defines it; the file is run. none: images as they are.",
            show_default="a random crop of 224, a flip, floats",
        ),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Samples per batch.")] = 64,
    device: Device = None,
    seconds: Annotated[float, typer.Option(min=1, help="How long it may take.")] = 60.0,
    cpus: Annotated[
        int | None,
        typer.Option(min=1, help="Number of CPUs that the run will have.", show_default="those that this process has"),
    ] = None,
    shuffle: Annotated[bool, typer.Option(help="Measure a shuffled order.")] = True,
    config: Config = None,
    storage_option: Storage = None,
    timeout: Timeout = 10.0,
) -> None:
    """Measure which Tuning is fastest on your own data, and print the line to paste.

    After a look at the usual Tuning it tries threads, readers and batches in flight, each in turns with the best so
    far; readers first where reading takes long. None of them changes a batch. What there was no time for is named.
    Ctrl-C prints the best so far.
    """
    from dali_feed.bench.ours import loader
    from dali_feed.bench.runner import LATE, Contestant, Race, Timed, opened, race
    from dali_feed.cli.bench import listening
    from dali_feed.cli.targets import Access, source_of
    from dali_feed.loader.arguments import torch_device
    from dali_feed.options import BadRecords, Tuning

    feeding, ends = source_of(source, Access.of(config, timeout, storage_option)), time.perf_counter() + seconds
    recipe, where, best, rates = _transform(transform), str(torch_device(device)), Tuning(), dict[str, float]()
    options: dict[str, Any] = {"device": where, "shuffle": shuffle, "transform": recipe, "bad": BadRecords(limit=None)}
    turn, missing = min(TURN, seconds / 20), dict[str, str]()

    def raced(tries: list[Tuning], until: float, *, rounds: int = ROUNDS, slow: bool = False) -> Race:
        limit = max(turn, (until - time.perf_counter()) / len(tries))
        result, chosen = Race("tune", "samples"), list[Contestant]()
        for each in tries:
            make = functools.partial(loader, feeding, batch, tuning=each, **options)
            steps = functools.partial(_turn, make, turn, limit, slow=slow)
            chosen.append(Contestant(_line(each), opened(functools.partial(Timed, steps)), role="ours"))
        race(result, chosen, rounds=rounds, heard=heard, until=until)
        missing.update(result.missing)
        rates.update({row.who: float(result.cell(row, result.figure) or 0) for row in result.rows})
        return result

    with _on(cpus), listening() as heard:
        try:
            first = raced([best], time.perf_counter() + LOOK * seconds, rounds=1)
            usual = first.row(_line(best))
            slow = usual is None or float(first.cell(usual, "first") or 0) > TURN
            sweeps = _sweeps(readers_first=usual is None or slow or "source-bound" in str(usual.extra["verdict"]))
            for number, (name, settings) in enumerate(sweeps):
                known = [best] if _line(best) in rates else []  # else it had no batch in its time, and has none again
                share = len(sweeps) - number if known else 1  # who has none needs all the time
                until = time.perf_counter() + (ends - time.perf_counter()) / share
                tries = known + [replace(best, **{name: value}) for value in settings]
                result = raced(list(dict.fromkeys(tries)), until, slow=slow)
                ratios = {row.who: ratio.median for row in result.rows if (ratio := result.ratio(row, _line(best)))}
                if not known:
                    ratios = {row.who: rates[row.who] for row in result.rows}
                fastest = max(ratios, key=lambda who: ratios[who], default=None)
                if fastest is not None and ratios[fastest] > (GAIN if known else 0):
                    best = next(each for each in tries if _line(each) == fastest)
        except KeyboardInterrupt:
            typer.echo("interrupted: the best so far", err=True)
    for who, reason in missing.items():
        if reason != LATE:
            typer.echo(f"{who}: NOT MEASURED: {reason}", err=True)
    if late := [who for who, reason in missing.items() if reason == LATE and who not in rates]:
        typer.echo(f"left out, as the time was over: {', '.join(late)}; give more --seconds", err=True)
    if not rates:
        typer.echo("nothing was measured; give more --seconds", err=True)
        raise typer.Exit(1)
    usual_rate = f"{rates['Tuning()']:,.0f}" if "Tuning()" in rates else "no batch in its time"
    typer.echo(f"{_line(best)}  # {rates.get(_line(best), 0.0):,.0f} samples/s; Tuning() gives {usual_rate}")


def _turn(
    make: Callable[[], DataLoader], turn: float, limit: float, *, slow: bool
) -> tuple[float, float, dict[str, float | str]]:
    """Samples, seconds, and what it says of itself. Raises EngineError where no batch came within `limit` seconds.

    `slow`: all seconds count, from the opening on: where a read takes longer than a turn, what lies ready says nothing.
    """
    from dali_feed.bench.ours import OurSteps

    units, whole, begun, first = 0, 0, time.perf_counter(), 0.0
    with make() as feeding:
        ender = threading.Timer(limit, feeding.close)  # a read that hangs does not keep the command
        ender.start()
        try:
            steps, since = OurSteps(feeding), begun
            for number in itertools.count(1):
                count = next(steps)
                units, whole = units + count, whole + count
                now = time.perf_counter()
                first = first or now
                if slow:
                    over = now - first >= turn
                else:
                    over = number > WARM and now - since >= turn
                    if number == WARM:
                        units, since = 0, now
                        steps.begins()
                if over:
                    break
        except ClosedError:
            now = time.perf_counter()
        finally:
            ender.cancel()
            ender.join()
        if not first:
            raise EngineError(f"tune: a first batch must come within {limit:.1f} s; none came; give more --seconds")
        return units or whole, now - (since if units else begun), {"first": first - begun, **steps.extras()}


def _sweeps(*, readers_first: bool) -> list[tuple[str, list[Any]]]:
    """Settings, and the values to try, in their order."""
    from dali_feed.options import whole_cores

    cores = whole_cores()
    threads: tuple[str, list[Any]] = "threads", sorted({max(1, cores // 2), max(1, cores - 1), cores + 1})
    if readers_first:
        return [("readers", [8, 4, 1]), ("prefetch", [4, 1]), threads]
    return [threads, ("readers", [1, 4, 8]), ("prefetch", [1, 4])]


def _line(tuning: Tuning) -> str:
    """As it is pasted: what differs from the usual."""
    from dali_feed.options import Tuning

    values = ((name, getattr(tuning, name)) for name in ("threads", "readers", "prefetch"))
    return f"Tuning({', '.join(f'{name}={value}' for name, value in values if value != getattr(Tuning(), name))})"


def _transform(target: str | None) -> Any:
    from dali_feed.bench.ours import transform

    if target is None:
        return transform()
    return None if target == "none" else load_object("--transform", target)


@contextmanager
def _on(cpus: int | None) -> Iterator[None]:
    """The block's threads run on so many of the CPUs, as the run will. ConfigError for more than there are."""
    every = os.sched_getaffinity(0)
    if cpus is not None and cpus > len(every):
        raise ConfigError(f"--cpus: must be at most the {len(every)} that this process may use; found {cpus}")
    try:
        os.sched_setaffinity(0, sorted(every)[:cpus])
        yield
    finally:
        os.sched_setaffinity(0, every)
