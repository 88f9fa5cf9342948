"""`dali-feed tune`: the fastest `Tuning` for this machine and a user's own data, in turns in the bench's runner."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dali_feed.cli.options import Config, Device, Sources, Timeout, load_object
from dali_feed.errors import ConfigError

if TYPE_CHECKING:
    from dali_feed.options import Tuning

TURN = 1.5  # seconds, beside making the loader and its warm-up
ROUNDS = 3
GAIN = 1.05  # what another setting must win over the usual one: less is noise


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
    seconds: Annotated[float, typer.Option(min=1, help="About how long it may take.")] = 60.0,
    cpus: Annotated[
        int | None,
        typer.Option(min=1, help="Number of CPUs that the run will have.", show_default="those that this process has"),
    ] = None,
    shuffle: Annotated[bool, typer.Option(help="Measure a shuffled order.")] = True,
    config: Config = None,
    timeout: Timeout = 10.0,
) -> None:
    """Measure which Tuning is fastest on your own data, and print the line to paste.

    It tries threads, then readers, then batches in flight, each in turns with the best so far. None of them changes a
    batch. Ctrl-C prints the best so far.
    """
    from dali_feed.bench.ours import loader, ours
    from dali_feed.bench.runner import Contestant, Race, race
    from dali_feed.cli.bench import listening
    from dali_feed.cli.targets import Access, source_of
    from dali_feed.loader.arguments import torch_device
    from dali_feed.options import BadRecords, Tuning

    feeding, until = source_of(source, Access.of(config, timeout)), time.perf_counter() + seconds
    recipe, where, best, rates = _transform(transform), str(torch_device(device)), Tuning(), dict[str, float]()
    options: dict[str, Any] = {"device": where, "shuffle": shuffle, "transform": recipe, "bad": BadRecords(limit=None)}

    def contestant(name: str, tuning: Tuning) -> Contestant:
        return Contestant(name, ours(lambda: loader(feeding, batch, tuning=tuning, **options)), role="ours")

    with _on(cpus), listening() as heard:
        try:
            for name, settings in _steps():
                tries = {_line(each): each for each in (best, *(replace(best, **{name: value}) for value in settings))}
                result = Race("tune", "samples")
                chosen = [contestant(line, each) for line, each in tries.items()]
                race(result, chosen, rounds=ROUNDS, seconds=min(TURN, seconds / 20), heard=heard, until=until)
                ratios = {row.who: ratio.median for row in result.rows if (ratio := result.ratio(row, _line(best)))}
                rates |= {row.who: float(result.cell(row, result.figure) or 0) for row in result.rows}
                fastest = max(ratios, key=lambda who: ratios[who], default=None)
                if fastest is not None and ratios[fastest] > GAIN:
                    best = tries[fastest]
                for who, reason in result.missing.items():
                    typer.echo(f"{who}: NOT MEASURED: {reason}", err=True)
        except KeyboardInterrupt:
            typer.echo("interrupted: the best so far", err=True)
    if not rates:
        typer.echo("nothing was measured; give more --seconds", err=True)
        raise typer.Exit(1)
    usual = rates.get("Tuning()", 0.0)
    typer.echo(f"{_line(best)}  # {rates.get(_line(best), 0.0):,.0f} samples/s; Tuning() gives {usual:,.0f}")


def _steps() -> Iterator[tuple[str, list[Any]]]:
    from dali_feed.processes import whole_cores

    cores = whole_cores()
    yield "threads", sorted({max(1, cores // 2), max(1, cores - 1), cores + 1})
    yield "readers", [1, 4, 8]
    yield "prefetch", [1, 4]


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
