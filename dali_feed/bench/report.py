"""A race as a page, as a CSV, and beside a race of before.

The page is one file that asks for nothing: no script, no font, no address. The answer comes first, then who was how
fast, then what to do and how it is known. What a race does not have has no section. jinja2 escapes every text of data,
and a policy tells the browser to run and fetch nothing, should one get through.

A ratio is LOST where every round of it today lies below every round of before, and its median more than 3 % below: of
five rounds and five, chance alone puts all of one below all of the others once in 252 times.
"""

from __future__ import annotations

import csv
import io
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from dali_feed.bench.runner import CHANCE, Race, Turnout
from dali_feed.errors import ConfigError

log = logging.getLogger("dali_feed")

FORMATS = (".json", ".csv", ".html")
KINDS = {
    "loader": "From encoded images to a normalized float batch on the device",
    "kafka": "From a topic's records to tensors",
    "decode": "Decoding alone",
    "kernels": "Kernels beside a copy of the same bytes",
    "storage": "What the storage gives",
    "train": "A model trained on the loader's batches",
    "resume": "From a saved state to the first batch",
}
SAME = ("machine", "cpus", "image", "images", "batch", "threads", "device", "engine")  # or ratios mean something else
LEAST_LOSS = 0.03
ENOUGH_ROUNDS = 3  # below it "every round" says little
ONE_PART = ("part", "outcome", "batch")  # of a line of `bench gpu`
BEGINNING = '{"kind": "'  # of a line
PERCENT = ("waited", "others")


def read(path: Path) -> Race:
    """The newest race that a file holds. Raises ConfigError that names the file and what is wrong in it."""
    return (lines_of(path) or [Race.from_json("", str(path))])[-1]


def lines_of(path: Path) -> list[Race]:
    """All that a file holds, the oldest first, but no last line that a kill has cut. Raises what `read` does."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        msg = f"{path}: must be a file that `dali-feed bench ... --out FILE.json` wrote; found {error}"
        raise ConfigError(msg) from error
    if cut := _cut(text):
        log.warning("%s: a line must be whole; the last one was cut after %d letters and is skipped", path, cut)
    lines = text[: len(text) - cut].splitlines()
    return [Race.from_json(line, str(path)) for line in lines if line.strip()]


def _cut(text: str) -> int:
    """How many letters at the end are the beginning of a line of ours, whose end a kill has left out."""
    last = text.rpartition("\n")[2]
    if not last or not last.startswith(BEGINNING[: len(last)]):
        return 0
    try:
        json.loads(last)
    except ValueError:
        return len(last)
    return 0


def kept(race: Race, path: Path) -> None:
    """Keep a race in the format of the file's suffix; a line of JSON and rows of a CSV are added to what is there."""
    if path.suffix == ".html":
        path.write_text(page(race), encoding="utf-8")
    elif path.suffix == ".csv":
        with path.open("a+", newline="", encoding="utf-8") as file:
            file.seek(0)
            heading, rows = csv_of(race).split("\n", 1) if race.rows else ("", "")
            headings = [line for line in file.read().splitlines() if line.startswith(heading.partition(",")[0] + ",")]
            file.write(rows if headings[-1:] == [heading] else f"{heading}\n{rows}")
    else:
        with path.open("a+b") as file:
            file.seek(0)
            text = file.read().decode("latin-1")  # a letter for each byte
            cut = _cut(text)
            file.truncate(file.tell() - cut)
            begin = "" if cut or not text or text.endswith("\n") else "\n"
            file.write(f"{begin}{race.to_json()}\n".encode())


def csv_of(race: Race) -> str:
    """A heading and a row for each contestant, with where and with what it was made."""
    rows, sheet = race.flat(), io.StringIO()
    if rows:
        writer = csv.DictWriter(sheet, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return sheet.getvalue()


def text_of(name: str, value: Any) -> str:
    """A cell as people read it."""
    if value is None or isinstance(value, str):
        return value or ""
    if name in PERCENT:
        return f"{value:.0%}"
    if name.startswith(("of ", "cpu of ")):
        return f"{value:.3f}"
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:,.3g}"


def shown_columns(race: Race) -> list[str]:
    """The columns of its table that say something of some row."""
    return [name for name in race.shown if any(race.cell(row, name) not in {None, ""} for row in race.rows)]


def _cell(race: Race, row: Turnout, name: str) -> dict[str, Any]:
    value = race.cell(row, name)
    chance = CHANCE if race.chance(row, name) else ""
    return {"text": text_of(name, value), "chance": chance, "words": isinstance(value, str)}


def _bars(race: Race, rows: Sequence[tuple[str, str, Turnout]]) -> list[dict[str, Any]]:
    """A bar for each (name, detail, row), as long as its share of the most that any reached, with its spread."""
    spans = [(median(its), min(its), max(its)) for its in (race.figures(row) for _, _, row in rows)]
    longest = max((most for _, _, most in spans), default=0.0) or 1.0
    return [
        {
            "name": name,
            "detail": detail,
            "role": row.role,
            "value": text_of("", middle),
            "width": 100 * middle / longest,
            "left": 100 * least / longest,
            "spread": 100 * (most - least) / longest,
            "says": f"{name}: {text_of('', middle)} {race.figure}, {text_of('', least)} to {text_of('', most)}",
        }
        for (name, detail, row), (middle, least, most) in zip(rows, spans, strict=True)
    ]


def _better(race: Race) -> str:
    return "shorter is better" if race.less_is_better else "longer is better"


def _sections(race: Race, name: str = "") -> list[dict[str, Any]]:
    """Bars of each case of a race."""
    sections = []
    for case in dict.fromkeys(row.case for row in race.rows):
        rows = [(row.who, row.way, row) for row in race.rows if row.case == case]
        rows.sort(key=lambda each: median(race.figures(each[2])), reverse=not race.less_is_better)
        heading = ", ".join(filter(None, (name, race.figure, case)))
        note = f"In turns, on this machine; {_better(race)}. Green is dali_feed."
        sections.append({"heading": heading, "note": note, "bars": _bars(race, rows)})
    return sections


def page(race: Race) -> str:
    """The page of one race."""
    columns = shown_columns(race)
    table = {"columns": columns, "rows": [[_cell(race, row, name) for name in columns] for row in race.rows]}
    best = max(race.rows, key=lambda row: median(row.rates), default=None)
    answer = "; ".join(["Nothing was measured", *dict.fromkeys(race.missing.values())])
    if race.findings:
        answer = race.findings[0]
    elif best is not None:
        answer = f"{best.who}: {text_of('', race.cell(best, race.figure))} {race.figure}"
    return _render(
        title=f"dali-feed bench {race.kind}",
        over=KINDS.get(race.kind, race.kind),
        answer=answer,
        under=" · ".join(str(race.about[key]) for key in ("data", "machine", "device") if race.about.get(key)),
        sections=_sections(race),
        findings=race.findings[1:],
        verdicts=[row for row in race.rows if "verdict" in row.extra],
        missing=race.missing,
        abouts={"": {key: value for key, value in race.about.items() if value not in {None, ""}}},
        table=table if race.rows else None,
        sheet=csv_of(race),
    )


def pages(lines: Sequence[Race], sentences: Sequence[str]) -> str:
    """The page of `dali-feed bench gpu`: what it comes to, the bars of each race, and what each check said."""
    races, about = [line for line in lines if line.rows], lines[0].about if lines else {}
    checks = [line for line in lines if line.kind == "check"]
    return _render(
        title="dali-feed bench gpu",
        over="Right, fast, so",
        answer=" ".join(sentences),
        under="",
        sections=[section for each in races for section in _sections(each, str(each.about["part"]))],
        findings=[check_text(each) for each in checks],
        verdicts=[],
        missing={f"{each.about['part']}, {who}": why for each in races for who, why in each.missing.items()},
        abouts={"": {key: value for key, value in about.items() if value not in {None, ""} and key not in ONE_PART}},
        table=None,
        sheet="",
    )


def check_text(line: Race) -> str:
    """A check of `dali-feed bench gpu` as a line says it."""
    return f"{line.about['outcome']:<11} {line.about['part']}: {' '.join(line.findings)}"


def losses(before: Race, today: Race) -> tuple[dict[str, str], str]:
    """What ours lost against each other contestant of both races, by name of the ratio; and why nothing is judged."""
    different = [key for key in SAME if before.about.get(key) != today.about.get(key)]
    if different:
        return {}, f"no ratio is judged, as the runs differ in {', '.join(different)}"
    rounds = min((len(row.rates) for each in (before, today) for row in each.rows), default=0)
    if rounds < ENOUGH_ROUNDS:
        return {}, f"no ratio is judged: of {ENOUGH_ROUNDS} rounds or more, and found {rounds}"
    lost = {}
    for old in (row for row in before.rows if row.role == "ours"):
        for other in (row for row in before.rows if row.role != "ours" and row.case == old.case):
            name = f"{old.case + ', ' if old.case else ''}{old.who} of {other.who}"
            was, new = before.ratio(old, other.who), today.row(old.who, old.case)
            now = None if new is None else today.ratio(new, other.who)
            if was is None:
                continue
            if now is None:
                lost[name] = f"{was.median:.3f} before, not measured today"
                continue
            worse = now.least > was.most if before.less_is_better else now.most < was.least
            loss = now.median / was.median - 1 if before.less_is_better else 1 - now.median / was.median
            if worse and loss > LEAST_LOSS:
                spans = (f"{each.median:.3f} ({each.least:.3f} to {each.most:.3f})" for each in (now, was))
                lost[name] = f"{', before '.join(spans)}: {loss:.0%} lost"
    return lost, ""


def compared(named: Sequence[tuple[str, Race]]) -> tuple[str, dict[str, str], str]:
    """The page of several races of one kind beside each other, the first being the one that others are compared with.

    And what was lost in any of the others, by name; why nothing is judged, or "". ConfigError: they are of two kinds.
    """
    kinds = list(dict.fromkeys(race.kind for _, race in named))
    if len(kinds) > 1:
        msg = f"FILE: all must be of one kind of benchmark; found {' and '.join(kinds)}; make a page of each"
        raise ConfigError(msg)
    (first_name, first), lost, why = named[0], dict[str, str](), ""
    sections = []
    for case, who in dict.fromkeys((row.case, row.who) for _, race in named for row in race.rows):
        rows = [(name, "", row) for name, race in named if (row := race.row(who, case)) is not None]
        old, notes = first.row(who, case), []
        for name, race in named[1:]:
            new = race.row(who, case)
            if old is not None and new is not None:
                ratio = median(race.figures(new)) / median(first.figures(old))
                notes.append(f"{name} is {ratio:.2f} of {first_name}")
        heading = ", ".join(filter(None, (case, who)))
        sections.append({"heading": heading, "note": "; ".join(notes), "bars": _bars(first, rows)})
    for name, race in named[1:]:
        shares, reason = losses(first, race)
        lost |= {f"{name}: {ratio}": says for ratio, says in shares.items()}
        why = why or reason
    answer = f"LOST: {'; '.join(lost)}" if lost else why or "Nothing is lost beyond the noise"
    body = _render(
        title=f"dali-feed bench {first.kind}",
        over=f"Beside each other: {first.figure}, {_better(first)}",
        answer=answer,
        under="",
        sections=sections,
        findings=[f"LOST {ratio}: {says}" for ratio, says in lost.items()],
        verdicts=[],
        missing={f"{name}: {who}": reason for name, race in named for who, reason in race.missing.items()},
        abouts={name: race.about for name, race in named},
        table=None,
        sheet="",
    )
    return body, lost, why


def _render(**values: Any) -> str:
    loader = PackageLoader("dali_feed.bench", ".")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return environment.get_template("report.html.j2").render(**values)
