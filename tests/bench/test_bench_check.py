"""bench_check tells a loss from noise, on outcomes that are made up. Nothing is measured."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from toy_runs import BENCH

SCRIPT = BENCH / "bench_check.py"
ABOUT = {"machine": "a CPU", "cpus": 2, "batch": 64, "commit": "abc", "repeats": 5}
Ends = tuple[float, float, float]
Check = Callable[..., tuple[int, str]]  # the script's arguments; its exit code and all that it says


def outcome(folder: Path, tar: Ends | None, name: str = "today", about: dict[str, object] | None = None) -> Path:
    """A file as `dali-feed bench loader --json` gives it: tar beside the ceiling by (median, least, most)."""
    names = ("of ceiling", "of ceiling, least", "of ceiling, most")
    row: dict[str, Any] = {"who": "tar", "of loop": None, **dict(zip(names, tar or (), strict=bool(tar)))}
    beside = {"who": "folder", **dict(zip(names, (0.9, 0.88, 0.92), strict=True))}
    rows = [row, beside, {"who": "ceiling", "of ceiling": 1.0}]
    found = {"kind": "loader", "about": ABOUT | (about or {}), "rows": rows, "missing": {"torch": "not asked for"}}
    path = folder / f"{name}.json"
    path.write_text(json.dumps(found))
    return path


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Check:
    """The script, in this process: it imports nothing that costs time."""
    spec = importlib.util.spec_from_file_location("bench_check", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)

    def said(*arguments: object) -> tuple[int, str]:
        ended = module.main([str(each) for each in arguments])
        told = capsys.readouterr()
        return ended, told.out + told.err

    return said


@pytest.fixture
def baseline(check: Check, tmp_path: Path) -> Path:
    """Written by the script: 0.95 of the ceiling, 0.93 to 0.97 in the rounds."""
    path = tmp_path / "baseline.json"
    made = outcome(tmp_path, (0.95, 0.93, 0.97), "before")
    ended, said = check("--write", "--baseline", path, "--outcome", made)
    assert (ended, said.partition(" to ")[0]) == (0, "bench-check: wrote 2 ratios of 5 rounds")
    assert json.loads(path.read_text())["ratios"]["tar of ceiling"] == {"median": 0.95, "least": 0.93, "most": 0.97}
    return path


@pytest.mark.parametrize(
    ("tar", "code"),
    [
        ((0.95, 0.93, 0.97), 0),  # the same
        ((1.10, 1.05, 1.12), 0),  # a gain
        ((0.91, 0.80, 0.94), 0),  # its best round is as good as a round of the baseline
        ((0.925, 0.92, 0.929), 0),  # all rounds below, and less than 3 % lost
        ((0.90, 0.88, 0.929), 1),
        ((0.50, 0.40, 0.60), 1),
        (None, 1),  # not measured any more
    ],
)
def test_a_loss_is_beyond_every_round_and_three_percent(
    check: Check, baseline: Path, tmp_path: Path, tar: Ends | None, code: int
) -> None:
    """Lost is what has all of today's rounds below all of the baseline's and a median 3 % lower, or is gone."""
    ended, said = check("--baseline", baseline, "--outcome", outcome(tmp_path, tar))
    assert ended == code, said
    assert ("LOST beyond the noise\n  tar of ceiling: " in said) == (code == 1)
    assert ("What to do: " in said) == (code == 1)


@pytest.mark.parametrize(
    ("about", "says"),
    [
        ({"machine": "another"}, "machine: 'another', in the baseline 'a CPU'"),
        ({"batch": 32}, "batch: 32, in the baseline 64"),
        ({"repeats": 2}, "rounds: 2, and 3 are needed"),
    ],
)
def test_what_cannot_be_compared_is_not(
    check: Check, baseline: Path, tmp_path: Path, about: dict[str, object], says: str
) -> None:
    """Another machine, another batch or too few rounds end with 2 and the differences, though all seems lost."""
    ended, said = check("--baseline", baseline, "--outcome", outcome(tmp_path, (0.5, 0.4, 0.6), about=about))
    assert ended == 2
    assert says in said


@pytest.mark.parametrize(
    ("content", "says"),
    [(None, "cannot be read (No such file or directory); make it"), ("{}", "is no baseline (KeyError: 'about')")],
)
def test_a_baseline_that_is_none_is_said(check: Check, tmp_path: Path, content: str | None, says: str) -> None:
    """A missing or broken file ends with 2, a line and the command that makes it."""
    path = tmp_path / "none.json"
    if content is not None:
        path.write_text(content)
    ended, said = check("--baseline", path, "--outcome", outcome(tmp_path, (0.9, 0.9, 0.9)))
    assert ended == 2
    assert says in said
    assert "make bench-check WRITE=1" in said
    assert "Traceback" not in said
