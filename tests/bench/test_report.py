"""Pages and comparisons of races that are written down."""

from __future__ import annotations

import re
from pathlib import Path

from typer.testing import CliRunner

from dali_feed.bench.report import kept, losses, page
from dali_feed.bench.runner import Race, Turnout
from dali_feed.cli.app import app

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
