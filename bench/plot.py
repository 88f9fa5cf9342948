"""Pictures of the rows in results/: kernels beside a copy, decoding over its settings, what training waits.

    python bench/plot.py [--results bench/results]

Of each table the rows of its last run (those with its last date) are drawn into NAME.png beside it. Needs matplotlib.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from typing import Any

from _results import RESULTS

Rows = list[dict[str, str]]


def last_run(path: Path) -> Rows:
    """The rows with the last date, of a table whose columns may have changed on the way."""
    columns: list[str] = []
    rows: Rows = []
    with path.open(newline="") as file:
        for line in csv.reader(file):
            if line[:1] == ["date"]:
                columns = line
            else:
                rows.append(dict(zip(columns, line, strict=True)))
    return [row for row in rows if row["date"] == rows[-1]["date"]]


def bars(axes: Any, names: list[str], values: list[float], title: str, unit: str) -> None:
    """One bar per row, its value beside it."""
    drawn = axes.barh(range(len(names)), values, color="#4477aa")
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.invert_yaxis()
    axes.bar_label(drawn, fmt="%g", fontsize=7, padding=2)
    axes.set_title(title, fontsize=9)
    axes.set_xlabel(unit, fontsize=8)


def kernels(axes: Any, rows: Rows) -> None:
    """Bandwidth as a share of a copy's."""
    names = [f"{row['kernel']} {row['variant']}" for row in rows]
    bars(axes, names, [float(row["of copy"]) for row in rows], f"kernels on {rows[0]['device']}", "of a copy's GB/s")


def decode(axes: Any, rows: Rows) -> None:
    """Images per second of each setting."""
    names = [f"{row['who']} batch {row['batch']} threads {row['threads']} load {row['load']}" for row in rows]
    bars(axes, names, [float(row["img/s"]) for row in rows], f"from memory on {rows[0]['device']}", "images/s")


def training(axes: Any, rows: Rows) -> None:
    """The slowest hundredth of the waits."""
    title = f"{rows[0]['model']} in bfloat16 on {rows[0]['device']}, batch {rows[0]['batch']}"
    bars(axes, [row["who"] for row in rows], [float(row["wait p99 ms"]) for row in rows], title, "wait p99, ms")


def main() -> None:
    """Draw what there is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    for draw in (kernels, decode, training):
        table = args.results / f"{draw.__name__}.csv"
        if not table.exists():
            print(f"{draw.__name__}: no rows in {args.results}")
            continue
        rows = last_run(table)
        figure, axes = plt.subplots(figsize=(8, 1 + 0.22 * len(rows)), layout="constrained")
        draw(axes, rows)
        figure.savefig(table.with_suffix(".png"), dpi=120)
        print(f"{draw.__name__}: {len(rows)} rows in {table.with_suffix('.png')}")


if __name__ == "__main__":
    main()
