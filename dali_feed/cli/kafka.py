"""`dali-feed topic create`, `topic describe` and `lag`: topics, and how far a group or a loader's state is in one."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dali_feed.cli.options import Config, Json, Strict, Timeout, Topic, duration, seconds_of, size
from dali_feed.cli.view import Report, live, plural, show, size_text, table
from dali_feed.errors import ConfigError, StateError

if TYPE_CHECKING:
    from dali_feed.external_sources.kafka.lag import LagFacts, Stand
    from dali_feed.external_sources.kafka.topics import TopicFacts

DAY = 86_400.0
topic_app = typer.Typer(name="topic", help="Topics: create, describe.", no_args_is_help=True)


def _length_of(text: str | float) -> float:
    """Of a run, which ends."""
    seconds = seconds_of(text)
    if seconds is None:
        raise typer.BadParameter(f"must be a time; found {text!r}; give the length of a run, such as 36h")
    return seconds


@topic_app.command()
def create(  # noqa: PLR0913, PLR0917  an option each
    target: Topic,
    partitions: Annotated[
        int, typer.Option(min=1, help="Number of partitions: 2 to 4 per GPU of the largest run.")
    ] = 32,
    replication: Annotated[
        int | None, typer.Option(min=1, help="Number of brokers that keep each record.", show_default="the cluster's")
    ] = None,
    retention: Annotated[
        float | None, duration("How long a record is kept at least: 90s, 30m, 12h, 7d, or forever.", "forever")
    ] = None,
    compression: Annotated[
        Literal["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"],
        typer.Option(help="Producer: as each producer sends it."),
    ] = "producer",
    max_message: Annotated[int, size("Bytes of the largest record, with key and headers.", "8MiB")] = 8 << 20,
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
    from dali_feed.cli.targets import Access, topic_of
    from dali_feed.external_sources import Topics
    from dali_feed.external_sources.kafka.topics import span_text

    topic, servers = topic_of(target)
    access = Access.of(config, timeout)
    Topics(servers, config=access.config, timeout=timeout).create(
        topic,
        partitions,
        replication=replication,
        retention=retention,
        compression=compression,
        max_message_bytes=max_message,
        min_insync_replicas=min_insync,
    )
    report = Report()
    report.note(f"{topic}: made, with {partitions} partition{plural(partitions)}")
    report.note("  2 to 4 partitions per GPU of the largest run keep its readers busy; kafka-topics.sh adds some")
    if retention is not None:
        report.note(f"  its records may be deleted {span_text(retention)} after they were produced")
    show(report)


@topic_app.command()
def describe(
    target: Topic,
    run: Annotated[float, duration("How long a training run takes.", "24h", _length_of)] = DAY,
    gpus: Annotated[
        int | None, typer.Option(min=1, help="Number of GPUs of that run.", show_default="not said")
    ] = None,
    strict: Strict = False,
    as_json: Json = False,
    config: Config = None,
    timeout: Timeout = 10.0,
) -> None:
    """Show what a topic holds, its settings, and which of them would hurt a training run.

    It reads a few records, for their size.
    """
    from dali_feed.cli.targets import Access, topic_of
    from dali_feed.external_sources import Topics
    from dali_feed.external_sources.kafka.topics import warnings

    topic, servers = topic_of(target)
    facts = Topics(servers, config=Access.of(config, timeout).config, timeout=timeout).describe(topic)
    hurtful = warnings(facts, run, gpus)
    show(topic_report(facts, hurtful), as_json=as_json)
    raise typer.Exit(1 if hurtful and strict else 0)


def topic_report(facts: TopicFacts, warnings: list[str]) -> Report:
    """What a topic is, a line per partition, and what would hurt a run."""

    def setting(name: str) -> str:
        size = facts.number(name)
        return "not known" if size is None else f"{size_text(size)} ({size})"

    records = "none"
    if facts.offsets:
        each_size = f", about {size_text(facts.size)} ({size_text(facts.record_bytes)} each)"
        holes = f", about {100 * facts.absent:.1f} % of the offsets hold none" if facts.absent else ""
        records = f"{facts.offsets:,} offset{plural(facts.offsets)}{each_size if facts.record_bytes else ''}{holes}"
    count, replicas = len(facts.partitions), min(len(each.replicas) for each in facts.partitions)
    brokers = f"{facts.brokers} broker{plural(facts.brokers)}"
    report = Report(f"kafka topic {facts.topic} at {facts.servers}", data=facts.to_json() | {"warnings": warnings})
    report.facts += [
        ("partitions", f"{count:,}, replication {replicas}, {brokers}"),
        ("records", records),
        ("written", _written(facts)),
    ]
    if facts.unknown:
        report.facts.append(("settings", f"not known: {facts.unknown}"))
    else:
        report.facts += [
            ("retention", _kept(facts)),
            ("compression", facts.settings.get("compression.type", "not known")),
            *(
                [("batches", f"{', '.join(facts.codecs)}, about {size_text(facts.stored)} on disk")]
                * bool(facts.codecs)
            ),
            ("largest record", setting("max.message.bytes")),
            ("segments", setting("segment.bytes")),
            ("min in sync", facts.settings.get("min.insync.replicas", "not known")),
            ("clean-up", facts.settings.get("cleanup.policy", "not known")),
        ]
    report.facts += [("id", facts.topic_id)] if facts.topic_id else []
    each_bytes = (1 - facts.absent) * facts.record_bytes
    columns = {
        "partition": lambda each: f"{facts.topic}[{each.partition}]",
        "first": lambda each: f"{each.start:,}",
        "end": lambda each: f"{each.end:,}",
        "offsets": lambda each: f"{each.end - each.start:,}",
        "about": lambda each: size_text((each.end - each.start) * each_bytes) if facts.record_bytes else "",
        "leader": lambda each: "none" if each.leader < 0 else str(each.leader),
        "in sync": lambda each: f"{len(each.in_sync)} of {len(each.replicas)}",
    }
    report.tables.append(table(facts.partitions, columns, left=["partition"]))
    report.warn(warnings)
    return report


def _written(facts: TopicFacts) -> str:
    """When the first and the last record were."""
    from datetime import UTC, datetime

    from dali_feed.external_sources.kafka.topics import span_text

    if facts.span is None:
        return "not known" if facts.offsets else "never"
    first, last = facts.span
    times = [datetime.fromtimestamp(each, UTC).strftime("%Y-%m-%d %H:%M:%S UTC") for each in (first, last)]
    return f"{' to '.join(times)} ({span_text(last - first)})"


def _kept(facts: TopicFacts) -> str:
    """How long records are kept, how much of them, and when the first may go."""
    from dali_feed.external_sources.kafka.topics import span_text

    keeps, most, room = facts.number("retention.ms"), facts.number("retention.bytes"), facts.headroom
    text = "not known" if keeps is None else "for ever" if keeps < 0 else span_text(keeps / 1000)
    if most is not None and most >= 0:
        text += f", at most {size_text(most)} of a partition"
    if room is not None and facts.span:
        text += f"; the oldest may be deleted {f'in {span_text(room)}' if room > 0 else 'now'}"
    return text


def lag(
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
    watch: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0.1, help="Look again after so many seconds, until Ctrl-C.")
    ] = None,
    strict: Strict = False,
    as_json: Json = False,
    config: Config = None,
    timeout: Timeout = 10.0,
) -> None:
    """Show how far a reader is in a topic, per partition: records and time to go, and what retention may delete first.

    The time is the age of the oldest record that was not read yet; for it one record of each partition is read. It
    joins no group, commits nothing and changes nothing. With --watch the table is live, and has rates.
    """
    from dali_feed.cli.targets import Access, topic_of
    from dali_feed.external_sources.kafka.connection import Connection
    from dali_feed.external_sources.kafka.lag import lag_warnings, look, since

    topic, servers = topic_of(target)
    reader = _reader(group, state, topic, servers)
    options = Connection(topic, servers, timeout, Access.of(config, timeout).config)
    with live(as_json=as_json, watch=watch is not None) as show:
        facts = look(options, reader)
        warned = lag_warnings(facts)
        show(lag_report(facts, warned))
        while watch is not None:
            time.sleep(watch)
            before, facts = facts, look(options, reader)
            now = since(before, facts)
            show(lag_report(now, lag_warnings(now)))
    raise typer.Exit(1 if warned and strict else 0)


def _reader(group: str | None, state: Path | None, topic: str, servers: str) -> str | Stand:
    """Whose lag it is: a group by its name, or where a state stands."""
    if group is not None and state is None:
        return group
    if state is not None and group is None:
        return state_position(state, topic, servers)
    found = "neither" if group is None else "both"
    msg = f"--group, --state: one of them must be given; found {found}; give the group's name, or a state's file"
    raise ConfigError(msg)


def state_position(path: Path, topic: str, servers: str) -> Stand | str:
    """Where a state of a loader of `KafkaTopic` or `KafkaStream` stands; of a worker its group's name, which has it.

    A state is JSON: a checkpoint of torch.save() may hold code. The file may hold the states of all ranks of a stream,
    as a list.

    Raises:
        StateError: it cannot be read, is no state, or is one of another source.
    """
    from dali_feed.external_sources.kafka.lag import Stand
    from dali_feed.external_sources.kafka.snapshot import pin_of
    from dali_feed.plan.state import reached

    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise StateError(
            f"{path}: must be a file with a loader's state, as json.dump(loader.state_dict(), file) writes it; found "
            f"{type(error).__name__}: {error}. A checkpoint of torch.save() is not read: it may hold code"
        ) from error
    of = f"the state {path}"
    states = content if isinstance(content, list) else [content]
    if states and all(isinstance(each, Mapping) and "stream" in each for each in states):
        return _stream_position(of, topic, [each["stream"] for each in states])
    if not isinstance(content, Mapping) or not isinstance(content.get("source"), Mapping):
        rule = "must be what state_dict() gave, or for a stream a list of the states of all ranks"
        raise StateError(f"{path}: {rule}; found {type(content).__name__}")
    pinned = content["source"].get("pin")
    if not isinstance(pinned, Mapping) or "topic" not in pinned:
        msg = f"{path}: must be of a loader that reads a Kafka topic; found one of {content['source'].get('name')!r}"
        raise StateError(msg)
    pin = pin_of(topic, pinned)
    positions = reached(content, pin.snapshot(servers)).tolist()
    ends = dict(enumerate(pin.ends.tolist()))
    starts = {p: start for p, start in enumerate(pin.starts.tolist()) if start < ends[p]}
    return Stand(of, dict(enumerate(positions)), starts, ends, pin.topic_id)


def _stream_position(of: str, topic: str, marks: list[Any]) -> Stand | str:
    from dali_feed.external_sources.kafka.lag import Stand
    from dali_feed.external_sources.kafka.stream import merged_marks

    groups = {mark["group"] for mark in marks if isinstance(mark, Mapping) and "group" in mark}
    if len(groups) == 1:
        return str(groups.pop())
    read = [mark for mark in marks if mark is not None]
    if not read:
        raise StateError(f"{of}: was taken before anything of {topic} was read, so it has no positions")
    mark = merged_marks(topic, read)
    return Stand(of, mark.positions, mark.positions, topic_id=mark.topic_id)


def lag_report(facts: LagFacts, warnings: list[str]) -> Report:
    """What is known of the reader, and the partitions with the largest lag."""
    from dali_feed.external_sources.kafka.topics import span_text

    def count(number: int | None) -> str:
        return "" if number is None else f"{number:,}"

    def span(seconds: float | None, past: str = "0 s") -> str:
        return "" if seconds is None else past if seconds <= 0 else span_text(seconds)

    def rate(rate: float | None) -> str:
        return "?" if rate is None else f"{rate:,.1f}" if rate < 100 else f"{rate:,.0f}"

    title = f"kafka topic {facts.topic} at {facts.servers}, {facts.stand.of}"
    reader = facts.stand.state or "only positions are known"
    if facts.stand.ends is not None:
        reader = "a loader's state; it reads up to where the topic ended when it began"
    report = Report(title, [("reader", reader)], data=facts.to_json() | {"warnings": warnings})
    longest = "" if facts.longest is None else f", {span_text(facts.longest)}"
    lag = "not known" if facts.lag is None else f"{facts.lag:,} offset{plural(facts.lag)}{longest}"
    report.facts.append(("lag", lag))
    rated = any(each.written is not None for each in facts.partitions)
    read, written = facts.rate("read"), facts.rate("written")
    if read is not None or written is not None:
        report.facts.append(("rates", f"{rate(read)} records/s read, {rate(written)} written"))
    keeps = "for ever" if facts.keeps is None else span_text(facts.keeps)
    report.facts.append(("retention", f"not known: {facts.unknown}" if facts.unknown else keeps))
    columns = {
        "partition": lambda each: f"{facts.topic}[{each.partition}]",
        "position": lambda each: count(each.position),
        "low": lambda each: count(each.low),
        "end": lambda each: count(each.end),
        "lag": lambda each: count(each.lag),
        "behind": lambda each: span(facts.seconds(each)),
        "headroom": lambda each: count(each.headroom),
        "may go in": lambda each: "" if facts.keeps is None else span(facts.left(each), "now"),
        "read/s": lambda each: rate(each.read) if rated else "",
        "written/s": lambda each: rate(each.written) if rated else "",
    }
    rows = sorted(facts.partitions, key=lambda each: -(each.lag or 0))
    rows[:64] = sorted(rows[:64], key=lambda each: each.partition)
    report.tables.append(table(rows, columns, left=["partition"], most=64))
    report.warn(warnings)
    return report
