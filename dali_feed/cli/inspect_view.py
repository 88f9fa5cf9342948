"""Prints the findings of a source's sample."""

from __future__ import annotations

import statistics
from collections import Counter

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dali_feed.cli.findings import Findings
from dali_feed.cli.histogram import bars, class_lines
from dali_feed.cli.labels import no_labels
from dali_feed.cli.text import grid, plural, put, size_text
from dali_feed.external_sources import FileList, ShardSet
from dali_feed.records.source import LABEL, MANY_ABSENT, Snapshot, Source

__all__ = ["show"]

PARTITIONS = 20
BAD = 20
SIZES = 5


def show(source: Source, snapshot: Snapshot, findings: Findings) -> None:
    """Print one source: facts, partitions, the sample, and its bad records."""
    console = Console(highlight=False)
    console.print(Text(snapshot.source, style="bold"), soft_wrap=True)
    facts = grid()
    put(facts, "records", f"{_count(snapshot)} in {len(snapshot.names):,} partition{plural(len(snapshot.names))}")
    if snapshot.absent:
        put(facts, "holes", _holes(snapshot))
    put(facts, "payloads", _bytes(snapshot, findings))
    put(facts, "sample", _sample(findings))
    if findings.sizes:
        formats = findings.formats.most_common()
        put(facts, "formats", ", ".join(f"{name} ({count:,})" for name, count in formats))
        put(facts, "sizes", _sizes(findings.sizes))
        if findings.turned:
            put(facts, "turned", _turned(findings))
    for n, line in enumerate(_fields(source, findings)):
        put(facts, "" if n else "fields", line)
    for n, line in enumerate(class_lines(findings.fields.get(LABEL, []), _of(snapshot, findings))):
        put(facts, "" if n else "classes", line)
    console.print(facts)
    pixels = [width * height for width, height in findings.sizes]
    for table in (bars("bytes", findings.payloads), bars("pixels", pixels)):
        if table is not None:
            console.print(table)
    console.print(_partitions(snapshot))
    if len(snapshot.names) > PARTITIONS:
        console.print(f"  ... and {len(snapshot.names) - PARTITIONS:,} more")
    for where, reason in findings.bad[:BAD]:
        console.print(Text(f"  bad  {where}: {reason}", style="yellow"), soft_wrap=True)
    if len(findings.bad) > BAD:
        console.print(f"  ... and {len(findings.bad) - BAD:,} more")
    console.print()


def _of(snapshot: Snapshot, findings: Findings) -> str:
    """What the classes were counted in."""
    return "all records" if findings.rows == snapshot.positions else f"the sample of {findings.rows:,}"


def _count(snapshot: Snapshot) -> str:
    """How many records there are, as far as is known."""
    if not snapshot.absent or snapshot.present is not None:
        return f"{len(snapshot):,}"
    return f"about {snapshot.positions * (1 - snapshot.absent):,.0f}"


def _holes(snapshot: Snapshot) -> str:
    """The share of positions without a record, and what a training run does about them."""
    share = f"about {snapshot.absent:.1%} of {snapshot.positions:,} offsets hold no record"
    if snapshot.absent > MANY_ABSENT:
        return f"{share}; a run reads the topic once to learn which, or repeats others there: KafkaTopic(holes=...)"
    return f"{share}; a run repeats others there"


def _bytes(snapshot: Snapshot, findings: Findings) -> str:
    """Payload bytes: added up where the sample is everything, else the mean times the records."""
    if not findings.payloads:
        return "unknown: the sample holds none"
    least, most, total = min(findings.payloads), max(findings.payloads), sum(findings.payloads)
    mean = total / len(findings.payloads)
    if findings.rows == snapshot.positions:
        whole = size_text(total)
    else:
        whole = f"about {size_text(total / findings.rows * snapshot.positions)}"  # holes included
    return f"{whole}; mean {size_text(mean)}, from {size_text(least)} to {size_text(most)}"


def _sample(findings: Findings) -> str:
    parts = [f"{findings.good:,} good", f"{len(findings.bad):,} bad", f"{findings.absent:,} absent"]
    return f"{findings.rows:,} record{plural(findings.rows)}: {', '.join(parts)}"


def _turned(findings: Findings) -> str:
    """How many images are not upright as stored, and what to do."""
    share = f"{findings.turned:,} of {len(findings.sizes):,} have an EXIF orientation and are not upright as stored"
    return f"{share}; Decode(exif=True) turns them"


def _sizes(sizes: list[tuple[int, int]]) -> str:
    common = Counter(sizes).most_common()
    if len(common) <= SIZES:
        return ", ".join(f"{w}x{h} ({count:,})" for (w, h), count in common)
    widths, heights = zip(*sizes, strict=True)
    middle = f"median {statistics.median_low(widths)}x{statistics.median_low(heights)}"
    pixels = sorted((w * h, w, h) for w, h in sizes)
    (_, w0, h0), (_, w1, h1) = pixels[0], pixels[-1]
    return f"{middle}, from {w0}x{h0} to {w1}x{h1}; {len(common):,} different"


def _fields(source: Source, findings: Findings) -> list[str]:
    """A line per field."""
    lines = [_field(name, values, findings) for name, values in sorted(findings.fields.items())]
    if isinstance(source, FileList) and source.classes:
        names = ", ".join(source.classes[:5]) + (", ..." if len(source.classes) > 5 else "")
        lines.append(f"{len(source.classes):,} classes: {names}")
    if LABEL in findings.fields:
        return lines
    if isinstance(source, ShardSet) and LABEL in source.fields:
        why = next((f": {reason}" for _, reason in findings.bad if LABEL in reason), "")
        lines.append(f"label: found, but not as an integer in any record of the sample{why}")
        lines.append("  write integers into the shards, or read the images alone: ShardSet(..., label=None)")
    else:
        lines.append(no_labels(source))
    return lines


def _field(name: str, values: list[int | None], findings: Findings) -> str:
    numbers = [value for value in values if value is not None]
    share = f"in {len(values):,} of {len(findings.payloads):,}"
    if not numbers:
        return f"{name}: {share}, no numbers"
    odd = f"; not a number: {len(values) - len(numbers):,}" if len(numbers) < len(values) else ""
    different = len(set(numbers))
    return f"{name}: {share}, {min(numbers)}..{max(numbers)}, {different:,} different value{plural(different)}{odd}"


def _partitions(snapshot: Snapshot) -> Table:
    table = Table(box=None, padding=(0, 2), header_style="dim")
    table.add_column("partition", overflow="fold")
    for name in ("first", "last", "positions" if snapshot.absent else "records"):
        table.add_column(name, justify="right", no_wrap=True)
    rows = zip(snapshot.names, snapshot.starts.tolist(), snapshot.stops.tolist(), strict=True)
    for name, start, stop in list(rows)[:PARTITIONS]:
        ends = (f"{start}", f"{stop - 1}") if stop > start else ("-", "-")
        table.add_row(Text(name), *ends, f"{stop - start:,}")
    return table
