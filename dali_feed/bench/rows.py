"""Rows of results: added to a CSV file, and shown as text."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["append", "append_to", "table"]


def append(name: str, rows: Sequence[Mapping[str, object]], results: Path) -> Path:
    """Add rows to RESULTS/NAME.csv."""
    return append_to(results / f"{name}.csv", rows)


def append_to(path: Path, rows: Sequence[Mapping[str, object]]) -> Path:
    """Add rows to a CSV. Rows of other columns go below a heading of their own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = list(rows[0])
    with path.open("a+", newline="") as file:
        file.seek(0)
        headings = [line for line in csv.reader(file) if line[:1] == columns[:1]]
        writer = csv.writer(file)
        if not headings or headings[-1] != columns:
            writer.writerow(columns)
        writer.writerows([row[column] for column in columns] for row in rows)
    return path


def table(rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> str:
    """Rows as text, numbers to the right."""
    cells = [list(columns)] + [[str(row.get(column, "")) for column in columns] for row in rows]
    widths = [max(len(line[k]) for line in cells) for k in range(len(columns))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if k == 0 else cell.rjust(width)
            for k, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in cells
    )
