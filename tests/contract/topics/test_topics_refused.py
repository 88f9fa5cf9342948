"""What no broker is asked for: addresses, options, marks and stretches that cannot be are errors at once, by name."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from kit.broker.handle import OpenedStream
from kit.refused import refusals

from dali_feed.errors import ConfigError, SourceEmptyError, StateError
from dali_feed.external_sources import Claim, ConsumerGroup, FileList, KafkaStream, KafkaTopic, Producer, Topics
from dali_feed.formats import Json

NOWHERE = "nowhere:1"
STREAM = KafkaStream("t", NOWHERE)
FILES = FileList(["a.jpg"])
TOO_LARGE = "above must be less than max.message.bytes of t, 1000; found 1000"
SECRET = {"sasl.password": "secret"}


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("", "''"),
        (" , ", "' , '"),
        ([], r"\[\]"),
        (None, "None"),
        (9092, "9092"),
        (b"a:1", "b'a:1'"),
        (["a:1", None], r"\['a:1', None\]"),
        ("a:70000", "1 to 65535; found 'a:70000'"),
        ("a:0", "'a:0'"),
        ("a:1,b:port", "'b:port'"),
        ("a:", "'a:'"),
        ("a b:1", "'a b:1'"),
        (":9092", "':9092'"),
        ("a:1/topic", "'a:1/topic'"),
        ("kafka://a:1", r"'kafka://a:1': leave 'kafka://' out"),
        ("http://a:1", r"leave 'http://' out"),
    ],
)
@pytest.mark.parametrize("kind", [Topics, KafkaTopic, KafkaStream, Producer])
def test_what_is_no_address_is_an_error(kind: Any, given: Any, found: str) -> None:
    """At once and by name, where librdkafka asks another port or nobody until the timeout; in all that take servers."""
    of = () if kind is Topics else ("t",)  # the topic
    with pytest.raises(ConfigError, match=rf"^{'t: ' * len(of)}servers must be addresses as host:port.*{found}"):
        kind(*of, given)


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ("broker:9092", "broker:9092"),
        (["a:1", "b.example.org:65535"], "a:1,b.example.org:65535"),
        (("a:1,b:2", "c"), "a:1,b:2,c"),
        (" a:1 , b:2 ,", "a:1,b:2"),
        ("[::1]:9092,[fe80::1%eth0]:9092", "[::1]:9092,[fe80::1%eth0]:9092"),
        ("::1", "::1"),
        ("SASL_SSL://a:1", "SASL_SSL://a:1"),
        ("kafka_0.svc:9092", "kafka_0.svc:9092"),
    ],
)
def test_addresses_are_taken(given: Any, taken: str) -> None:
    """A text or a list, with blanks and a last comma, IPv6, librdkafka's protocols, no port."""
    assert repr(Topics(given)) == f"Topics({taken!r})"


def topic(**options: Any) -> KafkaTopic:
    """A source with these options."""
    return KafkaTopic("t", NOWHERE, **options)


def stream(**options: Any) -> KafkaStream:
    """A stream with these."""
    return KafkaStream("t", NOWHERE, **options)


def worker(**options: Any) -> KafkaStream:
    """That of a group's worker."""
    return stream(group=ConsumerGroup("g"), **options)


def create(**options: Any) -> None:
    """Make a topic with these."""
    Topics(NOWHERE).create("t", **options)


def run(source: Any = FILES, produce: dict[str, Any] | None = None, **options: Any) -> None:
    """Of a producer that was made with `produce`."""
    Producer("t", NOWHERE, **produce or {}).run(source, **options)


@refusals(
    ConfigError,
    (lambda: topic(config={"auto.offset.reset": "x"}), "auto.offset.reset"),
    (lambda: topic(config={"group.id": "x"}), "group.id"),
    (lambda: topic(config={"enable.auto.commit": "x"}), "enable.auto.commit"),
    (lambda: topic(config={"isolation.level": "x"}), "isolation.level"),
    (lambda: topic(config={"bootstrap.servers": "x"}), "bootstrap.servers"),
    (lambda: topic(config={"no.such.option": "x"}).snapshot(), r"no\.such\.option"),
    (lambda: topic(label="class", codec=lambda v, k, h: {"image": v}), "label="),
    (lambda: topic(group=""), "group must be .* found ''"),
    (lambda: topic(group=3), "group must be .* found 3"),
    (lambda: KafkaTopic("", NOWHERE), "topic"),
    (lambda: topic(no_such_option=1), "no_such_option", TypeError),
    (lambda: topic(holes="skip"), 'holes must be "auto", "scan" or "replace"; found \'skip\''),
)
def test_options_of_a_topic(call: Any, error: Any, said: str) -> None:
    """What would decide what is read cannot be set."""
    with pytest.raises(error, match=said):
        call()


@refusals(
    ConfigError,
    (lambda make: make(label=3), "label must be a header's name"),
    (lambda make: make(label=""), "label must be a header's name"),
    (lambda make: make(label=b"label"), "label must be a header's name"),
    (lambda make: make(codec=5), "codec must be a function"),
    (lambda make: make(config="a=b"), "config must be a mapping .* found str"),
    (lambda make: make(claims=5), "claims=: must be a path"),
)
@pytest.mark.parametrize("make", [topic, stream])
def test_options_of_both(make: Any, call: Any, error: Any, said: str) -> None:
    """Not a bad record of each of its records, and without a broker."""
    with pytest.raises(error, match=said):
        call(make)


@refusals(
    ConfigError,
    (lambda: stream(start="newest"), 'start must be "earliest", "latest"'),
    (lambda: stream(start=True), "start must be"),
    (lambda: stream(start=1_700_000_000_123), "milliseconds: give start=1700000000.123"),
    (lambda: stream(start=datetime(2026, 1, 1)), "must have a time zone"),  # noqa: DTZ001  that is the mistake
    (lambda: stream(start="group"), "give its name, group="),
    (lambda: stream(batch_bytes=0), "batch_bytes must be above 0"),
    (lambda: stream(batch_timeout=-1), "batch_timeout must be above 0"),
    (lambda: stream(timeout=0), "timeout must be above 0 seconds"),
    (lambda: stream(timeout=None), "timeout must be above 0 seconds; found None"),
    (lambda: stream(batch_timeout="1 s"), "batch_timeout must be above 0, or None; found '1 s'"),
    (lambda: stream(config={"auto.offset.reset": "latest"}), "must not set the options that decide"),
    (lambda: stream(group=3), "a consumer group's name, or a ConsumerGroup"),
    (lambda: ConsumerGroup(""), r"ConsumerGroup\(group=\): a name is needed"),
    (lambda: ConsumerGroup("g", instance=""), r"ConsumerGroup\(instance=\)"),
    (lambda: ConsumerGroup("g", "eager"), '"classic" or "consumer"'),  # type: ignore[arg-type]
    (lambda: ConsumerGroup("g", session=0), "session=.*at most 3600; found 0"),
    (lambda: ConsumerGroup("g", session=1.5), "session=.*at least 2 and at most 3600; found 1.5"),
    (lambda: ConsumerGroup("g", "consumer", session=9), "the broker sets it"),
    (lambda: ConsumerGroup("g", drain=-1), "drain=.*found -1"),
    (lambda: ConsumerGroup("g", drain=None), "drain=.*found None"),  # type: ignore[arg-type]
    (lambda: ConsumerGroup("g", session="45 s"), "session=.*found '45 s'"),  # type: ignore[arg-type]
    (lambda: worker(start={"topic": "t"}), "cannot be a state"),
    (lambda: worker(start="yesterday"), "start must be"),
    (lambda: worker(config={"group.instance.id": "x"}), "found group.instance.id"),
    (lambda: worker(config={"session.timeout.ms": 6000}), "found session.timeout.ms; ConsumerGroup"),
    (lambda: worker(config={"partition.assignment.strategy": "range"}), "partition.assignment.strategy"),
    (lambda: worker(config={"max.poll.interval.ms": 30_000}), r"above ConsumerGroup\(drain=\).*30000 ms and 30 s"),
)
def test_options_of_a_stream_and_of_a_group(call: Any, error: Any, said: str) -> None:
    """A value that cannot be, or that contradicts another, is an error that names it."""
    with pytest.raises(error, match=said):
        call()


@refusals(
    ConfigError,
    (lambda: Topics(NOWHERE, timeout=0), "timeout"),
    (lambda: Topics(NOWHERE, timeout="5"), "timeout must be above 0 seconds; found '5'"),  # type: ignore[arg-type]
    (lambda: Topics(NOWHERE).describe(""), "topic"),
    (lambda: Topics(NOWHERE, config={"no.such.option": "x"}).describe("t"), r"no\.such\.option"),
    (lambda: create(partitions=0), "^t: .*partitions"),
    (lambda: create(partitions=2.5), "^t: .*partitions"),
    (lambda: create(partitions=1 << 30), "^t: .*partitions"),
    (lambda: create(replication=0), "^t: .*replication"),
    (lambda: create(segment_bytes=-1), "^t: .*segment_bytes"),
    (lambda: create(max_message_bytes=True), "^t: .*max_message_bytes"),
    (lambda: create(min_insync_replicas=0), "^t: .*min_insync_replicas"),
    (lambda: create(compression="zip"), "^t: .*compression"),
    (lambda: create(retention=0), "^t: .*retention"),
    (lambda: create(retention="7d"), "^t: retention must be above 0 seconds, or None for ever; found '7d'"),
    (lambda: run(produce={"by": "label"}), "by must be"),
    (lambda: run(produce={"compression": "zip"}), "compression must be"),
    (lambda: run(produce={"config": {"transactional.id": "x"}}), "found transactional.id"),
    (lambda: run(produce={"queue_bytes": 10}), "queue_bytes must be"),
    (lambda: run(produce={"queue_bytes": "64MB"}), "queue_bytes must be 1024 or more; found '64MB'"),
    (lambda: run(every="2 s"), "every must be"),
    (lambda: run(readers=1.5), "readers must be a whole number, 1 or more; found 1.5"),
    (lambda: run(topic(), key=5), "key: must be a str or None; found 5"),
    (lambda: run(produce={"claim": "/folder"}), "claim: must be a Claim or None"),
    (lambda: run(every=-1), "every must be"),
    (lambda: run(map=bytes, columns=("bytes",), format=Json(("bytes",))), "writes none"),
    (lambda: run(readers=0), "readers must be"),
    (lambda: run(STREAM), "the source must be one that ends.*without snapshot, reader"),
    (lambda: run(copy=True), "must be a KafkaTopic"),
    (lambda: run(key="nobody"), "member 'nobody'"),
    (lambda: run(topic(), headers=5), "headers: must be different names of members"),
    (lambda: run(topic(), map=5), "map must be a function of bytes"),
    (lambda: run(topic(), journal=5), "journal: must be a path"),
    (lambda: Claim(Path(), -1), "above must be a number of bytes, 0 or more; found -1"),
    (lambda: Claim(Path(), 1000).check("t", 1000), TOO_LARGE),
)
def test_arguments_of_a_cluster_and_of_a_producer(call: Any, error: Any, said: str) -> None:
    """Each names itself; nobody listens at the address."""
    with pytest.raises(error, match=said):
        call()


def test_no_password_is_shown() -> None:
    """Not in a repr, and not where it stands in an address, in which it has no place."""
    assert "secret" not in repr((topic(config=SECRET), Topics(NOWHERE, config=SECRET)))
    for servers in ("alice:secret@host:9092", "host:1,sasl_ssl://alice:sec,ret@host:9092", ["alice:secret@host:9092"]):
        for make in (KafkaTopic, KafkaStream, Producer):
            with pytest.raises(ConfigError, match=r"^t: servers must .* sasl\.\* in config=") as refused:
                make("t", servers)
            assert not re.search("sec|ret", str(refused.value))


def at(*offsets: int) -> dict[str, Any]:
    """A mark with these offsets of partitions."""
    positions = {str(p): offset for p, offset in enumerate(offsets)}
    return {"topic": "t", "id": "", "world_size": 1, "ranks": [0], "partitions": len(offsets), "positions": positions}


def without(lost: str) -> dict[str, Any]:
    """The mark of a rank that lost a partition, from whose beginning all its records would come a second time."""
    whole = STREAM.mark({0: 3, 2: 4, 4: 5}, rank=0, world_size=2)
    return whole | {"positions": {p: offset for p, offset in whole["positions"].items() if p != lost}}


def replay(*stretch: Any) -> None:
    """What lies between two states."""
    STREAM.replay(*stretch)


def mark(**of: int) -> dict[str, Any]:
    """Of these two partitions."""
    return STREAM.mark({0: 3, 2: 4}, **of)


MARK = mark(rank=0, world_size=2)
GROUPS = worker().mark({0: 5})
LOST = "the position of each partition that its run read; of 3 it has 2: "
SAME_PLACE = "found both at the same place in each of 2 partitions. Give a later"
WRONG_WAY = "found them at 6 and at 3 in partition 0. They are the wrong way round: give"
OTHERS = STREAM.mark({1: 1}, rank=1, world_size=3)
CONTINUES = "continues at the offsets of the group"
NO_STATE = "must be what a loader's state_dict.. gave, a list of all ranks', or a mark; found int"


@refusals(
    StateError,
    (lambda: mark(rank=1, world_size=2), r"all partitions of rank 1 of 2, .* found \[0, 2\]", ConfigError),
    (mark, r"found \[0, 2\]", ConfigError),
    (lambda: KafkaStream("u", NOWHERE).merged([MARK]), "it is of t"),
    (lambda: STREAM.merged([MARK, MARK]), "different ranks of one run; found ranks 0, 0"),
    (lambda: STREAM.merged([MARK, OTHERS]), "ranks of one world size; found 2, 3"),
    (lambda: replay({"version": 1, "stream": None}, MARK), "taken before anything was read"),
    (lambda: STREAM.merged([{"topic": "t"}]), "it has no 'positions'"),
    *((lambda lost=lost: STREAM.merged([without(lost)]), LOST) for lost in "024"),
    (lambda: STREAM.merged([at(1 << 70)]), "its ranks and positions do not fit together"),
    (lambda: replay(at(6, 6), at(3, 6)), WRONG_WAY),
    (lambda: replay(at(6, 6), at(9, 5)), "at 6 and at 5 in partition 1. Give the states of one run, the earlier"),
    (lambda: replay(at(6, 6, 6), at(9)), "at 6 and without it in partition 1, and 1 more. Give the states"),
    (lambda: replay(7, at(1)), NO_STATE),
    (lambda: replay("state.json", at(1)), "found str"),
    (lambda: replay(at(6, 0), at(6)), SAME_PLACE, SourceEmptyError),
    (lambda: OpenedStream(worker(), at(5)), CONTINUES),
    (lambda: worker().merged([GROUPS, at(5)]), CONTINUES),
    (lambda: OpenedStream(worker(), {"topic": "t", "group": "h"}), CONTINUES),
    (lambda: worker().merged([GROUPS, {"topic": "t", "group": "h"}]), CONTINUES),
    (lambda: OpenedStream(STREAM, GROUPS), "the state of a worker of a group"),
)
def test_marks_and_stretches_that_cannot_be(call: Any, error: Any, said: str) -> None:
    """Of another topic, partitions or run, with the end before the beginning; positions and groups do not mix."""
    with pytest.raises(error, match=said):
        call()


def test_marks_that_are_taken() -> None:
    """A rank's positions, and the name of a worker's group."""
    positions = {"0": 3, "2": 4}
    assert {"topic": "t", "id": "", "world_size": 2, "ranks": [0], "partitions": 2, "positions": positions} == MARK
    assert STREAM.merged([without("none")]) == without("none")
    assert GROUPS == {"topic": "t", "group": "g"}
    assert repr(worker()) == "KafkaStream('t', 'nowhere:1', group='g', at least once)"  # with which describe() begins
    assert worker().merged([GROUPS, GROUPS]) == GROUPS
    OpenedStream(worker(), GROUPS).close()


PIN = {"topic": "t", "id": "", "starts": [0], "ends": [9], "extent": 4, "record_bytes": 100, "absent": 0.0}


@pytest.mark.parametrize(
    "odd",
    [{"extent": 0}, {"extent": 1 << 40}, {"record_bytes": 0}, {"record_bytes": 1 << 70}, {"absent": 2}, {"ends": [-1]},
     {"ends": [1 << 70]}, {"starts": None}, {"topic": "u"}],
)  # fmt: skip
def test_pins_that_cannot_be(odd: dict[str, Any]) -> None:
    """What a state of a topic may hold after somebody has changed it: the error says so before a broker is asked."""
    with pytest.raises(StateError, match="^t: "):
        topic().snapshot(PIN | odd)
