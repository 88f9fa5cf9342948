"""`dali-feed convert`: the records of a source in another format. What it needs is imported when it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from dali_feed.cli.arguments import Config, Timeout

__all__ = ["convert"]


def convert(
    source: Annotated[
        list[str],
        typer.Argument(help="Tar shards, an image folder, TFRecords, MDS, RecordIO, or kafka://host:port/topic."),
    ],
    out: Annotated[str, typer.Argument(help="A folder that does not exist yet; with --to tar a set, as for `pack`.")],
    to: Annotated[str, typer.Option(help="tfrecord, mds or tar.")],
    members: Annotated[
        str | None, typer.Option(metavar="NAMES", help="jpg,cls; or NAME=jpg,NAME=cls: members, and their new names.")
    ] = None,
    shard_size: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="About how large each file becomes.", show_default="256MB, MDS 64MiB"),
    ] = None,
    config: Config = None,
    timeout: Timeout = 30.0,
) -> None:
    """Write the records of a source as TFRecords, as MDS shards for Mosaic Streaming, or as tar shards.

    The folder appears whole or not at all. Exits with 1 if a record was not written.
    """
    from dali_feed import packing
    from dali_feed.cli.amounts import bytes_of
    from dali_feed.cli.pack import members_of
    from dali_feed.cli.pack_view import progress, show
    from dali_feed.cli.targets import one_source

    reads = one_source(source, config=config or [], timeout=timeout)
    with progress() as tell:
        done = packing.convert(
            reads,
            out,
            to,
            members=None if members is None else members_of(members),
            shard_size=None if shard_size is None else bytes_of("--shard-size", shard_size),
            tell=tell,
        )
    if show(done, "set" if to == "tar" else "folder"):
        raise typer.Exit(1)
