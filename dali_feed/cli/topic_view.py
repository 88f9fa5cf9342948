"""Prints what a topic is."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dali_feed.cli.text import grid, plural, put, size_text
from dali_feed.external_sources.kafka.topics import TopicFacts, span_text, warnings

__all__ = ["show"]

PARTITIONS = 64


def show(facts: TopicFacts, *, run: float, gpus: int | None, as_json: bool) -> int:
    """Print a topic and what would hurt a run of `run` seconds; how many warnings there are."""
    found = warnings(facts, run, gpus)
    if as_json:
        print(json.dumps(facts.to_json() | {"warnings": found}))
        return len(found)
    console = Console(highlight=False)
    console.print(Text(f"kafka topic {facts.topic} at {facts.servers}", style="bold"), soft_wrap=True)
    told = grid()
    count, replicas = len(facts.partitions), min(len(each.replicas) for each in facts.partitions)
    put(told, "partitions", f"{count:,}, replication {replicas}, {facts.brokers} broker{plural(facts.brokers)}")
    put(told, "records", _records(facts))
    put(told, "written", _span(facts))
    if facts.unknown:
        put(told, "settings", f"not known: {facts.unknown}")
    else:
        put(told, "retention", _retention(facts))
        put(told, "compression", facts.settings.get("compression.type", "not known"))
        put(told, "largest record", _size(facts, "max.message.bytes"))
        put(told, "segments", _size(facts, "segment.bytes"))
        put(told, "min in sync", facts.settings.get("min.insync.replicas", "not known"))
        put(told, "clean-up", facts.settings.get("cleanup.policy", "not known"))
    if facts.topic_id:
        put(told, "id", facts.topic_id)
    console.print(told)
    console.print(_partitions(facts))
    if count > PARTITIONS:
        console.print(f"  ... and {count - PARTITIONS:,} more")
    for each in found:
        console.print(Text(f"  warning  {each}", style="yellow"), soft_wrap=True)
    return len(found)


def _records(facts: TopicFacts) -> str:
    if not facts.offsets:
        return "none"
    size = f", about {size_text(facts.size)} ({size_text(facts.record_bytes)} each)" if facts.record_bytes else ""
    holes = f", about {100 * facts.absent:.1f} % of the offsets hold none" if facts.absent else ""
    return f"{facts.offsets:,} offset{plural(facts.offsets)}{size}{holes}"


def _span(facts: TopicFacts) -> str:
    if facts.span is None:
        return "not known" if facts.offsets else "never"
    first, last = facts.span
    return f"{_time(first)} to {_time(last)} ({span_text(last - first)})"


def _retention(facts: TopicFacts) -> str:
    """How long records are kept, how much of them, and when the first may go."""
    keeps, most, room = facts.number("retention.ms"), facts.number("retention.bytes"), facts.headroom
    text = "not known" if keeps is None else "for ever" if keeps < 0 else span_text(keeps / 1000)
    if most is not None and most >= 0:
        text += f", at most {size_text(most)} of a partition"
    if room is not None and facts.span:
        text += f"; the oldest may be deleted {f'in {span_text(room)}' if room > 0 else 'now'}"
    return text


def _size(facts: TopicFacts, setting: str) -> str:
    size = facts.number(setting)
    return "not known" if size is None else f"{size_text(size)} ({size})"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _partitions(facts: TopicFacts) -> Table:
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for name, right in (("partition", False), ("first", True), ("end", True), ("offsets", True), ("about", True)):
        table.add_column(name, justify="right" if right else "left", no_wrap=True)
    table.add_column("leader", justify="right")
    table.add_column("in sync", justify="right")
    each_bytes = (1 - facts.absent) * facts.record_bytes
    for each in facts.partitions[:PARTITIONS]:
        count = each.end - each.start
        table.add_row(
            f"{facts.topic}[{each.partition}]",
            f"{each.start:,}",
            f"{each.end:,}",
            f"{count:,}",
            size_text(count * each_bytes) if facts.record_bytes else "",
            "none" if each.leader < 0 else str(each.leader),
            f"{len(each.in_sync)} of {len(each.replicas)}",
        )
    return table
