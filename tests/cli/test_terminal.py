"""How commands go on: a bar on a terminal, plain lines elsewhere, and what was found in the end."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.text import Text

from dali_feed.cli import run_view
from dali_feed.cli.bench import listening
from dali_feed.cli.looks import looking
from dali_feed.cli.run_view import SoFar
from dali_feed.cli.set_view import reading
from dali_feed.packing import pack
from dali_feed.testing import ScriptedSource


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
    """It shows records that are done, those of an earlier run among them, and MB/s."""
    with on_screen() as screen, run_view.progress() as tell:
        tell(SoFar(total=200, begun=50, done=50, size=0, seconds=0.0))
        tell(SoFar(total=200, begun=50, done=150, size=3_000_000, seconds=2.0))
    assert "150/200" in screen.seen
    assert "1.5 MB/s" in screen.seen


def test_a_run_is_a_line_now_and_then_elsewhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says how much is done, how fast, and how long the rest takes at that pace."""
    monkeypatch.setattr(run_view, "LINE_SECONDS", -1.0)
    with run_view.progress() as tell:
        tell(SoFar(total=1200, begun=200, done=200, size=0, seconds=1.0))
        tell(SoFar(total=1200, begun=200, done=700, size=4_000_000, seconds=4.0))
    nothing, half = capsys.readouterr().err.splitlines()
    assert nothing == "200 of 1,200 records, 0.0 MB/s, nothing yet"
    assert half == "700 of 1,200 records, 1.0 MB/s, 4 s left"


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


def test_reading_a_set_is_a_bar_of_its_bytes(tmp_path: Path) -> None:
    """The whole is what its manifest says, and it fills as bytes are told."""
    made = pack(ScriptedSource([(b"x" * 3000, n) for n in range(4)]), tmp_path / "set")
    size = sum(path.stat().st_size for path in (tmp_path / "set").rglob("*.tar"))
    with on_screen() as screen, reading(str(made.path)) as tell:
        tell(size)
    assert f"{size / 1000:.1f}/{size / 1000:.1f} kB" in screen.seen


def test_what_is_watched_stays_in_its_place_on_a_terminal() -> None:
    """Each look is drawn over the one before; a line for each is for what is no terminal."""

    def told(look: str) -> dict[str, str]:
        return {"look": look}

    with on_screen() as screen, looking(Text, told, as_json=False, live=True) as show:
        show("first look")
        show("second look")
    assert "first look" in screen.seen
    assert "\x1b[2K" in screen.getvalue()  # the line is emptied first
