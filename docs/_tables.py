"""Writes the figures of the pages from the rows of bench/results: `make tables`.

The law: between `<!-- table: NAME -->` and `<!-- end -->` a page says what the rows say, and nobody edits it. What a
NAME is made of is a function of docs/_figures.py (README) or of a docs/_figures_*.py (other pages). Figures that stand
together come from one run: the newest that has every row they need, as ratios between runs mean nothing.

    python docs/_tables.py            writes the pages
    python docs/_tables.py --check    writes nothing; says what is old, and exits with 1
"""

from __future__ import annotations

import argparse
import csv
import difflib
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import _figures as readme
import _figures_pages as others
import _figures_prose as prose
import _figures_scaling as scales

from dali_feed.bench.runner import Race

ROOT = Path(__file__).resolve().parents[1]
REGION = re.compile(r"(<!-- table: ([\w-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
OPENED = re.compile(r"<!-- (?:table: [^>]*|end) -->")

Row = Mapping[str, str]
Figure = Callable[["Results"], list[str]]
FIGURES: dict[str, Figure] = {
    figure.__name__: figure
    for figure in (
        *(readme.costs, readme.facts, readme.speeds, readme.survived),
        *(prose.folder, prose.judged, prose.lock, prose.opened, prose.produced, prose.stream, scales.scaling),
        *(
            others.borders,
            others.columns,
            others.engines,
            others.formats,
            others.packing,
            others.small,
            others.storage,
            others.topics,
            others.watched,
        ),
    )
}


class Results:
    """The rows of a folder of results, by file and run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def runs(self, name: str) -> list[list[Row]]:
        """The runs of NAME.csv and NAME.jsonl, the newest first; a run's rows have one date.

        A CSV's headings may change within the file; a line of the other is what `dali-feed bench --out` kept, or one
        row of bench/chaos.py or fuzz.py.
        """
        heading: list[str] = []
        runs: dict[str, list[Row]] = {}
        path, older = (self._folder / f"{name}.{kind}" for kind in ("jsonl", "csv"))
        for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            line = json.loads(text)
            for row in Race.from_json(text, str(path)).flat() if "rows" in line else [line]:
                texts = {key: "" if value is None else str(value) for key, value in row.items()}
                runs.setdefault(texts["date"], []).append(texts)
        for cells in csv.reader(older.read_text(encoding="utf-8").splitlines() if older.exists() else ()):
            if cells[:1] == ["date"]:
                heading = cells
            elif cells:
                runs.setdefault(cells[0], []).append(dict(zip(heading, cells, strict=True)))
        return [runs[date] for date in sorted(runs, reverse=True)]

    def newest(self, name: str, *wanted: Mapping[str, object]) -> list[Row]:
        """A row for each of `wanted`, all of the newest run that has them. LookupError: no run has."""
        for run in self.runs(name):
            found = [[row for row in run if _fits(row, each)] for each in wanted]
            if all(found):
                return [rows[-1] for rows in found]
        msg = (
            f"no run in {self._folder / name}.csv has a row for each of {list(wanted)}: run the bench, or ask for less"
        )
        raise LookupError(msg)


def _fits(row: Row, wanted: Mapping[str, object]) -> bool:
    return all(row.get(column) == str(value) for column, value in wanted.items())


def written(text: str, results: Results, figures: Mapping[str, Figure] = FIGURES) -> str:
    """A page's text with its regions written anew. ValueError: a region is not closed, or its name is not known."""

    def region(match: re.Match[str]) -> str:
        if match[2] not in figures:
            msg = f"no function of docs/_figures*.py makes the table {match[2]!r}; there are {sorted(figures)}"
            raise ValueError(msg)
        return "\n".join([match[1], *figures[match[2]](results), "", match[4]])

    if len(OPENED.findall(text)) != 2 * len(REGION.findall(text)):
        msg = "a `<!-- table: NAME -->` without its `<!-- end -->`, or the other way round"
        raise ValueError(msg)
    return REGION.sub(region, text)


def pages() -> list[Path]:
    """The pages that may have such regions."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pages, or compare them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 where a page is old")
    parser.add_argument("--results", type=Path, default=ROOT / "bench" / "results")
    args = parser.parse_args(arguments)
    results, old, seen = Results(args.results), 0, set()
    for page in pages():
        found = page.read_text(encoding="utf-8")
        seen |= {name for _, name, _, _ in REGION.findall(found)}
        try:
            wanted = written(found, results)
        except (LookupError, ValueError) as error:
            print(f"{page.relative_to(ROOT)}: {error}", file=sys.stderr)
            return 2
        if args.check:
            lines, name = (found.splitlines(), wanted.splitlines()), str(page.relative_to(ROOT))
            diff = list(difflib.unified_diff(*lines, name, "the rows", "", "", 0, ""))
            sys.stdout.writelines(f"{line}\n" for line in diff)
            old += bool(diff)
        elif found != wanted:
            page.write_text(wanted, encoding="utf-8")
            print(f"{page.relative_to(ROOT)}: written")
    if lost := sorted(FIGURES.keys() - seen):
        print(f"no page shows {', '.join(lost)}", file=sys.stderr)
        return 2
    return int(old > 0)


if __name__ == "__main__":
    sys.exit(main())
