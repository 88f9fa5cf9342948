"""`dali-feed lag`: how far a group, or a loader's state, is in a topic. What it needs is imported when it runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dali_feed.cli.arguments import Config, Timeout, Topic

if TYPE_CHECKING:
    from dali_feed.external_sources.kafka.lag import Stand

__all__ = ["lag"]


def lag(  # noqa: PLR0913, PLR0917  an option each
    target: Topic,
    group: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The consumer group to look at, by the offsets that it committed."),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Or a file with a loader's state: JSON of state_dict(), or a list of the states of all ranks.",
        ),
    ] = None,
    watch: Annotated[float | None, typer.Option(metavar="SECONDS", min=0.1, help="Seconds between two looks.")] = None,
    looks: Annotated[
        int | None, typer.Option(min=1, help="Number of looks.", show_default="with --watch no end, else 1")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 if the last look has a warning.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON for each look.")] = False,
    config: Config = None,
    timeout: Timeout = 10.0,
) -> None:
    """Show how far a reader is in a topic, per partition: records and time to go, and what retention may delete first.

    The time is the age of the oldest record that was not read yet; for it one record of each partition is read. It
    joins no group, commits nothing and changes nothing. With --watch the table is live, and has rates.
    """
    from dali_feed.cli.lag_view import screen, told
    from dali_feed.cli.looks import looking
    from dali_feed.cli.targets import KAFKA, named, options_of
    from dali_feed.errors import ConfigError
    from dali_feed.external_sources.kafka.connection import Connection
    from dali_feed.external_sources.kafka.lag import lag_warnings, look, since

    if not target.startswith(KAFKA):
        msg = f"target: must be a topic, kafka://host:port/topic; found {target!r}"
        raise ConfigError(msg)
    topic, servers = named(target)
    reader = _reader(group, state, topic, servers)
    options = Connection(topic, servers, timeout, options_of(config or []))
    left = looks if looks is not None else 1 if watch is None else -1
    before, found = None, list[str]()
    with looking(screen, told, as_json=as_json, live=watch is not None) as show:
        while left:
            facts = look(options, reader)
            now = facts if before is None else since(before, facts)
            before, found, left = facts, lag_warnings(now), left - 1
            show(now, found)
            if left and watch is not None:
                time.sleep(watch)
    if found and strict:
        raise typer.Exit(1)


def _reader(group: str | None, state: Path | None, topic: str, servers: str) -> str | Stand:
    """Whose lag it is: a group by its name, or where a state stands."""
    from dali_feed.cli.lag_state import stand_of_state
    from dali_feed.errors import ConfigError

    if group is not None and state is None:
        return group
    if state is not None and group is None:
        return stand_of_state(state, topic, servers)
    found = "neither" if group is None else "both"
    msg = f"--group, --state: one of them must be given; found {found}; give the group's name, or a state's file"
    raise ConfigError(msg)
