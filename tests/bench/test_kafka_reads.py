"""What `dali-feed bench kafka` reads is the whole topic, by whoever reads it. No time is looked at."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dali_feed.bench.contract import Data, Job, Topic
from dali_feed.bench.kafka import findings, others
from dali_feed.bench.kafka_reads import Reading, extents_of, plain
from dali_feed.bench.peers.table import KAFKA
from dali_feed.cli.app import app
from dali_feed.errors import SourceError
from dali_feed.external_sources import KafkaTopic
from dali_feed.testing import broker, publish

SIZES = [1 + 7 * n for n in range(90)]


@pytest.fixture(scope="module")
def topic() -> Iterator[Topic]:
    """Ninety records of different sizes in three partitions, and a partition without any."""
    with broker() as running:
        running.create("sized", 4)
        records = [(bytes(size), n) for n, size in enumerate(SIZES)]
        publish(running.servers, "sized", records)
        yield Topic("sized", running.servers)


def test_a_plain_pass_is_the_whole_topic(topic: Topic) -> None:
    """Each record once, as many bytes as were published, and no wait for more than there are."""
    found = list(plain(topic, count=len(SIZES)))
    assert tuple(map(sum, zip(*found, strict=True))) == (len(SIZES), sum(SIZES))


def test_plain_reading_begins_anew_at_the_end(topic: Topic) -> None:
    """Without a number of records it gives more than the topic holds."""
    sizes = plain(topic)
    seen = itertools.accumulate(records for records, _ in sizes)
    assert next(count for count in seen if count > 2 * len(SIZES))
    sizes.close()


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("readers", [1, 2])
def test_readers_share_the_whole_topic(topic: Topic, readers: int, *, shuffled: bool) -> None:
    """Whoever of them reads an extent, all of it is read once."""
    source = KafkaTopic(topic.name, topic.servers)
    with Reading(source, extents_of(source, shuffled=shuffled), readers) as sizes:
        found = list(sizes)
    assert tuple(map(sum, zip(*found, strict=True))) == (len(SIZES), sum(SIZES))


def test_what_a_reader_raises_is_raised(topic: Topic) -> None:
    """In the thread that waits for it, which would wait for ever else."""
    extents = extents_of(KafkaTopic(topic.name, topic.servers), shuffled=False)
    with Reading(KafkaTopic("gone", topic.servers, timeout=1), extents, 2) as sizes, pytest.raises(SourceError):
        list(sizes)


def test_the_command_tells_all_four(tmp_path: Path) -> None:
    """Rows for the plain consumer, both orders and tensors, with MB/s; the broker is named; the CSV has them too."""
    csv = tmp_path / "kafka.csv"
    asked = ["bench", "kafka", "--images", "24", "--batch", "4", "--seconds", "0.05", "--repeats", "1", "--json"]
    asked.append("--no-peers")
    done = CliRunner().invoke(app, [*asked, "--device", "cpu", "--data", str(tmp_path), "--csv", str(csv)])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["about"]["broker"] == "librdkafka's mock, in this process"
    rows = {row["who"]: row for row in found["rows"]}
    assert list(rows) == ["plain", "in order", "at random", "tensors"]
    assert all(row["records/s"] > 0 and row["MB/s"] > 0 and row["of plain"] > 0 for row in rows.values())
    assert rows["plain"]["of plain"] == 1
    assert len(csv.read_text().splitlines()) == 5


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("kafka://127.0.0.1:1", "config: is only for a topic of your own"),
        ("photos", "must be a topic, kafka://host:port/topic"),
        ("kafka://", "must be a topic, kafka://host:port/topic"),
    ],
)
def test_a_target_that_is_none_is_one_line(target: str, words: str) -> None:
    """What cannot be is said before anything is made."""
    done = CliRunner().invoke(app, ["bench", "kafka", target, "-X", "client.id=x"])
    assert done.exit_code == 1
    assert words in done.stderr
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    ("tensors", "words"), [(900, "reading the topic is the limit"), (300, "decoding is the limit")]
)
def test_what_limits_is_said(tensors: int, words: str) -> None:
    """A loop near what reading alone gives is limited by the topic, another by its decoder."""
    rates = {"plain": 500, "at random": 1000, "tensors": tensors}
    said = findings([{"who": who, "records/s": rate} for who, rate in rates.items()])
    assert words in said[0]
    assert "2.00 times what a plain consumer gives" in said[1]
    assert findings([{"who": "plain", "records/s": 500}]) == []


@pytest.mark.parametrize(
    ("most", "end"), [(300, "confluent-kafka (uint8 x2)."), (700, "overlap, so that may be chance.")]
)
def test_the_fastest_other_loader_is_named(most: int, end: str) -> None:
    """Among those that make tensors, and whether its turns overlap ours."""
    ours = {"who": "tensors", "records/s": 800, "least": 600, "most": 900, "of tensors": 1.0}
    rows = [ours, {"who": "confluent-kafka", "way": "uint8 x2", "of tensors": 0.25, "least": 100, "most": most}]
    rows += [{"who": "ray-kafka", "way": "", "of tensors": 0.1, "least": 1, "most": 2}]
    (said,) = findings([{"records/s": 200} | row for row in rows])
    assert said.startswith("dali_feed gives 4.00 times the tensors of the fastest other loader, confluent-kafka (uint8")
    assert said.endswith(end)


def test_other_loaders_of_a_topic_take_part_or_are_named(tmp_path: Path, topic: Topic) -> None:
    """Installed ones have their ways, a quick run the first; none is given the broker's options; one needs a broker."""
    data = Data("sized", tmp_path, (), 0, 0, 0, 0, topic)
    job = Job(data, 2, "cpu", 1, tmp_path)
    makers, missing = others(job, {}, mock=True, quick=True)
    assert {*makers, *missing} == set(KAFKA)
    assert list(makers["confluent-kafka"]) == ["uint8 x1"]
    assert "it cannot talk to the embedded broker" in missing["kafka-python"]
    assert "ray" in missing["ray-kafka"].lower()
    assert len(others(job, {}, mock=False, quick=False)[0]["confluent-kafka"]) == 3
    assert others(job, {"security.protocol": "ssl"}, mock=False, quick=False) == (
        {},
        dict.fromkeys(KAFKA, "it does not take --config; measure on a listener that needs no such options"),
    )
