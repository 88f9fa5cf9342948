"""`dali-feed shards split|merge|index`: what is done with packed shards. What it needs is imported when it runs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Annotated

import typer

__all__ = ["shards_app"]

Plainly = Callable[[], AbstractContextManager[None]]


def shards_app(plainly: Plainly) -> typer.Typer:
    """The commands; `plainly` stands around each."""
    app = typer.Typer(name="shards", help="Split, merge and index packed shards.", no_args_is_help=True)

    @app.command()
    def split(
        source: Annotated[list[str], typer.Argument(help="A set (NAME.dfset), tar shards, or an image folder.")],
        out: Annotated[str, typer.Argument(help="The folder for the parts; each becomes NAME.dfset.")],
        part: Annotated[
            list[str], typer.Option(metavar="NAME=SHARE", help="val=0.1; or a count, val=5000; and train=rest.")
        ],
        seed: Annotated[int, typer.Option(help="Seed that decides which record goes into which part.")] = 0,
        shard_size: Annotated[str, typer.Option(metavar="SIZE", help="About how large each shard becomes.")] = "256MB",
    ) -> None:
        """Pack the records of a source as several sets. The key of a record and the seed decide its part."""
        with plainly():
            from dali_feed import packing
            from dali_feed.cli.amounts import bytes_of
            from dali_feed.cli.pack_view import progress, show
            from dali_feed.cli.targets import one_source

            parts, failed = _parts(part), 0
            reads, size = one_source(source, config=[], timeout=30.0), bytes_of("--shard-size", shard_size)
            with progress() as tell:
                done = packing.split(reads, out, parts, seed=seed, shard_bytes=size, tell=tell)
            for each in done.values():
                failed += show(each)
            if failed:
                raise typer.Exit(1)

    @app.command()
    def merge(
        sets: Annotated[list[str], typer.Argument(help="Two sets or more, and at the end the set to write.")],
    ) -> None:
        """Copy the shards of several sets into one, and compare them with their checksums."""
        with plainly():
            from dali_feed import packing

            print(f"set {packing.merge(sets[:-1], sets[-1])}")

    @app.command()
    def index(
        shards: Annotated[list[str], typer.Argument(help="Tar shards ('train-*.tar'), or a set (NAME.dfset).")],
        workers: Annotated[int, typer.Option(min=1, help="Number of threads that read.")] = 4,
        dali: Annotated[
            str | None,
            typer.Option(metavar="DIR", help="Write indexes for DALI's own reader into this folder, and no others."),
        ] = None,
    ) -> None:
        """Write an index with checksums beside each shard. It reads all bytes for that; with --dali only headers."""
        with plainly():
            from dali_feed import packing

            if dali is not None:
                for path in packing.dali_index(shards, dali):
                    print(path)
                return
            sets = [each for each in shards if each.endswith(".dfset")]
            others = [each for each in shards if each not in sets]
            count = sum(packing.index(each, workers=workers) for each in (*sets, *([others] if others else [])))
            print(f"{count:,} index{'' if count == 1 else 'es'} written")

    return app


def _parts(texts: list[str]) -> dict[str, float | int | None]:
    from dali_feed.errors import ConfigError

    parts: dict[str, float | int | None] = {}
    for name, size in map(_part, texts):
        if name in parts:
            msg = f"--part: each part must have a name of its own; found {name!r} twice"
            raise ConfigError(msg)
        parts[name] = size
    return parts


def _part(text: str) -> tuple[str, float | int | None]:
    """A part's name, and its share, count, or None for the rest."""
    from dali_feed.errors import ConfigError

    name, _, size = text.partition("=")
    try:
        if not name or "/" in name:
            raise ValueError
        return name, None if size == "rest" else float(size) if "." in size else int(size)
    except ValueError as error:
        msg = f"--part: must be NAME=SHARE, NAME=COUNT or NAME=rest; found {text!r}"
        raise ConfigError(msg) from error
