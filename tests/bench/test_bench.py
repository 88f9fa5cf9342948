"""Every benchmark runs at toy size, so that none of them rots. No time is looked at."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from toy_runs import PEERS, QUICK, TOY, Run, cache, not_measured, rows, run, toy, toy_photos

from dali_feed.external_sources import ShardSet

__all__ = ["cache", "run", "toy"]

SHOWN = ("torch", "spdl", "dali-reader")  # of the other loaders; tests/bench/test_peers.py has all

pytestmark = [pytest.mark.slow, pytest.mark.whole_machine]


def test_the_loader_is_measured_beside_the_ceiling_the_loop_and_peers(
    run: Run, toy: tuple[object, ...], tmp_path: Path
) -> None:
    """bench_loader gives a row per contestant that says where and with what it was made; ceiling and loops are 1."""
    said = run("bench_loader.py", *toy, *QUICK, "--sources", "tar", "--peers", *SHOWN)
    missing = not_measured(said)
    assert missing.pop("kafka") == "not asked for"
    assert set(missing) <= {"spdl"}
    made = rows(tmp_path, "loader")
    found = {(row["engine"], row["who"]): row for row in made}
    assert len(found) == len(made)  # of a peer's ways there is one
    ours = {(engine, who) for engine in ("host", "dali") for who in ("tar", "ceiling")}
    ours |= {("host", "loop"), ("host", "loop-read")}
    assert set(found) == ours | {("host", who) for who in PEERS | ({"spdl"} - set(missing))}
    assert {found[engine, "ceiling"]["of ceiling"] for engine in ("host", "dali")} == {"1.000"}
    assert found["host", "loop"]["of loop"] == found["host", "loop-read"]["of loop-read"] == "1.000"
    for (engine, who), row in found.items():
        assert int(row["img/s"]) > 0
        assert float(row["of ceiling"]) > 0
        assert bool(row["of loop"]) == bool(row["of loop-read"]) == (engine == "host")
        assert bool(row["way"]) == (who in {"spdl", *PEERS})
        named = ("machine", "cpus", "commit", "dali", "torch", "librdkafka", "image", "batch", "threads", "date")
        assert all(row[name] for name in named), row
    assert float(found["dali", "tar"]["feed us"]) > float(found["dali", "tar"]["own us"]) > 0
    assert float(found["host", "tar"]["feed us"]) > 0


@pytest.mark.long
def test_a_missing_spdl_is_said_and_not_hidden(
    run: Run, toy: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without SPDL there is no row for it, the reason is printed, and the other peers are measured."""
    (tmp_path / "path" / "spdl").mkdir(parents=True)
    (tmp_path / "path" / "spdl" / "__init__.py").touch()  # found before any other, and has nothing in it
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"), prepend=os.pathsep)
    said = run("bench_loader.py", *toy, *QUICK, "--sources", "tar", "--engines", "dali", "--peers", *SHOWN)
    assert "spdl" in not_measured(said)["spdl"]
    assert {row["who"] for row in rows(tmp_path, "loader")} == {"tar", "ceiling"} | PEERS


def test_the_photographs_are_the_same_in_shards_and_files(cache: Path) -> None:
    """Each image is once in the shards and once a file, and made again it is the same."""
    made = toy_photos(cache)
    files = sorted(made.files.glob("*/*.jpg"))
    snapshot = ShardSet(made.shards).snapshot()
    assert len(snapshot) == len(files) == TOY
    assert len(ShardSet(made.linked).snapshot()) == 12 * TOY
    assert snapshot.record_bytes == made.mean_bytes == round(sum(path.stat().st_size for path in files) / TOY)
    with tempfile.TemporaryDirectory() as other:
        again = toy_photos(Path(other))
        assert list(again.records()) == list(made.records())
