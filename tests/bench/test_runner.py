"""Turns of contestants that follow a script: who goes when, whose rounds are kept, what a failure costs; and pages."""

from __future__ import annotations

import math
import multiprocessing
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dali_feed.bench import loading
from dali_feed.bench.report import kept, losses, page
from dali_feed.bench.runner import Called, Contestant, Race, Steps, Turnout, opened, race
from dali_feed.cli.app import app
from dali_feed.errors import ConfigError


class Counted(Steps):
    """Gives `size` each step, and raises after `most` steps."""

    def __init__(self, size: int, most: float, error: type[BaseException]) -> None:
        self.size, self.most, self.error, self.taken = size, most, error, 0

    def __next__(self) -> int:
        self.taken += 1
        if self.taken > self.most:
            msg = "as the script says"
            raise self.error(msg)
        return self.size


@dataclass
class Script:
    """Contestants whose turns are written down; `fails` names the turns of "who/way" that fail, by number."""

    fails: dict[str, tuple[int, ...]] = field(default_factory=dict)
    error: type[BaseException] = ValueError
    order: list[str] = field(default_factory=list)
    steps: list[Counted] = field(default_factory=list)

    def contestant(self, who: str, **sizes: int) -> Contestant:
        """One whose batches are of that size, by way: twice as large is about twice as fast."""

        @contextmanager
        def opens(way: str) -> Iterator[Steps]:
            name = f"{who}/{way}"
            number = self.order.count(name)
            self.order.append(name)
            most = 2 if number in self.fails.get(name, ()) else math.inf
            self.steps.append(Counted(sizes.get(way, 1), most, self.error))
            yield self.steps[-1]

        return Contestant(who, opens, tuple(sizes) or ("",))


def raced(*contestants: Contestant) -> Race:
    """Two turns of each, so short that a batch or two is counted."""
    result = Race("some", "images")
    race(result, contestants, rounds=2, seconds=1e-4)
    return result


def test_contestants_take_turns_and_each_turn_is_made_afresh() -> None:
    """a, b, c, a, b, c; what one turn made is not used by the next; every round is kept, but for its first steps."""
    script = Script()
    result = raced(*(script.contestant(who) for who in "abc"))
    assert script.order == ["a/", "b/", "c/"] * 2
    assert len({id(steps) for steps in script.steps}) == 6
    assert [(row.who, len(row.rates), len(row.cpu_us), len(row.others)) for row in result.rows] == [
        (who, 2, 2, 2) for who in "abc"
    ]
    assert script.steps[0].taken > 6
    race(Race("some", "images"), [script.contestant("d")], rounds=1)
    assert script.steps[-1].taken == 1  # without a duration a turn is one step


def test_the_fastest_way_goes_on_and_its_trial_does_not_count() -> None:
    """Each way is tried once; the round that won the choice would be the best of several noisy ones."""
    script = Script()
    result = raced(script.contestant("a", slow=1, fast=10_000), script.contestant("b"))
    assert script.order == ["a/slow", "a/fast", "a/fast", "b/", "a/fast", "b/"]
    assert [(row.who, row.way, len(row.rates)) for row in result.rows] == [("a", "fast", 2), ("b", "", 2)]


def test_whoever_fails_is_out_and_the_others_go_on() -> None:
    """With the reason; a way that fails costs that way alone; in a later round it costs the row."""
    script = Script({"a/x": (0,), "b/": (1,), "c/x": (0,), "c/y": (0,)})
    contestants = [script.contestant("a", x=5, y=1), script.contestant("b"), script.contestant("c", x=1, y=1)]
    result = raced(*contestants, replace(script.contestant("d"), unable="no d; pip install d"), script.contestant("e"))
    assert [(row.who, row.way) for row in result.rows] == [("a", "y"), ("e", "")]
    reason = "failed: ValueError: as the script says"
    assert result.missing == {"b": reason, "c": reason, "d": "no d; pip install d"}


def test_an_interrupted_race_keeps_what_it_had() -> None:
    """Ctrl-C is no failure of a contestant."""
    script = Script({"b/": (1,)}, KeyboardInterrupt)
    result = Race("some", "images")
    with pytest.raises(KeyboardInterrupt):
        race(result, [script.contestant("a"), script.contestant("b")], rounds=5, seconds=1e-4)
    assert [(row.who, len(row.rates)) for row in result.rows] == [("a", 2), ("b", 1)]


def _run() -> Race:
    rows = [Turnout("", "a", "ours", rates=[10.0, 30.0, 20.0], beside="b"), Turnout("", "b", rates=[20.0, 20.0, 20.0])]
    for row in rows:
        row.cpu_us, row.server_us, row.others = [1.0] * 3, [0.0] * 3, [0.0] * 3
    return Race("some", "images", ["who", "images/s", "of b"], {"machine": "m"}, rows)


def test_ratios_are_of_the_same_rounds() -> None:
    """The median of the rounds' ratios, not the ratio of medians; they overlap, so it may be chance."""
    result = _run()
    ratio = result.ratio(result.rows[0], "b")
    assert ratio is not None
    assert (ratio.median, ratio.least, ratio.most, ratio.chance) == (1.0, 0.5, 1.5, True)
    cells = [result.cell(result.rows[0], name) for name in ("images/s", "of it", "of c", "busy")]
    assert cells == [20.0, 1.0, None, None]
    assert result.ratio(result.rows[0], "nobody") is None
    result.rows[0].rates = [40.0, 50.0, 60.0]
    assert not result.chance(result.rows[0], "of b")


def test_a_figure_is_of_its_unit_and_its_round() -> None:
    """Of times less is better, so a ratio turns round; a row is busy where others took a tenth of the cores."""
    result = _run()
    result.unit = "ms"
    assert result.cell(result.rows[0], "ms") == pytest.approx(50.0)
    ratio = result.ratio(result.rows[0], "b")
    assert ratio is not None
    assert ratio.most == pytest.approx(2.0)
    result.rows[0].others = [0.0, 0.3, 0.2]
    assert result.cell(result.rows[0], "busy") == "busy"


def test_a_race_is_a_line_and_back() -> None:
    """With every round; what is no such line is named."""
    result = _run()
    line = result.to_json()
    assert "\n" not in line
    assert Race.from_json(line) == result
    for text in ("", "[]", "{}", line.replace('"form": 1', '"form": 9'), '{"form": 1, "rows": [{"x": 1}]}'):
        with pytest.raises(ConfigError, match=r"kept\.json: must be a line that"):
            Race.from_json(text, "kept.json")


BURN = "import time\nuntil = time.process_time() + 0.15\nwhile time.process_time() < until: pass"


def _burn() -> None:
    exec(BURN, {})  # noqa: S102  ours


@pytest.mark.parametrize("kind", ["here", "multiprocessing", "subprocess", "grandchild"])
def test_the_processor_time_of_all_descendants_is_counted(kind: str) -> None:
    """Also of a child that subprocess started, and of its child: a peer may have another interpreter of its own."""

    def work() -> int:
        if kind == "here":
            _burn()
        elif kind == "multiprocessing":
            process = multiprocessing.get_context("fork").Process(target=_burn)
            process.start()
            process.join()
        else:
            inner = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BURN!r}])"
            subprocess.run([sys.executable, "-c", BURN if kind == "subprocess" else inner], check=True)
        return 1

    result = Race("some", "images")
    race(result, [Contestant("a", opened(lambda: Called(work)))], rounds=1)
    assert result.rows[0].cpu_us[0] >= 0.12e6


def test_the_time_of_a_server_is_counted_apart() -> None:
    """Though it is a child of this process, as a broker is."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as server:
        try:
            result = Race("some", "images")
            sleeping = Contestant("a", opened(lambda: Called(lambda: len([time.sleep(0.5)]))))  # type: ignore[func-returns-value]
            race(result, [sleeping], rounds=1, server=server.pid)
        finally:
            server.kill()
    assert result.rows[0].server_us[0] > result.rows[0].cpu_us[0]


HOSTILE = "</title><script>alert(1)</script>\"'"
SAME = {"machine": "m", "cpus": 2, "data": HOSTILE, "batch": 64}


def a_row(who: str, role: str, rates: list[float], **more: object) -> Turnout:
    """With nothing but rates."""
    none = [0.0] * len(rates)
    row = Turnout("", who, role, rates=rates, cpu_us=none, server_us=none, others=none)
    row.extra |= more  # type: ignore[arg-type]
    return row


def a_race(ours: list[float], **about: object) -> Race:
    """Ours beside a ceiling."""
    verdict = {"verdict": "decode-bound", "advice": "more threads; fewer images"}
    rows = [a_row("tar", "ours", ours, **verdict), a_row("ceiling", "top", [100.0, 101.0, 102.0])]
    missing, shown = {"mosaic": HOSTILE}, ["who", "images/s", "of ceiling"]
    return Race("loader", "images", shown, SAME | about, rows, missing, [f"tar is fast {HOSTILE}", "and so on"])


def test_a_page_escapes_every_text_and_asks_for_nothing() -> None:
    """One file: no script, no address; names, reasons and sentences of data are text."""
    text = page(a_race([90.0, 91.0, 92.0]))
    assert "<script" not in text
    assert text.count("&lt;script&gt;") >= 4
    assert not re.search(r"href=|src=|url\(|https?:", text)
    assert "default-src 'none'" in text
    assert text.count("<html") == text.count("</html>") == 1
    places = [text.index(each) for each in ('class="answer"', "ceiling <", "tar <", "decode-bound", "mosaic")]
    assert places == sorted(places)  # the answer, the bars with the fastest first, the advice, who is missing


def test_what_every_round_lost_is_lost() -> None:
    """Below every round of before, by more than 3 %; what overlaps is noise, and runs that differ are not judged."""
    before = a_race([90.0, 91.0, 92.0])
    lost, why = losses(before, a_race([80.0, 81.0, 82.0]))
    assert list(lost) == ["tar of ceiling"]
    assert "11% lost" in lost["tar of ceiling"]
    assert why == ""
    for today in ([80.0, 91.0, 82.0], [88.5, 89.0, 90.0], [95.0, 96.0, 97.0]):
        assert losses(before, a_race(today)) == ({}, "")
    assert "the runs differ in machine" in losses(before, a_race([1.0, 1.0, 1.0], machine="other"))[1]
    assert "3 rounds or more, and found 2" in losses(before, a_race([1.0, 1.0]))[1]
    gone = a_race([90.0, 91.0, 92.0])
    gone.rows = gone.rows[1:]
    assert "not measured today" in losses(before, gone)[0]["tar of ceiling"]


def test_runs_beside_each_other_show_all_and_say_lost(tmp_path: Path) -> None:
    """`bench report A B` exits with 1 where something is lost; the page has a bar of each run for each contestant."""
    for name, rates in (("a.json", [90.0, 91.0, 92.0]), ("b.json", [80.0, 81.0, 82.0])):
        kept(a_race(rates), tmp_path / name)
    files = [str(tmp_path / name) for name in ("a.json", "b.json")]
    done = CliRunner().invoke(app, ["bench", "report", *files, "--out", str(tmp_path / "both.html")])
    assert done.exit_code == 1
    assert "LOST b.json: tar of ceiling" in done.stdout
    text = (tmp_path / "both.html").read_text()
    assert text.count('class="row"') == 4
    assert "LOST" in text
    done = CliRunner().invoke(app, ["bench", "report", files[0], files[0]])
    assert (done.exit_code, "nothing is lost" in done.stdout) == (0, True)


def test_a_headline_says_no_more_than_its_table() -> None:
    """Where turns of ours and of the ceiling overlap, decoding is not called the limit without a word of chance."""
    result = Race(
        "loader", "images", rows=[a_row("tar", "ours", [134.0, 90.0]), a_row("ceiling", "top", [100.0, 101.0])]
    )
    assert result.chance(result.rows[0], "of ceiling")
    (limit,) = [each for each in loading.findings(result) if "of the ceiling" in each]
    assert "may be chance" in limit
