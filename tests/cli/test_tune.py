"""`dali-feed tune`: a line to paste, found in turns over one's own data."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from dali_feed.cli.app import app
from dali_feed.testing.shards import write_shard


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    """Some small pictures."""
    Image.new("RGB", (64, 48), (9, 90, 40)).save(tmp_path / "one.jpg")
    write_shard(tmp_path / "x.tar", [((tmp_path / "one.jpg").read_bytes(), n) for n in range(32)])
    return tmp_path / "x.tar"


def test_the_line_to_paste_is_a_tuning(shard: Path) -> None:
    """Of threads, readers and prefetch, with its rate beside the usual one; each of them had turns."""
    done = CliRunner().invoke(app, ["tune", str(shard), "--batch", "4", "--device", "cpu", "--seconds", "4"])
    assert done.exit_code == 0, done.output
    assert re.fullmatch(r"Tuning\([^)]*\)  # [\d,]+ samples/s; Tuning\(\) gives [\d,]+\n", done.stdout)
    assert "Tuning(" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["--cpus", "4096"], "--cpus: must be at most"), (["--transform", "gone.py:x"], "must name a file that exists")],
)
def test_what_cannot_be_is_named(shard: Path, arguments: list[str], says: str) -> None:
    """In one line."""
    done = CliRunner().invoke(app, ["tune", str(shard), *arguments])
    assert done.exit_code == 1
    assert says in " ".join(done.stderr.split())
