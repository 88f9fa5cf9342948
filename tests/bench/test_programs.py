"""Every program of bench/ runs at toy size, so that none of them rots. No time is looked at."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from kit.warm import Warm

from dali_feed.bench.runner import Race

BENCH = Path(__file__).parents[2] / "bench"
TOY = ("--scale", "0.01", "--rounds", "1", "--seconds", "0.1")
PROGRAMS = {  # program and arguments -> who must have a row
    "storage.py pack": {"pack", "verify", "open", "start", "read", "read unchecked"},
    "storage.py reads": {"plain", "ours"},
    "columns.py arrays features pairs": {"straight", "ours", "windows", "in order", "image alone", "image and mask"},
    "columns.py large rows": {"straight", "preads", "in order, bytes", "ours, bytes", "ours", "in order"},
    "columns.py kafka": {"straight", "plain", "ours", "ours, no label"},
    "topics.py": {"plain", "order x1", "order x2", "random x1", "random x2", "plain producer", "run"},
    "stream.py": {"reader", "loader"},
    "options.py watched cached threads": {"nobody", "endpoint", "no cache", "pixels", "x1"},
    "options.py readers": {"1 readers", "2 readers", "auto readers"},
}

pytestmark = [pytest.mark.slow, pytest.mark.whole_machine]


@pytest.fixture
def run(warm: Warm) -> Callable[..., str]:
    """Runs a program, which must end well, and gives what it printed. The processes that it starts are warm too."""
    return lambda *arguments: _run(warm, *arguments)


def _run(warm: Warm, *arguments: str) -> str:
    done = warm.run(arguments, BENCH.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    if "NOT RUN" in done.stdout:
        pytest.skip(done.stdout)
    return done.stdout


@pytest.mark.long
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_has_its_rows(run: Callable[..., str], program: str, tmp_path: Path) -> None:
    """Everybody who must has one, with every round and where it was made."""
    script, *arguments = program.split()
    run(str(BENCH / script), *arguments, *TOY, "--out", str(tmp_path / "kept.json"))
    races = [Race.from_json(line) for line in (tmp_path / "kept.json").read_text().splitlines()]
    rows = [row for each in races for row in each.rows]
    assert PROGRAMS[program] <= {row.who for row in rows}
    assert all(len(row.rates) == 1 and row.rates[0] > 0 for row in rows)
    assert all(each.about["machine"] and each.about["commit"] for each in races)


EACH_HELP = """
import contextlib, runpy, sys
for script in sys.argv[1:]:
    sys.argv = [script, "--help"]
    with contextlib.suppress(SystemExit):
        runpy.run_path(script, run_name="__main__")
"""


def test_each_program_says_what_it_does(run: Callable[..., str]) -> None:
    """With --help, before anything runs."""
    scripts = sorted(BENCH.glob("[a-z]*.py"))
    said = run("-P", "-c", f"import sys\nsys.path.insert(0, {str(BENCH)!r})\n{EACH_HELP}", *scripts)
    assert [script.name for script in scripts if f"python bench/{script.name}" not in said] == []


@pytest.mark.parametrize(
    ("scene", "kills"),
    [("pack", 1), ("train", 1), *(pytest.param(each, 2, marks=pytest.mark.long) for each in
      ("train", "broker", "stream", "produce", "transactions", "pack"))],
)  # fmt: skip
def test_what_was_killed_goes_on_as_if_nothing_had_been(
    run: Callable[..., str],
    scene: str,
    kills: int,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is lost, repeated, different or out of order; the row says how many faults there were."""
    out = tmp_path / "kept.jsonl"
    if scene not in ("broker", "pack"):  # the one kills a broker of its own, and the other needs none
        monkeypatch.setenv("KAFKA_BOOTSTRAP", request.getfixturevalue("real_broker").servers)
    run(str(BENCH / "chaos.py"), scene, "--kills", str(kills), "--records", "400", "--out", str(out))
    row = json.loads(out.read_text())
    assert (row["faults"], row["recovered"]) == (kills, kills)
    assert not any(row.get(name) for name in ("lost", "repeated", "different", "disordered"))


@pytest.mark.parametrize(
    ("count", "engines"), [(80, ["dali"]), pytest.param(1000, ["host", "dali"], marks=pytest.mark.long)]
)
def test_damaged_images_cost_their_slots(
    run: Callable[..., str], count: int, engines: list[str], tmp_path: Path
) -> None:
    """Each is delivered or quarantined; no crash, no hang."""
    out = tmp_path / "kept.jsonl"
    how = ["--count", str(count), "--first", str(10**6), "--part", "500", "--out", str(out)]
    run(str(BENCH / "fuzz.py"), "--engines", *engines, *how)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["engine"] for row in rows] == engines
    assert all(row["delivered"] + row["quarantined"] == count for row in rows)
    assert not any(row[name] for row in rows for name in ("errors", "crashes", "hangs"))
    assert os.path.getsize(out)
