"""The command line: `dali-feed demo`, `inspect`, `verify`, `dead-letters`, `topic`, `produce`, `pack`, `shards`,
`convert`, `lag`, `tune`, `watch`, `show`.

What a command needs is imported when it runs, so `--help` answers at once. An error of ours is one line on stderr
and exit code 1; Ctrl-C is one line and 130.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from dali_feed.cli.arguments import Config, Storage, Timeout
from dali_feed.cli.bench import bench_app
from dali_feed.cli.convert import convert
from dali_feed.cli.lag import lag
from dali_feed.cli.pack import pack
from dali_feed.cli.produce import produce
from dali_feed.cli.shards import shards_app
from dali_feed.cli.show import show
from dali_feed.cli.topic import topic_app
from dali_feed.cli.tune import tune
from dali_feed.cli.watch import watch

__all__ = ["Kind", "app", "dead_letters", "demo", "inspect", "main", "verify"]

app = typer.Typer(
    name="dali-feed",
    help="Training batches from Kafka topics and file shards, through NVIDIA DALI.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Kind(StrEnum):
    """Where the demo reads from."""

    kafka = "kafka"
    tar = "tar"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line (`arguments` None: the process's own) and exit."""
    app(args=None if arguments is None else list(arguments), prog_name="dali-feed")


@contextmanager
def _plainly() -> Iterator[None]:
    """Errors as a person at a terminal wants them."""
    from dali_feed.errors import DaliFeedError
    from dali_feed.packages import needed

    try:
        with needed():
            yield
    except DaliFeedError as error:
        print(f"dali-feed: {' '.join(str(error).split())}", file=sys.stderr)
        raise typer.Exit(1) from error
    except KeyboardInterrupt as error:
        print("dali-feed: interrupted", file=sys.stderr)
        raise typer.Exit(130) from error


def _version(asked: bool) -> None:
    if asked:
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
    device: Annotated[
        str | None, typer.Option(help="cpu or cuda:N.", show_default="the CUDA device, or the CPU where there is none")
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training digits.")] = 6,
    source: Annotated[Kind, typer.Option(help="Read from an embedded Kafka broker, or from tar shards.")] = Kind.kafka,
    out: Annotated[Path, typer.Option(dir_okay=False, help="The picture file to write: a contact sheet.")] = Path(
        "demo.png"
    ),
    quick: Annotated[bool, typer.Option("--quick", hidden=True)] = False,
) -> None:
    """Show all of it on this machine: a topic, bad records, a network that learns, a kill and a resume.

    Exits with 1 if the network stays below 95 % on held-out digits, or if the resumed run differs.
    """
    with _plainly():
        from dali_feed.cli.demo.story import run

        good = run(device=device, epochs=epochs, source=source.value, out=out, quick=quick)
    raise typer.Exit(0 if good else 1)


@app.command()
def inspect(  # noqa: PLR0913, PLR0917  an option each
    target: Annotated[
        list[str],
        typer.Argument(help="Tar shards ('train-*.tar', 's3://...'), image folders, or kafka://host:port/topic."),
    ],
    sample: Annotated[int, typer.Option(min=1, help="Number of records to look at, spread over the source.")] = 256,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 if a record in the sample is bad.")] = False,
    form: Annotated[
        str | None, typer.Option("--format", metavar="NAME", help="Format of a topic's values: json, msgpack, npy, ...")
    ] = None,
    config: Config = None,
    storage_option: Storage = None,
    timeout: Timeout = 10.0,
    sheet: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Write a contact sheet: some images with places and labels.")
    ] = None,
    sheet_samples: Annotated[
        int, typer.Option(min=1, max=2000, help="Number of images of each source on the sheet.")
    ] = 24,
    rename: Annotated[
        list[str] | None,
        typer.Option(metavar="OLD=NEW", help="List a member under the name that Renamed gives it."),
    ] = None,
) -> None:
    """Show what a source holds: records, partitions, fields, formats, sizes, and the bad records of a sample.

    A line per member says how many records have it, its size and what it seems to be, with `columns=` to paste. With
    --format it looks into a topic's values, and a record that does not fit the format is bad.

    Classes, and the sizes of payloads and images, are counted in the sample: --sample 1000000 counts all of a smaller
    source.

    Tar shards are indexed on the way, and the index is kept, as in a training run. Exits with 1 if no record of a
    source's sample is good.
    """
    with _plainly():
        from dali_feed.cli.inspect import inspect_all

        bad, hopeless = inspect_all(
            target,
            sample=sample,
            config=config or [],
            timeout=timeout,
            form=form,
            storage=storage_option or [],
            sheet=sheet,
            sheet_samples=sheet_samples,
            rename=rename or [],
        )
    raise typer.Exit(1 if hopeless or (strict and bad) else 0)


@app.command()
def verify(
    target: Annotated[
        list[str],
        typer.Argument(help="Tar shards ('train-*.tar', 's3://...'), image folders, or kafka://host:port/topic."),
    ],
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
    with _plainly():
        from dali_feed.cli.verify import verify_all

        bad = verify_all(
            target,
            decode=decode,
            dead_letter=dead_letter,
            readers=readers,
            config=config or [],
            timeout=timeout,
            storage=storage_option or [],
        )
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
    with _plainly():
        from dali_feed.cli.letters import list_letters

        bad = list_letters(target, check=check, config=config or [], timeout=timeout)
    raise typer.Exit(1 if bad else 0)


app.add_typer(topic_app(_plainly))
app.add_typer(bench_app(_plainly))
app.add_typer(shards_app(_plainly))
app.command()(_plainly()(produce))
app.command()(_plainly()(pack))
app.command()(_plainly()(convert))
app.command()(_plainly()(lag))
app.command()(_plainly()(tune))
app.command()(_plainly()(watch))
app.command()(_plainly()(show))
