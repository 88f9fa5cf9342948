"""`dali-feed produce`: the records of a source into a topic. What it needs is imported when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dali_feed.cli.arguments import Config, Names, Quality, Resize, Storage, Timeout

if TYPE_CHECKING:
    from dali_feed.external_sources.kafka.writes import Writes
    from dali_feed.formats import Format
    from dali_feed.records.source import Source

__all__ = ["produce"]


def produce(  # noqa: PLR0913, PLR0917  an option each
    source: Annotated[
        list[str], typer.Argument(help="Tar shards ('train-*.tar'), an image folder, or kafka://host:port/topic.")
    ],
    target: Annotated[str, typer.Argument(help="kafka://host:port/topic, which must exist.")],
    journal: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False,
            help="File that keeps the position: a killed run continues there.",
            show_default="TOPIC.produce",
        ),
    ] = None,
    transactional: Annotated[
        bool, typer.Option("--transactional", help="Write each record once, even if the run is killed.")
    ] = False,
    payload: Annotated[
        str | None,
        typer.Option(
            metavar="SUFFIX", help="Suffixes of the files in the shards that become values.", show_default="images"
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            metavar="MEMBER", help="The member that becomes the record's key; or `where`, for its coordinates."
        ),
    ] = None,
    header: Annotated[
        Names, typer.Option(metavar="MEMBER", help="A member to write as a header; can be given several times.")
    ] = None,
    format: Annotated[  # noqa: A002  the option's name
        str | None, typer.Option(help="json, msgpack, npy or avro: values hold the members that --value names.")
    ] = None,
    value: Annotated[
        Names, typer.Option(metavar="NAME[=MEMBER]", help="A member of the value; can be given several times.")
    ] = None,
    schema: Annotated[Path | None, typer.Option(dir_okay=False, help="The .avsc file for --format avro.")] = None,
    base64: Annotated[
        Names, typer.Option(metavar="NAME", help="A member of bytes, as base64 in JSON; can be given several times.")
    ] = None,
    by_turn: Annotated[
        bool, typer.Option("--by-turn", help="Send to partitions in turn, records with a key too.")
    ] = False,
    resize: Resize = None,
    quality: Quality = None,
    claim: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for large values; the records say where they are.")
    ] = None,
    claim_above: Annotated[
        str, typer.Option(metavar="SIZE", help="Bytes of the largest value that goes into the topic itself.")
    ] = "8MB",
    compression: Annotated[str, typer.Option(help="auto, none, lz4, zstd, snappy or gzip.")] = "auto",
    queue: Annotated[str, typer.Option(metavar="SIZE", help="Bytes of records that wait to be sent.")] = "64MiB",
    workers: Annotated[int, typer.Option(min=1, help="Number of threads that read, resize and encode.")] = 2,
    config: Config = None,
    storage_option: Storage = None,
    timeout: Timeout = 30.0,
) -> None:
    """Write the records of a source into a topic, in the source's order: payloads, and labels as headers.

    A run that was killed continues where it was when you call it again: no record is lost, and with --transactional
    none is there twice. Exits with 1 if a record was not written.
    """
    from dali_feed.cli.amounts import bytes_of
    from dali_feed.cli.produce_view import progress, show
    from dali_feed.cli.targets import KAFKA, named, options_of
    from dali_feed.errors import ConfigError
    from dali_feed.external_sources import Claim, Producer

    if not target.startswith(KAFKA):
        msg = f"target: must be a topic, kafka://host:port/topic; found {target!r}"
        raise ConfigError(msg)
    topic, servers = named(target)
    options = options_of(config or [])
    reads, is_topic = _source(source, payload, options, timeout, storage_option or [])
    if format is None and (value or base64):
        found = ", ".join(value or base64 or [])
        msg = f"--value, --base64: name members for --format, which must be given too; found {found} without it"
        raise ConfigError(msg)
    change = None
    if resize is not None or quality is not None:
        from dali_feed.packing.pictures import Pictures

        change = Pictures(resize, 90 if quality is None else quality)
    kept = Path(f"{topic}.produce") if journal is None else journal
    made = Producer(
        reads,
        topic,
        servers,
        writes=_writes(is_topic, key, tuple(header or ()), _format(format, schema), value or [], tuple(base64 or ())),
        map=change,
        readers=workers,
        claim=None if claim is None else Claim(claim, bytes_of("--claim-above", claim_above)),
        journal=kept,
        transactional=transactional,
        by="turn" if by_turn else "key",
        compression=compression,
        queue_bytes=bytes_of("--queue", queue),
        config=options,
        timeout=timeout,
    )
    with progress() as tell:
        done = made.run(tell)
    if show(topic, servers, done, kept):
        raise typer.Exit(1)


def _source(
    targets: list[str], payload: str | None, config: dict[str, str], timeout: float, storage: list[str]
) -> tuple[Source, bool]:
    """The one source that is named, and whether it is a topic."""
    from dali_feed.cli.targets import KAFKA, named, sources, storage_options_of
    from dali_feed.errors import ConfigError
    from dali_feed.external_sources import KafkaTopic, ShardSet

    topics = [target for target in targets if target.startswith(KAFKA)]
    if topics and len(targets) == 1:
        if payload is not None:
            msg = f"--payload: must be left out for a topic, whose values are the payloads; found {payload!r}"
            raise ConfigError(msg)
        topic, servers = named(topics[0])
        return KafkaTopic(topic, servers, label=None, config=config, timeout=timeout, holes="replace"), True
    found = [] if topics else sources(targets, config=config, timeout=timeout, storage=storage)
    if len(found) != 1:
        msg = f"source: must be one topic, one folder, or tar shards; found {', '.join(targets)}"
        raise ConfigError(msg)
    if payload is None:
        return found[0], False
    if not isinstance(found[0], ShardSet):
        msg = f"--payload: is for tar shards, whose files it names; found {payload!r} for {found[0]!r}; leave it out"
        raise ConfigError(msg)
    image, options = tuple(payload.split(";")), storage_options_of(storage)
    return ShardSet(found[0].paths, image=image, storage_options=options), False


def _format(name: str | None, schema: Path | None) -> Format | str | None:
    from dali_feed.errors import ConfigError
    from dali_feed.formats import Avro

    if (name == "avro") != (schema is not None):
        rule = "must be given with --format avro, and only then"
        msg = f"--schema: {rule}; found --format {name} and --schema {schema}"
        raise ConfigError(msg)
    return name if schema is None else Avro(schema)


def _writes(
    is_topic: bool,
    key: str | None,
    headers: tuple[str, ...],
    form: Format | str | None,
    values: list[str],
    coded: tuple[str, ...],
) -> Writes:
    from dali_feed.external_sources import Copied, Payload, Values
    from dali_feed.external_sources.kafka.writes import WHERE

    if key == "where":
        key = WHERE
    if form is not None:
        pairs = (text.partition("=") for text in values)
        return Values(form, {name: member or name for name, _, member in pairs}, coded, key, headers)
    if is_topic and key is None and not headers:
        return Copied()
    return Payload(key, headers)
