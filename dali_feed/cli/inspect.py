"""`dali-feed inspect`: what each source holds by its snapshot, and what a sample of its records says.

Nothing is decoded but for a sheet. A record is judged as a training run would judge it before its decoder: by the
source, by its header, by its number of pixels. A format that only some engines take is good, and the report names it.
"""

from __future__ import annotations

import io
import math
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dali_feed.cli.judging import HEADERS, NO_LABEL, UNLABELLED, all_members, judged, judging, spread
from dali_feed.cli.members import LOOKED_AT, VALUE, MembersSeen, members_of, members_report
from dali_feed.cli.sheet import SIDE, Cell, Sheet
from dali_feed.cli.targets import Access, sources
from dali_feed.cli.view import Report, plural, show, size_text, table
from dali_feed.columns.columns import Columns
from dali_feed.errors import ConfigError
from dali_feed.external_sources import FileList, KafkaTopic, ShardSet
from dali_feed.external_sources.file_source import RecordFiles
from dali_feed.formats import format_of
from dali_feed.records.source import LABEL, MANY_ABSENT, Block, Snapshot, Source, unpack_id, unpack_ids
from dali_feed.screen.screen import header_of

if TYPE_CHECKING:
    from PIL import Image
    from rich.table import Table

PARTITIONS, BAD, SIZES = 20, 20, 5  # that are listed
SHEET = 24  # images of each source on a sheet
MOST_BARS, WIDTH = 8, 30  # bars of a histogram; letters of the longest one
NAMED = 3  # classes that are named at either end
_EIGHTHS = " ▏▎▍▌▋▊▉"


@dataclass(slots=True)
class SampleReport:
    """What a sample shows.

    rows, absent  positions looked at, and how many of them hold no record
    payloads      sizes in bytes of the records that are there
    formats       image format -> records, of those with a sound header; as `sizes`
    sizes         (width, height) as stored
    turned        records whose EXIF orientation is another than 1, upright; a TIFF's is applied anyway, and not counted
    fields        field -> the integers in it; None stands for a value that is none
    unlabelled    where, of Kafka records without a header `label` that are good otherwise
    bad           (where, reason)
    """

    rows: int = 0
    absent: int = 0
    payloads: list[int] = field(default_factory=list)
    formats: Counter[str] = field(default_factory=Counter)
    sizes: list[tuple[int, int]] = field(default_factory=list)
    turned: int = 0
    fields: dict[str, list[int | None]] = field(default_factory=dict)
    unlabelled: list[str] = field(default_factory=list)
    bad: list[tuple[str, str]] = field(default_factory=list)

    @property
    def good(self) -> int:
        """Records that can be used."""
        return self.rows - self.absent - len(self.bad)


def inspect_all(
    targets: Sequence[str], access: Access, *, sample: int, form: str | None = None, sheet: Path | None = None
) -> tuple[int, int]:
    """Show what each target holds; how many bad records the samples had, and how many sources no good one.

    `sheet` is a PNG to be written with some images of each source. With `form`, the format of topics' values, a
    record is good whose value it fits. Raises ConfigError, SourceError.
    """
    bad = hopeless = 0
    pictures = None if sheet is None else Sheet("--sheet", sheet)
    formats = {} if form is None else {VALUE: format_of(form)}
    every = sources(targets, access)
    if formats and not any(isinstance(source, KafkaTopic) for source in every):
        raise ConfigError(f"--format: is only for the values of topics; found {form!r} and no topic; leave it out")
    for source in every:
        snapshot = source.snapshot()
        topic = isinstance(source, KafkaTopic)
        columns = judging(source)
        if columns is None:
            all_members(source)
        members = members_of(source, spread(snapshot, min(sample, LOOKED_AT)), formats if topic else {})
        if columns is None or (topic and formats):
            seen = _by_members(source, members)
        else:
            seen = look(source, columns, snapshot, sample)
        show(report_of(source, snapshot, seen))
        show(members_report(members, topic=topic))
        bad += len(seen.bad)
        hopeless += bool(seen.bad) and not seen.good
        if pictures is not None and columns is not None:
            for block in judged(source, columns, snapshot, spread(snapshot, SHEET)):
                pictures.cells += _cells(source, columns, block)
    if pictures is not None:
        pictures.write()
        count = len(pictures.cells)
        show(Report(notes=[(f"{sheet}: {count:,} record{plural(count)}", "")]))
    return bad, hopeless


def _by_members(source: Source, members: MembersSeen) -> SampleReport:
    """Of records without an image: they are as good as their members can be read."""
    bad = [(source.where(*unpack_id(sample)), reason) for sample, _, reason in members.records if reason is not None]
    sizes = [size for _, size, _ in members.records]
    return SampleReport(len(sizes) + members.absent, members.absent, sizes, bad=bad)


def look(source: Source, columns: Columns, snapshot: Snapshot, count: int) -> SampleReport:
    """Read a sample of `count` records and judge each. Holds about 64 MB of payloads at a time."""
    seen = SampleReport()
    for block in judged(source, columns, snapshot, spread(snapshot, count)):
        _judge(source, columns, block, seen)
    if LABEL in seen.fields:  # a topic without any label is read with label=None; one with some has bad records
        seen.bad += [(where, UNLABELLED) for where in seen.unlabelled]
    return seen


def _judge(source: Source, columns: Columns, block: Block, seen: SampleReport) -> None:
    partitions, positions = unpack_ids(block.ids)
    absent, payloads = set(block.absent_rows()), block.values[str(columns.image)].payloads
    seen.rows += len(block.ids)
    seen.absent += len(absent)
    for row, payload in enumerate(payloads):
        if row in absent:
            continue
        seen.payloads.append(0 if payload is None else len(payload))
        where = source.where(int(partitions[row]), int(positions[row]))
        fault = block.faults.get(row)
        if fault is None:
            header = header_of(payload)
            seen.formats[header.format] += 1
            seen.turned += header.orientation != 1
            seen.sizes.append((header.width, header.height))
        else:
            seen.bad.append((where, fault.reason))
        if HEADERS in block.values or fault is None or fault.stage != "source":
            for name, value in _fields_of(block, row).items():
                seen.fields.setdefault(name, []).append(value)
        if fault is None and HEADERS in block.values and block.values[LABEL][row] == NO_LABEL:
            seen.unlabelled.append(where)


def _fields_of(block: Block, row: int) -> dict[str, int | None]:
    """The row's numbers; a Kafka record's are its headers."""
    if HEADERS in block.values:
        return {name: _integer(value) for name, value in (block.values[HEADERS][row] or {}).items()}
    numbers = {name: values for name, values in block.values.items() if isinstance(values, np.ndarray)}
    return {name: int(values[row]) for name, values in numbers.items()}


def _integer(text: bytes | memoryview | None) -> int | None:
    digits = b"" if text is None else bytes(text)
    return int(digits) if digits.removeprefix(b"-").isdigit() and len(digits) <= 20 else None


def no_labels(source: Source) -> str:
    """Of a source whose records have none: where one would be."""
    if isinstance(source, KafkaTopic):
        return "no header `label`: read it with KafkaTopic(..., label=None), or name another header"
    if isinstance(source, RecordFiles):
        return "no label: name the member that holds it with label="
    if isinstance(source, ShardSet):
        return "no label: neither a .cls member nor a .json with the key label"
    return "no label: the images lie in one folder"


def _cells(source: Source, columns: Columns, block: Block) -> Iterator[Cell]:
    partitions, positions = unpack_ids(block.ids)
    absent, images = set(block.absent_rows()), block.values[str(columns.image)]
    for row in range(len(block.ids)):
        if row in absent:
            continue
        where = source.where(int(partitions[row]), int(positions[row]))
        fault = block.faults.get(row)
        label = None if fault is not None else _fields_of(block, row).get(LABEL)
        image = _small(images[row].payload) if fault is None else fault.reason  # nothing unscreened reaches a decoder
        yield Cell(where, "no label" if label is None else f"label {label}", image)


def _small(payload: memoryview) -> Image.Image | str:
    """The image as it is stored, not turned, at most SIDE pixels long; or what Pillow says of it."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(payload)) as opened:
            opened.draft("RGB", (SIDE, SIDE))  # a JPEG is decoded at an eighth, a quarter or half where that is enough
            image = opened.convert("RGBA" if "transparency" in opened.info else "RGB").convert("RGB")
    except UnidentifiedImageError:
        return "an image that Pillow cannot read"
    except Exception as error:  # noqa: BLE001  a decoder may raise anything for a broken image
        return f"Pillow: {error}"
    image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    return image


def report_of(source: Source, snapshot: Snapshot, seen: SampleReport) -> Report:
    """A source's facts, histograms, partitions, and the bad records of its sample."""
    count = len(snapshot.names)
    report = Report(snapshot.source, [("records", f"{_count(snapshot)} in {count:,} partition{plural(count)}")])
    facts = report.facts
    if snapshot.absent:
        facts.append(("holes", _holes(snapshot)))
    facts.append(("payloads", _bytes(snapshot, seen)))
    parts = f"{seen.good:,} good, {len(seen.bad):,} bad, {seen.absent:,} absent"
    facts.append(("sample", f"{seen.rows:,} record{plural(seen.rows)}: {parts}"))
    if seen.sizes:
        formats = seen.formats.most_common()
        facts.append(("formats", ", ".join(f"{name} ({count:,})" for name, count in formats)))
        facts.append(("sizes", sizes_text(seen.sizes)))
    if seen.turned:
        share = f"{seen.turned:,} of {len(seen.sizes):,} have an EXIF orientation and are not upright as stored"
        facts.append(("turned", f"{share}; Decode(exif=True) turns them"))
    of = "all records" if seen.rows == snapshot.positions else f"the sample of {seen.rows:,}"
    for name, lines in (("fields", _fields(source, seen)), ("classes", class_lines(seen.fields.get(LABEL, []), of))):
        facts += [("" if n else name, line) for n, line in enumerate(lines)]
    pixels = [width * height for width, height in seen.sizes]
    report.tables += filter(None, (bars("bytes", seen.payloads), bars("pixels", pixels)))
    rows = list(zip(snapshot.names, snapshot.starts.tolist(), snapshot.stops.tolist(), strict=True))
    columns = {
        "partition": lambda row: row[0],
        "first": lambda row: f"{row[1]}" if row[2] > row[1] else "-",
        "last": lambda row: f"{row[2] - 1}" if row[2] > row[1] else "-",
        "positions" if snapshot.absent else "records": lambda row: f"{row[2] - row[1]:,}",
    }
    report.tables.append(table(rows, columns, left=["partition"], most=PARTITIONS))
    report.notes += [(f"  bad  {where}: {reason}", "yellow") for where, reason in seen.bad[:BAD]]
    if len(seen.bad) > BAD:
        report.note(f"  ... and {len(seen.bad) - BAD:,} more")
    report.note("")
    return report


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


def _bytes(snapshot: Snapshot, seen: SampleReport) -> str:
    """Payload bytes: added up where the sample is everything, else the mean times the records."""
    if not seen.payloads:
        return "unknown: the sample holds none"
    least, most, total = min(seen.payloads), max(seen.payloads), sum(seen.payloads)
    mean = total / len(seen.payloads)
    if seen.rows == snapshot.positions:
        whole = size_text(total)
    else:
        whole = f"about {size_text(total / seen.rows * snapshot.positions)}"  # holes included
    return f"{whole}; mean {size_text(mean)}, from {size_text(least)} to {size_text(most)}"


def sizes_text(sizes: list[tuple[int, int]]) -> str:
    """A few sizes with their counts; of many the middle, and those of the fewest and most pixels."""
    common = Counter(sizes).most_common()
    if len(common) <= SIZES:
        return ", ".join(f"{w}x{h} ({count:,})" for (w, h), count in common)
    widths, heights = zip(*sizes, strict=True)
    middle = f"median {statistics.median_low(widths)}x{statistics.median_low(heights)}"
    pixels = sorted((w * h, w, h) for w, h in sizes)
    (_, w0, h0), (_, w1, h1) = pixels[0], pixels[-1]
    return f"{middle}, from {w0}x{h0} to {w1}x{h1}; {len(common):,} different"


def _fields(source: Source, seen: SampleReport) -> list[str]:
    """A line per field."""
    lines = [_field(name, values, seen) for name, values in sorted(seen.fields.items())]
    if isinstance(source, FileList) and source.classes:
        names = ", ".join(source.classes[:5]) + (", ..." if len(source.classes) > 5 else "")
        lines.append(f"{len(source.classes):,} classes: {names}")
    if LABEL in seen.fields:
        return lines
    if isinstance(source, ShardSet) and LABEL in source.preset:
        why = next((f": {reason}" for _, reason in seen.bad if LABEL in reason), "")
        lines.append(f"label: found, but not as an integer in any record of the sample{why}")
        lines.append("  write integers into the shards, or read the images alone: ShardSet(..., label=None)")
    else:
        lines.append(no_labels(source))
    return lines


def _field(name: str, values: list[int | None], seen: SampleReport) -> str:
    numbers = [value for value in values if value is not None]
    share = f"in {len(values):,} of {len(seen.payloads):,}"
    if not numbers:
        return f"{name}: {share}, no numbers"
    odd = f"; not a number: {len(values) - len(numbers):,}" if len(numbers) < len(values) else ""
    different = len(set(numbers))
    return f"{name}: {share}, {min(numbers)}..{max(numbers)}, {different:,} different value{plural(different)}{odd}"


def borders(least: int, most: int) -> list[int]:
    """Powers of two from `least` down to `most` up, so far apart that they make at most eight bars."""
    low, high = max(0, least.bit_length() - 1), max(1, most.bit_length())
    step = -(-(high - low) // MOST_BARS)
    return [0 if least == 0 else 2**low, *(2 ** (low + step * k) for k in range(1, -(-(high - low) // step) + 1))]


def bars(name: str, values: Sequence[int]) -> Table | None:
    """A line per range of values: what it is, a bar, how many. None where the values are all the same."""
    if not values or min(values) == max(values):
        return None
    edges = borders(min(values), max(values))
    counts = Counter(next(k for k, edge in enumerate(edges[1:]) if value < edge) for value in values)
    most = max(counts.values())
    columns = {
        name: lambda k: f"{edges[k]:,} to {edges[k + 1]:,}",
        " ": lambda k: _bar(counts[k], most),
        "records": lambda k: f"{counts[k]:,}",
    }
    return table(range(len(edges) - 1), columns, left=[" "])


def _bar(count: int, most: int) -> str:
    """So long as its share of the longest one's is; the least there is where there is anything."""
    eighths = max(1, round(8 * WIDTH * count / most)) if count else 0
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def class_lines(labels: Sequence[int | None], of: str) -> list[str]:
    """How many classes there are and how even they are; nothing where each record has a label of its own.

    The number of even classes is exp(entropy): as many classes of one size would be as hard to guess.
    """
    counts = Counter(label for label in labels if label is not None)
    total = sum(counts.values())
    if len(counts) < 2 or len(counts) == total:
        return []
    ordered = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    rarest = sorted(counts.items(), key=lambda each: (each[1], each[0]))
    even = math.exp(-sum(n / total * math.log(n / total) for n in counts.values()))
    skew = ordered[0][1] / rarest[0][1]
    first = f"{len(counts):,} in {of}, {total / len(counts):,.1f} records each; most frequent {_named(ordered)}"
    if skew <= 1:
        return [first, "all equally frequent"]
    if len(ordered) > NAMED:  # else all of them are named already
        first += f"; rarest {_named(rarest)}"
    balance = f"as balanced as {even:,.1f} classes of equal size"
    return [first, f"the most frequent is {skew:,.1f} times the rarest; {balance}"]


def _named(counts: Sequence[tuple[int, int]]) -> str:
    return ", ".join(f"{label} ({count:,})" for label, count in counts[:NAMED])
