"""Benchmarks of Kafka at toy size, and a training process that is killed again and again. No time is looked at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from kit.broker import real
from kit.broker.handle import Kafka
from toy_runs import QUICK, TOY, Run, cache, rows, run, toy, toy_photos
from typer.testing import CliRunner

from dali_feed.cli.app import app
from dali_feed.external_sources import KafkaTopic
from dali_feed.testing import publish

__all__ = ["cache", "run", "toy"]

pytestmark = [pytest.mark.slow, pytest.mark.whole_machine]


def test_kafka_is_measured_beside_a_plain_read(
    run: Run, toy: tuple[object, ...], real_broker: real.Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """bench_kafka reads every byte of a topic on Apache Kafka in each of its ways, in C too; bench_loader reads it."""
    monkeypatch.setenv("KAFKA_BOOTSTRAP", real_broker.servers)
    run("bench_kafka.py", "--mb", 2, "--repeats", 1, "--payload-kb", 16, "--results", tmp_path)
    found = {row["who"]: row for row in rows(tmp_path, "kafka")}
    ours = {f"{name} x{n}" for name in ("straight", "extents") for n in (1, 2)}
    in_c = {f"C {name} x{n}" for name in ("in order", "extents") for n in (1, 2)}
    assert set(found) == {"plain", "C straight"} | in_c | ours
    assert float(found["plain"]["of plain"]) == 1
    assert all(float(found[name][column]) > 0 for name in ours for column in ("of C", "cpu of C"))
    run("bench_loader.py", *toy, *QUICK, "--sources", "kafka", "--no-peers")
    assert {row["who"] for row in rows(tmp_path, "loader")} == {"kafka", "ceiling", "loop", "loop-read"}


def asked_quickly(target: str, folder: Path) -> dict[str, Any]:
    """What `dali-feed bench kafka --quick` finds there, a few photos in small batches."""
    few = ["--images", "24", "--batch", "4", "--repeats", "1", "--device", "cpu", "--data", str(folder)]
    done = CliRunner().invoke(app, ["bench", "kafka", target, "--quick", "--json", "--no-peers", *few])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["missing"] == {}
    assert [row["who"] for row in found["rows"]] == ["plain", "in order", "at random", "tensors"]
    assert all(row["records/s"] > 0 and row["MB/s"] > 0 for row in found["rows"])
    assert {row["way"] for row in found["rows"]} == {"", "x2"}
    return found


def test_the_command_makes_a_topic_on_a_broker_and_deletes_it(real_kafka: Kafka, cache: Path) -> None:
    """`bench kafka kafka://host:port --quick` on Apache Kafka: rows of all four, and the broker is as it was."""
    admin = AdminClient({"bootstrap.servers": real_kafka.servers})
    before = set(admin.list_topics(timeout=10).topics)
    found = asked_quickly(f"kafka://{real_kafka.servers}", cache)
    assert found["about"]["broker"] == real_kafka.servers
    assert found["about"]["images"] == TOY
    assert set(admin.list_topics(timeout=10).topics) - before <= {"__consumer_offsets"}  # made for any consumer


def test_the_command_only_reads_a_topic_that_is_named(real_kafka: Kafka, cache: Path) -> None:
    """Nothing is added to it, it stays, and nobody's position is kept on the broker."""
    records = list(toy_photos(cache).records())
    real_kafka.create(real_kafka.topic, 2)
    publish(real_kafka.servers, real_kafka.topic, records)
    admin = AdminClient({"bootstrap.servers": real_kafka.servers})
    groups = {group.group_id for group in admin.list_consumer_groups().result().valid}
    found = asked_quickly(f"kafka://{real_kafka.servers}/{real_kafka.topic}", cache)
    assert found["about"]["data"] == f"the topic {real_kafka.topic}"
    assert len(KafkaTopic(real_kafka.topic, real_kafka.servers).snapshot()) == len(records)
    assert {group.group_id for group in admin.list_consumer_groups().result().valid} <= groups


def test_producing_is_measured_beside_c(
    run: Run, real_broker: real.Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """bench_produce delivers every record in each of its ways; chaos_produce kills a run of each kind and finds all."""
    monkeypatch.setenv("KAFKA_BOOTSTRAP", real_broker.servers)
    run("bench_produce.py", "--mb", 1, "--repeats", 1, "--payload-kb", 16, "--results", tmp_path)
    found = {row["who"]: row for row in rows(tmp_path, "produce")}
    assert set(found) == {"C", "ours", "transactions"}
    assert all(float(row["of C"]) > 0 for row in found.values())
    run("chaos_produce.py", "--kills", 1, "--records", 60, "--results", tmp_path)
    kinds = {row["run"]: row for row in rows(tmp_path, "chaos_produce")}
    assert [(kinds[k]["kills"], kinds[k]["lost"], kinds[k]["disordered"]) for k in ("journal", "transactions")] == [
        ("1", "0", "0")
    ] * 2
    assert kinds["transactions"]["repeated"] == "0"


@pytest.mark.long
def test_readers_that_adapt_are_measured_beside_pinned_ones(
    run: Run, real_broker: real.Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """bench_adapting gives a row per number of readers, and one for "auto"."""
    monkeypatch.setenv("KAFKA_BOOTSTRAP", real_broker.servers)
    quick = ("--mb", 8, "--seconds", 0.4, "--repeats", 1, "--cases", "near", "far")
    said = run("bench_adapting.py", *quick, "--results", tmp_path)
    assert "far: NOT MEASURED" in said
    assert [row["readers"] for row in rows(tmp_path, "adapting")] == ["1", "2", "4", "auto"]


@pytest.mark.parametrize(
    ("records", "kills", "of_broker"), [(150, 1, 0), pytest.param(300, 2, 1, marks=pytest.mark.long)]
)
def test_nobody_can_tell_a_killed_run(
    run: Run, real_broker: real.Cluster, tmp_path: Path, records: int, kills: int, of_broker: int
) -> None:
    """chaos: a process killed once or twice, and a broker killed once, deliver what the undisturbed run delivers."""
    del real_broker  # it says whether there can be one; chaos kills its own
    run("chaos.py", "--records", records, "--kills", kills, "--broker-kills", of_broker, "--results", tmp_path)
    faults = {"process": kills, "broker": of_broker}
    found = {row["fault"]: row for row in rows(tmp_path, "chaos")}
    assert set(found) == {"none"} | {f"kill -9 of the {name}" for name, count in faults.items() if count}
    for name, count in faults.items():
        if count:
            row = found[f"kill -9 of the {name}"]
            told = [row[key] for key in ("faults", "recovered", "lost", "repeated", "different")]
            assert told == [str(count), str(count), "0", "0", "0"]


def test_a_missing_broker_is_said_and_not_hidden(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Java there is no row for Kafka, and the reason is printed."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("KAFKA_BOOTSTRAP", raising=False)
    assert "NOT MEASURED: no `java`" in run("bench_kafka.py", "--results", tmp_path)
    assert not (tmp_path / "kafka.csv").exists()
