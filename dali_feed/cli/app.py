"""The command line: its commands, and the one place for their errors.

What a command needs is imported when it runs, so `--help` answers at once. An error of ours is one line on stderr
and exit code 1; Ctrl-C is one line and 130; a usage that cannot be is 2.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from dali_feed.cli.bench import bench_app
from dali_feed.cli.kafka import lag, topic_app
from dali_feed.cli.options import Config, Device, Json, Sources, Storage, Timeout, load_object
from dali_feed.cli.tune import tune
from dali_feed.cli.write import index, merge, pack, produce
from dali_feed.errors import DaliFeedError
from dali_feed.packages import needed


class Commands(TyperGroup):
    """Commands whose errors are told as a person at a terminal wants them; those of groups inside too."""

    def invoke(self, ctx: Any) -> Any:
        """Run what was asked for."""
        try:
            with needed():
                return super().invoke(ctx)
        except DaliFeedError as error:
            text = " ".join(str(error).split())
            shown = "".join(letter if letter.isprintable() else " " for letter in text)  # as in `view`
            print(f"dali-feed: {shown}", file=sys.stderr)
            raise typer.Exit(1) from error
        except KeyboardInterrupt as error:
            print("dali-feed: interrupted", file=sys.stderr)
            raise typer.Exit(130) from error


app = typer.Typer(
    name="dali-feed",
    cls=Commands,
    help="Training batches from Kafka topics and file shards, through NVIDIA DALI.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line (`arguments` None: the process's own) and exit."""
    _built()(args=None if arguments is None else list(arguments), prog_name="dali-feed")


@functools.cache
def _built() -> Any:
    """All commands as click has them, once: typer reads the signatures of all for it, which takes 40 ms."""
    return typer.main.get_command(app)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        from dali_feed.native.library import used

        print(f"dali-feed {version('dali-feed')}\nloops in C: {used()}")
        raise typer.Exit


@app.callback()
def _root(
    _: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print the version and whether C loops are used."
        ),
    ] = False,
) -> None:
    """Hold the options that come before a command."""


@app.command()
def demo(
    device: Device = None,
    epochs: Annotated[int, typer.Option(min=2, help="Passes over the training digits.")] = 3,
) -> None:
    """Show all of it on this machine: a topic, bad records, a network that learns, a kill and a resume.

    Exits with 1 if the network stays below 95 % on held-out digits, or if the resumed run differs.
    """
    from dali_feed.cli.demo import check, run

    check()
    raise typer.Exit(0 if run(device, epochs) else 1)


@app.command()
def inspect(
    source: Sources,
    sample: Annotated[int, typer.Option(min=1, help="Number of records to look at, spread over the source.")] = 256,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 if a record in the sample is bad.")] = False,
    form: Annotated[
        str | None, typer.Option("--format", metavar="NAME", help="Format of a topic's values: json, msgpack, npy, ...")
    ] = None,
    sheet: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Write a contact sheet: some images with places and labels.")
    ] = None,
    config: Config = None,
    storage_option: Storage = None,
    timeout: Timeout = 10.0,
) -> None:
    """Show what a source holds: records, partitions, fields, formats, sizes, and the bad records of a sample.

    A line per member says how many records have it, its size and what it seems to be, with `columns=` to paste. With
    --format it looks into a topic's values, and a record that does not fit the format is bad.

    Classes, and the sizes of payloads and images, are counted in the sample: --sample 1000000 counts all of a smaller
    source.

    Tar shards are indexed on the way, and the index is kept, as in a training run. Exits with 1 if no record of a
    source's sample is good.
    """
    from dali_feed.cli.inspect import inspect_all
    from dali_feed.cli.targets import Access

    access = Access.of(config, timeout, storage_option)
    bad, hopeless = inspect_all(source, access, sample=sample, form=form, sheet=sheet)
    raise typer.Exit(1 if hopeless or (strict and bad) else 0)


@app.command()
def verify(
    source: Sources,
    decode: Annotated[bool, typer.Option("--decode", help="Decode every image too, on the CPU.")] = False,
    dead_letter: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Keep the bad records in this folder, or in kafka://host:port/topic."),
    ] = None,
    readers: Annotated[int, typer.Option(min=1, help="Number of threads that read and check.")] = 4,
    config: Config = None,
    storage_option: Storage = None,
    timeout: Timeout = 10.0,
) -> None:
    """Read a whole source, check the header of every record, and list the bad ones by reason.

    For a set (NAME.dfset) it compares every byte with the checksums, and looks at images only with --decode. Exits with
    1 if a record is bad or a file is damaged.
    """
    from dali_feed.cli.targets import Access
    from dali_feed.cli.verify import verify_all

    access = Access.of(config, timeout, storage_option)
    bad = verify_all(source, access, decode=decode, dead_letter=dead_letter, readers=readers)
    raise typer.Exit(1 if bad else 0)


@app.command()
def dead_letters(
    target: Annotated[str, typer.Argument(help="A folder of dead letters, or kafka://host:port/topic.")],
    check: Annotated[
        bool, typer.Option("--check", help="Check each payload again; exit with 1 if some are still bad.")
    ] = False,
    config: Config = None,
    timeout: Timeout = 10.0,
) -> None:
    """List dead letters, the bad records that were kept: where they were, why, who refused them, and their size."""
    from dali_feed.cli.targets import Access
    from dali_feed.cli.verify import list_letters

    bad = list_letters(target, Access.of(config, timeout), check=check)
    raise typer.Exit(1 if bad else 0)


@app.command()
def show(  # noqa: PLR0913, PLR0917  an option each
    source: Sources,
    transform: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py:NAME",
            help="torchvision transforms, by the name that the file gives them. The file is run.",
        ),
    ] = None,
    batch: Annotated[int, typer.Option(min=0, metavar="N", help="Number of the batch in the epoch.")] = 0,
    batch_size: Annotated[int, typer.Option(min=1, max=1024, metavar="N", help="Samples in a batch.")] = 24,
    epoch: Annotated[int, typer.Option(min=0, metavar="N", help="Number of the epoch.")] = 0,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Seed of order and augmentation.")] = 0,
    shuffle: Annotated[bool, typer.Option(help="Take the shuffled order of a run, or the source's own.")] = True,
    out: Annotated[Path, typer.Option(metavar="FILE.png", help="The picture to write.")] = Path("sheet.png"),
    config: Config = None,
    storage_option: Storage = None,
    timeout: Timeout = 10.0,
) -> None:
    """Draw one batch as a model gets it, by the CPU's engine: each image with place, label and random numbers.

    Normalizing is undone. A slot whose record is bad or absent is marked, with that record and the reason. A training
    run on one rank with one lane, with the same seed and epoch, gets the same batch. Nothing before the batch is read.
    """
    from dali_feed.cli.show import Shown, show_batch
    from dali_feed.cli.targets import Access, source_of

    def read() -> Any:
        return source_of(source, Access.of(config, timeout, storage_option))

    user = None if transform is None else load_object("--transform", transform)
    show_batch(read, user, Shown(batch, batch_size, epoch, seed, shuffle), out)


@app.command()
def watch(
    url: Annotated[
        list[str], typer.Argument(help="host:port of an endpoint (DALI_FEED_METRICS, metrics.serve); one per rank.")
    ],
    every: Annotated[float, typer.Option(min=0.05, metavar="SECONDS", help="Seconds between two looks.")] = 1.0,
    once: Annotated[
        bool, typer.Option("--once", help="Look twice, show the rates, and end; exit with 1 if an endpoint is gone.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show running loaders, a line per rank and one for all: rates, what their steps wait for, lag, bad records, GPUs.

    Shares of waits are of the time between two looks; lag and times of reads are those of `loader.stats()`. An endpoint
    that goes away is shown with the time when it went, and comes back by itself.
    """
    from dali_feed.cli.watch import watch_endpoints

    raise typer.Exit(1 if watch_endpoints(url, every, once=once, as_json=as_json) else 0)


for command in (pack, merge, index, produce, lag, tune):
    app.command()(command)
app.add_typer(topic_app)
app.add_typer(bench_app())
