"""Every benchmark runs at toy size, so that none of them rots. No time is looked at."""

from __future__ import annotations

import csv
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from broker import real

from dali_feed.external_sources import ShardSet

BENCH = Path(__file__).parents[2] / "bench"
TOY = 24
PEERS = {"torch", "dali-reader"}  # and spdl, where its package and FFmpeg's libraries are
QUICK = ("--batches", 4, "--seconds", 0.1, "--repeats", 1)


def run(script: str, *args: object) -> str:
    """What a benchmark prints, run as a person runs it; it must end with 0."""
    command = [sys.executable, str(BENCH / script), *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def not_measured(said: str) -> dict[str, str]:
    """Who a benchmark says was not measured, and why."""
    lines = (line.partition(": NOT MEASURED: ") for line in said.splitlines())
    return {who: why for who, found, why in lines if found}


def rows(results: Path, name: str) -> list[dict[str, str]]:
    """What a benchmark added to its table, by column."""
    with (results / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def toy_photos(cache: Path) -> Any:
    """What bench/_photos.py makes, which is no package that could be imported."""
    spec = importlib.util.spec_from_file_location("bench_photos", BENCH / "_photos.py")
    assert spec is not None
    assert spec.loader is not None
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.photos(TOY, cache=cache)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the toy photographs."""
    folder = tmp_path_factory.mktemp("photos")
    toy_photos(folder)
    return folder


@pytest.fixture
def toy(cache: Path, tmp_path: Path) -> tuple[object, ...]:
    """Arguments that every benchmark of the loader takes."""
    return "--photos", TOY, "--data", cache, "--results", tmp_path


def test_the_loader_is_measured_beside_the_ceiling_the_loop_and_peers(toy: tuple[object, ...], tmp_path: Path) -> None:
    """bench_loader gives a row per contestant that says where and with what it was made; ceiling and loop are 1."""
    said = run("bench_loader.py", *toy, *QUICK, "--sources", "tar")
    missing = not_measured(said)
    assert missing.pop("kafka") == "not asked for"
    assert set(missing) <= {"spdl"}
    made = rows(tmp_path, "loader")
    found = {(row["engine"], row["who"]): row for row in made}
    assert len(found) == len(made)  # of a peer's ways there is one
    ours = {(engine, who) for engine in ("host", "dali") for who in ("tar", "ceiling")} | {("host", "loop")}
    assert set(found) == ours | {("host", who) for who in PEERS | ({"spdl"} - set(missing))}
    assert {found[engine, "ceiling"]["of ceiling"] for engine in ("host", "dali")} == {"1.000"}
    assert found["host", "loop"]["of loop"] == "1.000"
    for (engine, who), row in found.items():
        assert int(row["img/s"]) > 0
        assert float(row["of ceiling"]) > 0
        assert bool(row["of loop"]) == (engine == "host")
        assert bool(row["way"]) == (who in {"spdl", *PEERS})
        named = ("machine", "cpus", "commit", "dali", "torch", "librdkafka", "image", "batch", "threads", "date")
        assert all(row[name] for name in named), row
    assert float(found["dali", "tar"]["feed us"]) > float(found["dali", "tar"]["own us"]) > 0
    assert float(found["host", "tar"]["feed us"]) > 0


def test_a_missing_spdl_is_said_and_not_hidden(
    toy: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without SPDL there is no row for it, the reason is printed, and the other peers are measured."""
    (tmp_path / "path" / "spdl").mkdir(parents=True)
    (tmp_path / "path" / "spdl" / "__init__.py").touch()  # found before any other, and has nothing in it
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"), prepend=os.pathsep)
    said = run("bench_loader.py", *toy, *QUICK, "--sources", "tar", "--engines", "dali")
    assert "no SPDL" in not_measured(said)["spdl"]
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


def test_training_is_timed_beside_nothing_and_torch(
    toy: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """bench_training gives what each step waited: for us, with both engines and sources, for torch and for nobody."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # on a busy machine the threads of a step wait for each other
    run("bench_training.py", *toy, "--device", "cpu", "--model", "mobilenet_v3_small", "--batch", 2, "--steps", 2,
        "--warm", 1, "--workers", 1)  # fmt: skip
    ours = {f"{engine} {source}" for engine in ("dali", "host") for source in ("tar", "embedded kafka")}
    made = {row["who"]: row for row in rows(tmp_path, "training")}
    assert set(made) == ours | {"none", "torch, 1 workers"}
    assert all(float(row["img/s"]) > 0 for row in made.values())


def test_decoding_is_swept_over_its_settings(toy: tuple[object, ...], tmp_path: Path) -> None:
    """bench_decode gives a row per engine, batch and number of threads."""
    run("bench_decode.py", *toy, "--device", "cpu", "--batches", 2, 4, "--threads", 1, "--seconds", 0.2)
    made = [(row["who"], row["batch"], row["threads"]) for row in rows(tmp_path, "decode")]
    assert made == [("dali", "2", "1"), ("dali", "4", "1"), ("host", "2", "1"), ("host", "4", "1")]
    said = run("plot.py", "--results", tmp_path)
    assert "kernels: no rows" in said
    assert (tmp_path / "decode.png").stat().st_size > 1000


def test_memory_is_told_beside_its_bound(toy: tuple[object, ...], tmp_path: Path) -> None:
    """bench_memory gives the peak above the start, the bound and its parts."""
    run("bench_memory.py", *toy, "--batch", 4, "--mb", 4, "--memory-mb", 32)
    (row,) = rows(tmp_path, "memory")
    assert int(row["peak MB"]) > 0
    assert int(row["bound MB"]) >= 32
    assert int(row["read MB"]) >= 4


def test_the_lock_is_sampled_or_said_not_to_be(toy: tuple[object, ...], tmp_path: Path) -> None:
    """bench_lock gives a row per number of threads; without py-spy, or rights for it, it says why there is none."""
    said = run("bench_lock.py", *toy, "--threads", 1, 2, "--seconds", 1, "--batch", 4)
    if "NOT MEASURED" not in said:
        assert [row["threads"] for row in rows(tmp_path, "lock")] == ["1", "2"]
        assert all(float(row["lock us"]) > 0 for row in rows(tmp_path, "lock"))


def test_reduction_is_measured_beside_exact(tmp_path: Path) -> None:
    """bench_reduction gives a row per transform with both times, what was reduced, and how far the pixels are off."""
    run("bench_reduction.py", "--size", "1200x900", "--repeats", 1, "--draws", 1, "--results", tmp_path)
    for row in rows(tmp_path, "reduction"):
        assert float(row["ratio"]) > 0
        assert sum(map(int, row["at 1, 1/2, 1/4, 1/8"].split())) == 7
        assert float(row["mean"]) < 3


def test_kafka_is_measured_beside_a_plain_read(
    toy: tuple[object, ...], real_broker: real.Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """bench_kafka reads every byte of a topic on Apache Kafka in each of its ways, in C too; bench_loader reads it."""
    monkeypatch.setenv("KAFKA_BOOTSTRAP", real_broker.servers)
    run("bench_kafka.py", "--mb", 2, "--repeats", 1, "--payload-kb", 16, "--results", tmp_path)
    found = {row["who"]: row for row in rows(tmp_path, "kafka")}
    ours = {f"{name} x{n}" for name in ("straight", "extents") for n in (1, 2)}
    assert set(found) == {"plain", "C straight", "C extents x1", "C extents x2"} | ours
    assert float(found["plain"]["of plain"]) == 1
    assert all(float(found[name]["of C"]) > 0 for name in ours)
    run("bench_loader.py", *toy, *QUICK, "--sources", "kafka", "--no-peers")
    assert {row["who"] for row in rows(tmp_path, "loader")} == {"kafka", "ceiling", "loop"}


def test_resuming_and_bad_records_are_measured(toy: tuple[object, ...], tmp_path: Path) -> None:
    """bench_resume tells the time to the first batch by position, and what 1 % bad records leave of the rate."""
    run("bench_resume.py", *toy[2:], "--photos", 120, "--repeats", 1, "--seconds", 0.2, "--sources", "tar")
    assert [row["at"] for row in rows(tmp_path, "resume")] == ["1%", "90%"]
    found = {row["shards"]: int(row["bad found"]) for row in rows(tmp_path, "bad")}
    assert found["whole"] == 0
    assert found["1 % bad"] > 0


def test_damaged_images_cost_their_slots(tmp_path: Path) -> None:
    """fuzz: 1,000 damaged images on each engine are delivered or quarantined, every one; no crash, no hang."""
    run("fuzz.py", "--count", 1000, "--first", 10**6, "--part", 500, "--results", tmp_path)
    for row in rows(tmp_path, "fuzz"):
        assert int(row["delivered"]) + int(row["quarantined"]) == 1000
        assert (row["errors"], row["crashes"], row["hangs"]) == ("0", "0", "0")


def test_nobody_can_tell_a_killed_run(real_broker: real.Cluster, tmp_path: Path) -> None:
    """chaos: a process killed twice and a broker killed once deliver what the undisturbed run delivers."""
    del real_broker  # it says whether there can be one; chaos kills its own
    run("chaos.py", "--records", 300, "--kills", 2, "--broker-kills", 1, "--results", tmp_path)
    found = {row["fault"]: row for row in rows(tmp_path, "chaos")}
    assert set(found) == {"none", "kill -9 of the process", "kill -9 of the broker"}
    for name, count in (("process", "2"), ("broker", "1")):
        row = found[f"kill -9 of the {name}"]
        assert [row[k] for k in ("faults", "recovered", "lost", "repeated", "different")] == [
            count,
            count,
            "0",
            "0",
            "0",
        ]


def test_a_missing_broker_is_said_and_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Java there is no row for Kafka, and the reason is printed."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("KAFKA_BOOTSTRAP", raising=False)
    assert "NOT MEASURED: no `java`" in run("bench_kafka.py", "--results", tmp_path)
    assert not (tmp_path / "kafka.csv").exists()


def test_the_screen_is_measured() -> None:
    """bench_screen prints a line per kind of file."""
    said = run("bench_screen.py", "--batch", 8, "--passes", 1, "--min-kb", 1)
    assert len(said.splitlines()) == 5
