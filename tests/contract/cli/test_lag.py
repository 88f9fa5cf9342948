"""`dali-feed lag`: of a group and of a state, as people and as tools read it, and how it ends."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit.broker.handle import Kafka
from kit.command import Cli, assert_one_line, cli
from kit.images import QUICK, jpeg

from dali_feed import DataLoader, Shuffle
from dali_feed.external_sources import ConsumerGroup, KafkaStream, KafkaTopic
from dali_feed.testing import Message, ScriptedSource

__all__ = ["cli"]  # a fixture

LENGTHS = (12, 5, 0, 7)


def fill(kafka: Kafka) -> str:
    """A topic of unequal partitions, the third of them empty; its name for the command line."""
    records = [
        Message(jpeg(n), headers=(("label", b"%d" % n),), partition=p)
        for p, length in enumerate(LENGTHS)
        for n in range(length)
    ]
    kafka.publish(kafka.topic, records, partitions=len(LENGTHS))
    return f"kafka://{kafka.servers}/{kafka.topic}"


def test_a_state_says_what_the_group_does(cli: Cli, embedded: Kafka, tmp_path: Path) -> None:
    """After each batch of an epoch in shuffled order, between two epochs, and in the next one."""
    target, group, path = fill(embedded), f"g-{embedded.topic}", tmp_path / "state.json"
    source = KafkaTopic(embedded.topic, embedded.servers, group=group)

    def look(*reader: object) -> list[int]:
        done = cli("lag", target, *reader, "--json")
        assert (done.code, done.err) == (0, "")
        found = json.loads(done.out)
        assert found["lag"] == sum(LENGTHS) - sum(each["position"] for each in found["partitions"])
        assert [each["end"] for each in found["partitions"]] == list(LENGTHS)
        return [each["position"] for each in found["partitions"]]

    with DataLoader(source, 5, shuffle=Shuffle(2, 3), lanes=5, device="cpu", tuning=QUICK, drop_last=True) as loader:
        stood = []
        for _ in range(2):
            for _ in loader:
                loader.commit()
                path.write_text(json.dumps(loader.state_dict()))
                stood.append(look("--group", group))
                assert look("--state", path) == stood[-1]
                if loader.epoch:
                    break
            else:
                path.write_text(json.dumps(loader.state_dict()))
                assert look("--state", path) == list(LENGTHS)
    assert [sum(each) for each in stood] == [5, 10, 15, 24, 5]  # no batch is left behind the fourth


def test_the_state_of_a_stream(cli: Cli, embedded: Kafka, tmp_path: Path) -> None:
    """Of one rank its partitions, of all ranks' states all; of a worker what its group has committed."""
    target, path = fill(embedded), tmp_path / "state.json"
    stream = KafkaStream(embedded.topic, embedded.servers)
    ranks = [
        {"version": 1, "made_for": {}, "stream": stream.mark(at, rank=rank, world_size=2)}
        for rank, at in enumerate(({0: 3, 2: 0}, {1: 5, 3: 1}))
    ]
    path.write_text(json.dumps(ranks))
    found = json.loads(cli("lag", target, "--state", path, "--json").out)
    assert ([each["lag"] for each in found["partitions"]], found["warnings"]) == ([9, 0, 0, 6], [])
    path.write_text(json.dumps(ranks[1]))
    found = json.loads(cli("lag", target, "--state", path, "--json").out)
    assert [each["lag"] for each in found["partitions"]] == [None, 0, None, 6]
    assert "no position in" in found["warnings"][0]
    worker = KafkaStream(embedded.topic, embedded.servers, group=ConsumerGroup("workers"))
    path.write_text(json.dumps({"version": 1, "made_for": {}, "stream": worker.mark({})}))
    assert_one_line(cli("lag", target, "--state", path), "group 'workers'", "there is no such group")


def saved(loader: DataLoader) -> dict[str, Any]:
    """Its state."""
    with loader:
        next(iter(loader))
        return loader.state_dict()


def pin(kafka: Kafka) -> dict[str, Any]:
    """Of the topic as it is."""
    return dict(KafkaTopic(kafka.topic, kafka.servers).snapshot().pin or {})


def changed(kafka: Kafka, **other: object) -> dict[str, Any]:
    """A state of a loader that was made for something else."""
    state = saved(DataLoader(KafkaTopic(kafka.topic, kafka.servers), 2, device="cpu"))
    return state | {"made_for": state["made_for"] | other}


def sampled(kafka: Kafka) -> dict[str, Any]:
    """A state of a loader with a sampler."""
    return saved(DataLoader(KafkaTopic(kafka.topic, kafka.servers), 2, sampler=[3, 1, 2], device="cpu"))


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda kafka: [1, 2], ("must be what state_dict() gave", "list")),
        (lambda kafka: {"version": 9, "source": {"pin": pin(kafka)}, "epoch": 0}, ("version must be 1", "9")),
        (lambda kafka: saved(DataLoader(ScriptedSource([jpeg(1)] * 4), 2, device="cpu")), ("reads a Kafka topic",)),
        (sampled, ("came from a sampler",)),
        (lambda kafka: changed(kafka, source="another"), ("must fit its own pin; the fingerprints are 'another'",)),
        (lambda kafka: changed(kafka, lanes="many"), ("must be the dict that state_dict() gave; ValueError",)),
        (lambda kafka: {"stream": None, "version": 1, "made_for": {}}, ("before anything of",)),
        (lambda kafka: {"source": {"pin": pin(kafka) | {"topic": "other"}}}, ("it is of other",)),
    ],
)
def test_what_is_no_state_of_the_topic(
    cli: Cli, embedded: Kafka, tmp_path: Path, made: Callable[[Kafka], object], words: tuple[str, ...]
) -> None:
    """One line that says so, and 1."""
    target, path = fill(embedded), tmp_path / "state.json"
    path.write_text(json.dumps(made(embedded)))
    assert_one_line(cli("lag", target, "--state", path), *words)


def test_a_group_that_is_none_is_told(cli: Cli, embedded: Kafka) -> None:
    """One line that names it."""
    assert_one_line(cli("lag", fill(embedded), "--group", "nobody"), "group 'nobody'", "there is no such group")


def test_as_people_read_it(cli: Cli, embedded: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line per partition; --strict ends with 1 where records are gone; --watch has rates, until Ctrl-C."""
    target = fill(embedded)
    source = KafkaTopic(embedded.topic, embedded.servers, group="training")
    with DataLoader(source, 6, device="cpu", tuning=QUICK) as loader:
        next(iter(loader))
        loader.commit()
    done = cli("lag", target, "--group", "training", "--strict")
    words = " ".join(done.out.split())
    assert (done.code, done.err) == (0, "")
    assert f"kafka topic {embedded.topic} at {embedded.servers}, group 'training'" in words
    assert "lag 18 offsets, " in words
    assert f"{embedded.topic}[2] 0 0 0 0 0 s 0" in words
    assert "read/s" not in words
    embedded.delete_records(embedded.topic, 0, 10)
    assert cli("lag", target, "--group", "training", "--strict").code == 1
    waits, sleep = iter((False, True)), time.sleep

    def slept(seconds: float) -> None:
        if threading.current_thread() is not threading.main_thread():
            sleep(seconds)
        elif next(waits):
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", slept)
    done = cli("lag", target, "--group", "training", "--watch", 0.1)
    words = " ".join(done.out.split())
    assert (done.code, done.err) == (130, "dali-feed: interrupted\n")
    assert words.count(f"kafka topic {embedded.topic}") == 2
    assert "read/s written/s" in words
    assert f"warning {embedded.topic}[0]: offsets 6..9 are gone" in words
