"""`dali-feed tune`: the fastest `Tuning` for this machine and a user's own data, found and kept.

What it needs is imported when it runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dali_feed.cli.options import Config, Timeout

if TYPE_CHECKING:
    from dali_feed.feed import Feed

__all__ = ["tune"]

_SEARCH = 0.8  # share of the time; advice has the rest
_QUICK = 0.25  # share of the time with --quick


def tune(  # noqa: PLR0913, PLR0917  an option each
    source: Annotated[
        list[str],
        typer.Argument(help="Tar shards, an image folder, TFRecords, MDS, RecordIO, or kafka://host:port/topic."),
    ],
    transform: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py:NAME",
            help="Your transform, by the file that defines it; the file is run. none: images as they are.",
            show_default="a random crop of 224, a flip, floats",
        ),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Samples per batch.")] = 64,
    device: Annotated[
        str | None, typer.Option(help="cpu or cuda:N.", show_default="the CUDA device, or the CPU where there is none")
    ] = None,
    seconds: Annotated[float, typer.Option(min=1, help="About how long it may take.")] = 60.0,
    cpus: Annotated[
        int | None,
        typer.Option(min=1, help="Number of CPUs that the run will have.", show_default="those that this process has"),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Memory for encoded images and a cache together.", show_default="1GiB, and no cache"
        ),
    ] = None,
    shuffle: Annotated[bool, typer.Option(help="Measure a shuffled order.")] = True,
    quick: Annotated[bool, typer.Option("--quick", help="A quarter of the time, and no advice.")] = False,
    config: Config = None,
    timeout: Timeout = 10.0,
) -> None:
    """Measure which Tuning is fastest on your own data, print the line to paste, and keep it for Tuning.auto().

    It tries threads, readers, batches in flight and, with --memory, a cache, one step at a time, each in turns with the
    best so far. None of them changes a batch; settings that would are only shown. Ctrl-C keeps what it found.
    """
    from dali_feed.checks import bytes_of, whole
    from dali_feed.cli import tune_view
    from dali_feed.feed.advice import advised
    from dali_feed.feed.measuring import measured
    from dali_feed.feed.tuned import kept_away, key_of
    from dali_feed.options import Tuning

    seconds *= _QUICK if quick else 1.0
    asked = Tuning.auto(memory=None if memory is None else whole("--memory", bytes_of("--memory", memory), 1 << 20))
    with _on(cpus):
        made = _feed(source, transform, batch, device, shuffle=shuffle, config=config or [], timeout=timeout)
        with made as feed:
            feed.fits(asked)
            key = key_of(feed, asked)
            tune_view.head(feed.describe())
            with tune_view.progress(seconds) as tell:
                outcome = measured(feed, asked, seconds * (1.0 if quick else _SEARCH), tell)
            tune_view.show(outcome)
            tune_view.told(outcome, kept_away(key, outcome))
            if not quick and not outcome.broken and outcome.trials:
                tune_view.advise(advised(feed, outcome.best, seconds * (1 - _SEARCH)))


def _feed(
    targets: Sequence[str],
    transform: str | None,
    batch: int,
    device: str | None,
    *,
    shuffle: bool,
    config: Sequence[str],
    timeout: float,
) -> Feed:
    """As a DataLoader makes it of these arguments."""
    from dali_feed.cli.targets import Access, source_of
    from dali_feed.feed import Feed
    from dali_feed.loader.arguments import torch_device
    from dali_feed.loader.array_batches import array_columns
    from dali_feed.loader.functions import split

    source, where = source_of(targets, Access.of(config, timeout)), torch_device(device)
    lowered, _ = split(_transform(transform))
    return Feed(
        source,
        batch,
        shuffle=shuffle,
        transform=lowered,
        device=where.index if where.type == "cuda" else None,
        columns=array_columns(source, lowered),
    )


def _transform(target: str | None) -> Any:
    from dali_feed.cli.options import load_object

    if target is not None:
        return None if target == "none" else load_object("--transform", target)
    import torch
    from torchvision.transforms import v2

    return v2.Compose(
        [
            v2.RandomResizedCrop(224),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )


@contextmanager
def _on(cpus: int | None) -> Iterator[None]:
    """The block's threads run on so many of the CPUs, as the run will. ConfigError for more than there are."""
    from dali_feed.errors import ConfigError

    every = os.sched_getaffinity(0)
    if cpus is not None and cpus > len(every):
        msg = f"--cpus: must be at most the {len(every)} that this process may use; found {cpus}"
        raise ConfigError(msg)
    try:
        os.sched_setaffinity(0, sorted(every)[:cpus])
        yield
    finally:
        os.sched_setaffinity(0, every)
