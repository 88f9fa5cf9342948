"""What is told of contestants that took turns: rows, their columns in a CSV, who is missing, and sentences."""

from __future__ import annotations

import contextlib
import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from kit.member_shards import shards

from dali_feed.bench.chance import by_chance
from dali_feed.bench.contract import Contestant, Data, Job, Outcome, Steps
from dali_feed.bench.findings import findings
from dali_feed.bench.loading import COLUMNS, SHOWN, measure, told_in_csv
from dali_feed.bench.ours import ours
from dali_feed.bench.quick import FirstWay
from dali_feed.bench.report import page
from dali_feed.bench.rows import append_to
from dali_feed.bench.told import fits
from dali_feed.cli.bench.ending import Ending, ending
from dali_feed.options import Tuning


def table_text(outcome: Outcome) -> str:
    """What a command of the bench prints at its end."""
    told = io.StringIO()
    with contextlib.redirect_stdout(told), ending(outcome, Ending(SHOWN)):
        pass
    return told.getvalue()


class _Steps(Steps):
    def __init__(self, size: int) -> None:
        self._size = size
        self.notes = {"read_wait": 1.0, "engine_wait": 3.0, "trainer_wait": 0.0}

    def __next__(self) -> int:
        return self._size


@dataclass(frozen=True)
class Scripted:
    """A contestant whose batches cost nothing; `lacks` is why it cannot take part."""

    name: str
    size: int = 1
    lacks: str | None = None
    version: str = "1.2"

    def missing(self, job: Job) -> str | None:
        """As the script says."""
        return self.lacks

    def ways(self, job: Job) -> Sequence[str]:
        """Two."""
        return ["one", "two"]

    @contextmanager
    def turn(self, job: Job, way: str) -> Iterator[Steps]:
        """At once; "broken" fails."""
        if self.name == "broken":
            msg = "no such thing"
            raise OSError(msg)
        yield _Steps(self.size)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Nobody here reads."""
    return Job(Data("nothing", tmp_path, (), 1, 1, 1, 1), 1, "cpu", 1, tmp_path)


def outcome_of(job: Job, *contestants: Contestant, repeats: int = 2) -> Outcome:
    """Of turns that are over at once."""
    outcome = Outcome("loader", {"machine": "this"})
    measure(contestants, job, outcome, repeats=repeats, seconds=1e-4)
    return outcome


def test_everybody_is_told_or_named(job: Job) -> None:
    """Who took part has a row, waits and stages; who could not, or failed, has a reason."""
    outcome = outcome_of(job, Scripted("tar"), Scripted("ceiling"), Scripted("x", lacks="no X"), Scripted("broken"))
    assert [row["who"] for row in outcome.rows] == ["tar", "ceiling"]
    assert outcome.missing == {"x": "no X", "broken": "failed: OSError: no such thing"}
    assert all(row["way"] in {"one", "two"} and row["version"] == "1.2" for row in outcome.rows)
    assert all(outcome.waits[who] for who in ("tar", "ceiling"))
    assert outcome.stages["tar"] == {"source": 1.0, "decode": 3.0, "trainer": 0.0}
    assert outcome.rows[0]["waits"] == "read=0.25 engine=0.75 trainer=0.00"


def test_our_loader_says_where_its_time_went(job: Job, tmp_path: Path) -> None:
    """Its verdict and stages come with its turn, in the shape that a kept outcome may have."""

    class Real(Scripted):
        @contextmanager
        def turn(self, job: Job, way: str) -> Iterator[Steps]:
            with ours(lambda: shards(tmp_path), 4, Tuning(threads=1), torch.device("cpu"), "host", crop=16)() as steps:
                yield steps

    told = outcome_of(job, Real("tar"), Scripted("torch"), repeats=1).told
    assert list(told) == ["tar"]
    assert fits(told["tar"])
    assert [stage["name"] for stage in told["tar"]["stages"]][::6] == ["read", "train"]


def test_ratios_name_whom_they_are_to(job: Job) -> None:
    """The ceiling's own is 1; there is one to each other contestant, and none to oneself but to ceiling and loop."""
    outcome = outcome_of(job, Scripted("tar", 100), Scripted("ceiling"), Scripted("torch"))
    tar, ceiling, torch = outcome.rows
    assert (ceiling["of ceiling"], torch["of loop"]) == (1.0, None)
    assert tar["of torch"] > 1
    assert tar["of torch, least"] <= tar["of torch"] <= tar["of torch, most"]
    assert "of tar" not in tar


def test_a_csv_has_the_same_columns_whoever_takes_part(job: Job, tmp_path: Path) -> None:
    """So that runs of different peers stand below one heading; ratios to those are text in one column."""
    path = tmp_path / "kept.csv"
    for names in (("tar", "ceiling"), ("tar", "torch", "spdl"), ("loop",)):
        outcome = outcome_of(job, *map(Scripted, names), repeats=1)
        append_to(path, [{**outcome.about, **told_in_csv(row)} for row in outcome.rows])
    with path.open(newline="") as file:
        heading, *rows = list(csv.reader(file))
    assert heading == ["machine", *COLUMNS, "version", "beside"]
    assert [row[1] for row in rows] == ["tar", "ceiling", "tar", "torch", "spdl", "loop"]
    beside = dict(pair.split("=") for pair in rows[2][-1].split())
    assert set(beside) == {"torch", "spdl"}


def test_in_a_hurry_a_contestant_goes_one_way(job: Job) -> None:
    """The one it names first, and nothing else of it changes."""
    assert FirstWay(Scripted("a")).ways(job) == ["one"]
    (row,) = outcome_of(job, FirstWay(Scripted("a")), repeats=1).rows
    assert (row["who"], row["way"]) == ("a", "one")


def test_sentences_say_who_is_faster_and_what_limits() -> None:
    """Of the fastest of ours beside the fastest other loader, with what its feed thread waits for."""

    def row(who: str, rate: int, **more: float) -> dict[str, object]:
        return {"who": who, "way": "", "img/s": rate, "least": rate, "most": rate, "of ceiling": None, **more}

    ours = row("tar", 600) | {"of ceiling": 0.6, "of torch": 3.0, "of spdl": 2.0}
    outcome = Outcome("loader", {}, [row("folder", 500), ours, row("torch", 200), row("spdl", 300)])
    outcome.stages["tar"] = {"source": 5.0, "decode": 1.0, "trainer": 0.0}
    first, second = findings(outcome)
    assert first == "dali_feed over tar gives 600 images/s, 2.00 times the fastest other loader, spdl."
    assert "0.60 of the ceiling" in second
    assert "waits most for the source" in second
    assert findings(Outcome("loader", {}, [row("torch", 200)])) == []


@pytest.mark.parametrize(("most", "chance"), [(560, False), (580, True)])
def test_a_lead_within_the_spread_may_be_chance(most: int, chance: bool) -> None:
    """It is said so exactly where a turn of the slower reached one of the faster."""
    ours = {"who": "tar", "way": "", "img/s": 600, "least": 570, "most": 630, "of torch": 1.1, "of ceiling": None}
    torch = {"who": "torch", "way": "", "img/s": 545, "least": 530, "most": most}
    assert ("may be chance" in findings(Outcome("loader", {}, [ours, torch]))[0]) is chance


@pytest.mark.parametrize("shown", [table_text, page])
def test_a_ratio_of_turns_that_overlap_says_so_in_the_table(shown: Callable[[Outcome], str]) -> None:
    """On the terminal and in the page: beside that ratio, and not beside one of turns that are apart."""

    def row(who: str, least: int, most: int, **more: object) -> dict[str, object]:
        return {"who": who, "img/s": (least + most) // 2, "least": least, "most": most, **more}

    ours = row("tar", 570, 630, **{"of ceiling": 0.9, "of loop": 1.2})
    rows = [ours, row("ceiling", 620, 700, **{"of ceiling": 1.0}), row("loop", 400, 500)]
    assert shown(Outcome("loader", {}, rows)).count("may be chance") == 1
    assert re.search(r"0\.9(00)?\W+(small>)?may be chance", shown(Outcome("loader", {}, rows)))


def test_a_ratio_is_to_the_row_that_differs_in_its_name() -> None:
    """A form, or a place in an epoch, is looked for among the rows of the same contestant."""
    rows = [
        {"who": "tar", "at": "start", "least": 1.0, "most": 2.0},
        {"who": "torch", "at": "start", "least": 8.0, "most": 9.0},
        {"who": "tar", "at": "end", "least": 1.5, "most": 3.0, "of start": 1.4, "of torch": 0.1, "of copy": 2.0},
    ]
    assert [by_chance(rows[2], column, rows) for column in ("of start", "of torch", "of copy", "least")] == [
        *(True, False, False, False)
    ]
