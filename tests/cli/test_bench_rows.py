"""`dali-feed bench ...`: the rows that each command has, and what it advises."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from kit.bench_command import COMMANDS, SHORT, SMALL, folder, run

from dali_feed.bench.report import read
from dali_feed.cli import bench

__all__ = ["folder"]  # a fixture


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_a_row_for_everybody(command: str, folder: Path, tmp_path: Path) -> None:
    """Kept as a line, as rows and as a page; each says where it was made; copies of the images are gone."""
    options, expected = COMMANDS[command]
    outs = [tmp_path / f"kept.{kind}" for kind in ("json", "csv", "html")]
    small = SMALL if command == "resume" else SHORT
    done = run(command, folder, *small, *options, *(each for out in outs for each in ("--out", out)))
    assert done.exit_code == 0, done.output
    result = read(outs[0])
    assert (result.kind, [row.who for row in result.rows], result.missing) == (command, expected, {})
    assert all(rate > 0 for row in result.rows for rate in row.rates)
    assert {str(result.about[name]) for name in ("images", "batch", "device")} == {"6", "2", "cpu"}
    assert result.about["machine"]
    assert str(folder) in result.about["data"]
    with outs[1].open(newline="") as file:
        assert [row["who"] for row in csv.DictReader(file)] == expected
    assert outs[2].read_text().count("<html") == 1
    assert list((tmp_path / "cache" / "dali_feed" / "bench").iterdir()) == []
    ours = [row for row in result.rows if row.role == "ours"]
    assert command not in {"loader", "train"} or all("verdict" in row.extra for row in ours)


def test_a_loader_of_ones_own_is_a_contestant(folder: Path, tmp_path: Path) -> None:
    """By a function that gets the job; its batches are tensors, tuples or dicts, begun again at their end; closed."""
    out = tmp_path / "kept.json"
    beside = f"{tmp_path / 'beside.py'}:mine"
    done = run("loader", folder, *SHORT, "--no-peers", "--crop", "16", "--beside", beside, "--out", out)
    assert done.exit_code == 0, done.output
    assert [(row.who, row.role) for row in read(out).rows][-1] == ("mine", "peer")
    assert (tmp_path / "beside.closed").exists()


@pytest.mark.parametrize("command", ["loader", "train"])
def test_a_quick_run_begins_no_turn_when_its_time_is_up(
    command: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever had none is named with the reason; where nobody had one the exit code is 1, and the page says why."""
    monkeypatch.setattr(bench, "QUICK_LIMIT", 0.0)
    out, page = tmp_path / "kept.json", tmp_path / "kept.html"
    outs = ("--out", out, "--out", page)
    done = run(command, folder, "--batch", 2, "--device", "cpu", "--no-peers", "--quick", *outs)
    assert done.exit_code == 1, done.output
    assert "Nothing was measured; there was no time for its turn; leave --quick out" in page.read_text()
    result = read(out)
    assert result.rows == []
    assert list(result.missing) == COMMANDS[command][1]
    assert all("--quick" in reason for reason in result.missing.values())


def test_a_topic_is_read_alone_and_as_tensors(tmp_path: Path) -> None:
    """On the mock broker, of photographs that are made."""
    pytest.importorskip("skimage")
    out = tmp_path / "kept.json"
    done = run("kafka", "--images", 16, *SHORT, "--no-peers", "--out", out)
    assert done.exit_code == 0, done.output
    result = read(out)
    assert [row.who for row in result.rows] == ["plain", "in order", "at random", "kafka"]
    assert all(row.extra["bytes"] for row in result.rows[:3])


def test_storage_is_a_row_for_each_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No place is read twice, no more than was asked for; and a sentence that advises."""
    monkeypatch.setattr(bench, "QUICK_SECONDS", 60.0)  # a turn ends where all places have been read
    (tmp_path / "file").write_bytes(bytes(1 << 20))
    out = tmp_path / "kept.json"
    asked = ["--quick", "--block", "64KiB", "--size", "512KiB", "--threads", 2, "--out", out]
    done = run("storage", tmp_path / "file", *asked)
    assert done.exit_code == 0, done.output
    result = read(out)
    names = [f"{mode}, {pattern}, 65,536 B x2" for mode in ("cold", "warm") for pattern in ("random", "sequential")]
    assert [row.who for row in result.rows] == names
    assert all(row.extra["reads"] == [8.0] for row in result.rows)
    assert "Tuning(readers=2)" in done.stdout
