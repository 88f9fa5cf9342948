"""Numbers of a sample as people look at them: a histogram in bars of text, and how even classes are."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

__all__ = ["bars", "borders", "class_lines"]

MOST_BARS = 8
WIDTH = 30  # letters of the longest bar
NAMED = 3  # classes that are named at either end
_EIGHTHS = " ▏▎▍▌▋▊▉"


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
    counts = [0] * (len(edges) - 1)
    for value in values:
        counts[next(k for k, edge in enumerate(edges[1:]) if value < edge)] += 1
    table = Table(box=None, padding=(0, 2), header_style="dim")
    table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("records", justify="right", no_wrap=True)
    for start, stop, count in zip(edges, edges[1:], counts, strict=False):
        table.add_row(Text(f"{start:,} to {stop:,}"), _bar(count, max(counts)), f"{count:,}")
    return table


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
    lines = [f"{len(counts):,} in {of}, {total / len(counts):,.1f} records each; most frequent {_named(ordered)}"]
    if skew > 1:
        if len(ordered) > NAMED:  # else all of them are named already
            lines[0] += f"; rarest {_named(rarest)}"
        lines.append(
            f"the most frequent is {skew:,.1f} times the rarest; as balanced as {even:,.1f} classes of equal size"
        )
    else:
        lines.append("all equally frequent")
    return lines


def _named(counts: Sequence[tuple[int, int]]) -> str:
    return ", ".join(f"{label} ({count:,})" for label, count in counts[:NAMED])
