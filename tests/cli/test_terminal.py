"""How commands go on: a bar on a terminal, plain lines elsewhere, and what was found in the end."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from dali_feed.cli import view
from dali_feed.cli.bench import listening
from dali_feed.cli.view import Report, live, plain, progress, show, table
from dali_feed.records.tally import Tally


class Screen(io.StringIO):
    """A terminal that keeps what is written on it."""

    def isatty(self) -> bool:
        """It is one."""
        return True

    @property
    def seen(self) -> str:
        """Without the codes that move the cursor and colour it."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.getvalue())


@contextmanager
def on_screen() -> Iterator[Screen]:
    """Stdout and stderr, on one terminal."""
    made = Screen()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TERM", "xterm")
        patch.setenv("COLUMNS", "120")
        for name in ("NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "FORCE_COLOR"):
            patch.delenv(name, raising=False)
        patch.setattr(sys, "stderr", made)
        patch.setattr(sys, "stdout", made)
        yield made


def test_a_run_is_a_bar_on_a_terminal() -> None:
    """It shows records that are done, those of an earlier run among them, and how fast it is."""
    with on_screen() as screen, progress() as tell:
        tell(50, 200, "0.0 MB/s")
        tell(150, 200, "1.5 MB/s")
    assert "150/200" in screen.seen
    assert "1.5 MB/s" in screen.seen


def test_a_bar_of_bytes_counts_bytes() -> None:
    """Of a set that is read again."""
    with on_screen() as screen, progress(3_000_000, "bytes") as tell:
        tell(1_500_000)
    assert "1.5/3.0 MB" in screen.seen


def test_a_run_is_a_line_now_and_then_elsewhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says how much is done, how fast, and how long the rest takes at that pace."""
    monkeypatch.setattr(view, "LINE_SECONDS", -1.0)
    clock = iter((0.0, 1.0, 5.0))
    monkeypatch.setattr("dali_feed.cli.view.time.monotonic", lambda: next(clock))
    with progress() as tell:
        tell(200, 1200, "0.0 MB/s")
        tell(700, 1200, "1.0 MB/s")
    nothing, half = capsys.readouterr().err.splitlines()
    assert nothing == "200 of 1,200 records, 0.0 MB/s, nothing yet"
    assert half == "700 of 1,200 records, 1.0 MB/s, 5 s left"


def test_a_report_is_printed_in_its_order_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Title, facts, tables without empty columns and with the number of rows that are left out, notes; or its data."""
    tally = Tally()
    for n in range(5):
        tally.fail(f"number {n} is odd", f"s#{n}")
    rows = table(range(5), {"n": str, "empty": lambda _: "", "name": lambda n: f"row {n}"}, left=["name"], most=2)
    report = Report("title", [("fact", "one"), ("", "two")], [rows], data={"n": 5})
    assert report.fail(tally) == 5
    report.warn(["hot"])
    show(report)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        *("title", "fact one", "two", "n name", "0 row 0", "1 row 1", "... and 3 more"),
        *("5 records: number N is odd", "s#0: number 0 is odd", "s#1: number 1 is odd", "s#2: number 2 is odd"),
        *("... and 2 more", "warning hot"),
    ]
    show(report, as_json=True)
    assert capsys.readouterr().out == '{"n": 5}\n'


def test_a_terminal_obeys_nothing_that_data_says(capsys: pytest.CaptureFixture[str]) -> None:
    """Names, reasons and cells are text: control characters are blanks, markup is shown."""
    odd = "\x1b]0;owned\x07[red]a\nb\x9b2J"
    show(Report(odd, [("x", odd)], [table([odd], {"c": str}, left=["c"])], [(odd, "red")]))
    out = capsys.readouterr().out
    assert out.count("[red]a b") == 4
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", out)
    assert plain(odd) == " ]0;owned [red]a b 2J"


def test_a_bench_is_a_bar_on_a_terminal() -> None:
    """Each turn leaves a line; whoever fails leaves the reason."""
    with on_screen() as screen, listening() as listener:
        listener.begins("tar", "host", 0, 2)
        listener.took("tar", "host", 250.0)
        listener.begins("torch", "", 1, 2)
        listener.failed("torch", "", "no [files]")
    assert "tar (host): 250/s" in screen.seen
    assert "torch: FAILED: no [files]" in screen.seen


def test_a_failed_turn_of_a_bench_is_a_line_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    """With its place among the turns."""
    with listening() as listener:
        listener.begins("torch", "pil", 1, 4)
        listener.failed("torch", "pil", "no files")
    assert capsys.readouterr().err == "2/4 torch (pil): FAILED: no files\n"


def test_what_is_watched_stays_in_its_place_on_a_terminal() -> None:
    """Each look is drawn over the one before; a line for each is for what is no terminal."""
    with on_screen() as screen, live() as show:
        show(Report("first look"))
        show(Report("second look"))
    assert "first look" in screen.seen
    assert "\x1b[2K" in screen.getvalue()  # the line is emptied first
