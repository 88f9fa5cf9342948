"""`dali-feed topic`: topics made, looked at and deleted. What a command needs is imported when it runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ContextDecorator
from typing import TYPE_CHECKING, Annotated

import typer

from dali_feed.cli.arguments import Config, Timeout, Topic

if TYPE_CHECKING:
    from dali_feed.external_sources import Topics

__all__ = ["create", "delete", "describe", "topic_app"]


def topic_app(plainly: Callable[[], ContextDecorator]) -> typer.Typer:
    """The commands, each within `plainly()`, which tells errors as a person wants them."""
    made = typer.Typer(name="topic", help="Topics: create, describe, delete.", no_args_is_help=True)
    for command in (create, describe, delete):
        made.command()(plainly()(command))
    return made


def create(  # noqa: PLR0913, PLR0917  an option each
    target: Topic,
    partitions: Annotated[
        int, typer.Option(min=1, help="Number of partitions: 2 to 4 per GPU of the largest run.")
    ] = 32,
    replication: Annotated[
        int | None, typer.Option(min=1, help="Number of brokers that keep each record.", show_default="the cluster's")
    ] = None,
    retention: Annotated[
        str, typer.Option(metavar="TIME", help="How long a record is kept at least: 90s, 30m, 12h, 7d, or forever.")
    ] = "forever",
    segment: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Size of the files that it is kept in: 512MB, 1GiB.", show_default="the cluster's"
        ),
    ] = None,
    compression: Annotated[
        str, typer.Option(help="producer (as each producer sends it), uncompressed, gzip, snappy, lz4 or zstd.")
    ] = "producer",
    max_message: Annotated[
        str, typer.Option(metavar="SIZE", help="Bytes of the largest record, with key and headers.")
    ] = "8MiB",
    min_insync: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of brokers that must have a record before it counts as written.",
            show_default="the cluster's",
        ),
    ] = None,
    config: Config = None,
    timeout: Timeout = 10.0,
) -> None:
    """Make a topic for training records."""
    from dali_feed.cli.amounts import bytes_of, seconds_of

    topics, topic = _topics(target, config, timeout)
    topics.create(
        topic,
        partitions,
        replication=replication,
        retention=seconds_of("--retention", retention),
        segment_bytes=None if segment is None else bytes_of("--segment", segment),
        compression=compression,
        max_message_bytes=bytes_of("--max-message", max_message),
        min_insync_replicas=min_insync,
    )
    print(f"{topic}: made, with {partitions} partition{'' if partitions == 1 else 's'}")
    print("  2 to 4 partitions per GPU of the largest run keep its readers busy")
    if retention != "forever":
        print(f"  its records may be deleted {retention} after they were produced")


def describe(
    target: Topic,
    run: Annotated[str, typer.Option(metavar="TIME", help="How long a training run takes.")] = "24h",
    gpus: Annotated[
        int | None, typer.Option(min=1, help="Number of GPUs of that run.", show_default="not said")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 if there is a warning.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    config: Config = None,
    timeout: Timeout = 10.0,
) -> None:
    """Show what a topic holds, its settings, and which of them would hurt a training run.

    It reads a few records, for their size.
    """
    from dali_feed.cli.amounts import seconds_of
    from dali_feed.cli.topic_view import show
    from dali_feed.errors import ConfigError

    length = seconds_of("--run", run)
    if length is None:
        msg = f"--run: must be a time; found {run!r}; give the length of a run, such as 36h"
        raise ConfigError(msg)
    topics, topic = _topics(target, config, timeout)
    if show(topics.describe(topic), run=length, gpus=gpus, as_json=as_json) and strict:
        raise typer.Exit(1)


def delete(
    target: Topic,
    yes: Annotated[bool, typer.Option("--yes", help="Delete it; without this nothing is deleted.")] = False,
    config: Config = None,
    timeout: Timeout = 10.0,
) -> None:
    """Delete a topic and all its records, for good; without --yes only say what would be deleted."""
    topics, topic = _topics(target, config, timeout)
    if not yes:
        facts = topics.describe(topic)
        print(
            f"dali-feed: {topic}: {facts.offsets:,} offsets in {len(facts.partitions)} partitions at {facts.servers} "
            "would be deleted for good; nothing was done; give --yes to do it",
            file=sys.stderr,
        )
        raise typer.Exit(1)
    topics.delete(topic)
    print(f"{topic}: deleted")


def _topics(target: str, config: list[str] | None, timeout: float) -> tuple[Topics, str]:
    from dali_feed.cli.targets import KAFKA, named, options_of
    from dali_feed.errors import ConfigError
    from dali_feed.external_sources import Topics

    if not target.startswith(KAFKA):
        msg = f"target: must be a topic, kafka://host:port/topic; found {target!r}"
        raise ConfigError(msg)
    topic, servers = named(target)
    return Topics(servers, config=options_of(config or []), timeout=timeout), topic
