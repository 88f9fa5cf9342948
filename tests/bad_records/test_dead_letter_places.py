"""Dead letters in folders and topics: the record as it was, headers that say why, an error where nobody takes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kit.broker.handle import Kafka
from kit.broker.proxy import Proxy
from kit.broker.real import ALICE, PASSWORD, RealBroker, free_ports
from kit.images import QUICK, jpeg
from kit.shelves import letter

from dali_feed.bad_records import DeadLetters, Letter, with_original
from dali_feed.errors import DeadLetterError, SourceNotFoundError, SourceUnreachableError
from dali_feed.external_sources import DeadLetterFolder, KafkaTopic, Producer
from dali_feed.feed import Feed
from dali_feed.options import BadRecords, Decode
from dali_feed.records.source import Original
from dali_feed.testing import Message

pytestmark = pytest.mark.slow


def test_a_folder_keeps_a_record_in_full(tmp_path: Path) -> None:
    """Key, headers and a value that is not the payload, headers without a value, and names that no disk would take."""
    folder = DeadLetterFolder(tmp_path / "a" / "b")
    full = Original(b"\xffkey", b"wrapped", (("h", b"\x00"), ("h", None)))
    letters = [
        letter(0, where="/data/über/a:b?.jpg", original=full),
        letter(1, where="t[0]@1", original=Original(None, b"payload 1")),
        letter(2, where="t[0]@2", original=Original(b"", None), payload=b"", stage="source"),
        letter(3, where="x" * 5000, gone=True),
        letter(4, where="bad-\udcff.jpg"),
    ]
    writer = folder.writer()
    writer.write(letters[:2])
    writer.write(letters[2:])
    writer.close()
    assert list(folder.read()) == letters
    names = {path.name for path in (tmp_path / "a" / "b").iterdir()}
    assert len(names) == 1 + len(letters) + 1
    assert all(len(name) < 64 and name.isascii() and name.replace("-", "").replace(".", "").isalnum() for name in names)
    folder.writer().write([letter(0, where="/data/über/a:b?.jpg", reason="again")])
    assert [found.reason for found in folder.read()][-1] == "again"
    assert len(list(folder.read())) == len(letters)
    folder.writer().write([letter(4, where="bad-\udcff.jpg", source="another")])
    assert len(list(folder.read())) == len(letters) + 1


def _records() -> list[Message]:
    """Twelve records over two partitions: text at 0@2, a tombstone at 1@3, a label that is none at 1@4."""
    records = [Message(jpeg(n), b"key %d" % n, (("label", b"%d" % n), ("by", b"\xff")), n % 2) for n in range(12)]
    records[4] = Message(b"<html>", b"key", (("label", b"4"), ("by", b"cam"), ("by", b"\x00")), 0)
    records[7] = Message(None, b"tomb", (("label", b"7"),), 1)
    records[9] = Message(jpeg(9), None, (("label", b"x"),), 1)
    return records


def _run(kafka: Kafka, to: DeadLetters, source: KafkaTopic | None = None) -> None:
    source = source or KafkaTopic(kafka.topic, kafka.servers)
    bad = BadRecords(limit=None, dead_letter=to)
    with Feed(source, 4, decode=Decode(engine="host"), tuning=QUICK, bad=bad) as feed:
        for _ in feed:
            pass
        feed.state_dict()


def _raw(kafka: Kafka, topic: str) -> list[Original]:
    source = KafkaTopic(topic, kafka.servers, label=None)
    wholes = (source.original(0, n) for n in range(source.snapshot().stops[0]))
    return [whole for whole in wholes if whole is not None]


def test_a_record_arrives_as_it_was_with_word_of_why(kafka: Kafka) -> None:
    """Key, value and headers kept, in order; then Connect's headers in text; a record without a key has its place."""
    kafka.publish(kafka.topic, _records(), partitions=2)
    topic = kafka.create(f"{kafka.topic}.dead")
    to = Producer(topic, kafka.servers)
    _run(kafka, to)
    found = {dict(record.headers)["dali_feed.where"]: record for record in _raw(kafka, topic)}
    at = f"{kafka.topic}[%d]@%d".__mod__
    assert set(found) == {at(place).encode() for place in ((0, 2), (1, 3), (1, 4))}
    text = found[at((0, 2)).encode()]
    assert (text.key, text.value) == (b"key", b"<html>")
    assert text.headers[:3] == (("label", b"4"), ("by", b"cam"), ("by", b"\x00"))
    told = {name.removeprefix("__connect.errors."): value for name, value in text.headers[3:]}
    assert (told["topic"], told["partition"], told["offset"]) == (kafka.topic.encode(), b"0", b"2")
    assert told["stage"] == b"screen"
    assert told["exception.message"] == b'text, not an image (starts with "<html>")'
    assert told["exception.class.name"] == b"dali_feed.errors.BadRecordError"
    tomb = found[at((1, 3)).encode()]
    assert (tomb.key, tomb.value) == (b"tomb", None)
    assert found[at((1, 4)).encode()].key == at((1, 4)).encode()
    letters = {found.where: found for found in to.read()}
    assert {found.stage for found in letters.values()} == {"screen", "source"}
    for published, place in ((4, (0, 2)), (7, (1, 3)), (9, (1, 4))):
        record = _records()[published]
        assert letters[at(place)].original == Original(record.key, record.value, record.headers)


def test_the_last_letter_of_a_record_counts(kafka: Kafka) -> None:
    """Two epochs write a record twice; the topic is read as one letter each, and other records in it are no letters."""
    kafka.publish(kafka.topic, _records(), partitions=2)
    topic = kafka.create(f"{kafka.topic}.dead")
    to = Producer(topic, kafka.servers)
    assert list(to.read()) == []
    kafka.publish(topic, [Message(b"something else")])
    for _ in range(2):
        _run(kafka, to)
    assert len(_raw(kafka, topic)) == 7
    assert len({found.where for found in to.read()}) == len(list(to.read())) == 3


def test_a_folder_keeps_kafkas_records_in_full(kafka: Kafka, tmp_path: Path) -> None:
    """The image that a codec took out of a record, and beside it the record: key, value and headers."""

    def codec(value: memoryview, key: bytes | None, headers: list[tuple[str, bytes]]) -> dict[str, Any]:
        del key, headers
        return {"image": value[3:], "label": 1}

    record = Message(b"---<html>", b"key", (("a", b"\xff"),))
    kafka.publish(kafka.topic, [Message(b"---" + jpeg(0)), record], partitions=1)
    folder = DeadLetterFolder(tmp_path)
    _run(kafka, folder, KafkaTopic(kafka.topic, kafka.servers, codec=codec))
    (found,) = folder.read()
    assert found.payload == b"<html>"
    assert found.original == Original(b"key", b"---<html>", (("a", b"\xff"),))


def test_a_record_that_is_gone_leaves_its_payload(kafka: Kafka) -> None:
    """Where retention took the record before its letter was written, the letter has the payload and says so."""
    kafka.publish(kafka.topic, [Message(b"v%d" % n, b"k") for n in range(6)], partitions=1)
    source = KafkaTopic(kafka.topic, kafka.servers, label=None)
    assert source.original(0, 4) == Original(b"k", b"v4")
    kafka.delete_records(kafka.topic, 0, 5)
    assert source.original(0, 4) is None
    assert source.original(0, 6) is None  # the end
    gone = with_original(letter(4, where=source.where(0, 4), payload=b"v4"), source)
    assert (gone.original, gone.gone) == (None, True)
    topic = kafka.create(f"{kafka.topic}.dead")
    to = Producer(topic, kafka.servers)
    to.writer().write([gone])
    assert list(to.read()) == [gone]


def test_letters_of_other_sources_have_their_place_as_key(kafka: Kafka) -> None:
    """A file or a shard has no original: its payload is the value and its coordinates the key."""
    topic = kafka.create(kafka.topic)
    to = Producer(topic, kafka.servers)
    wanted: list[Letter] = [letter(3, where="train-0007.tar#3", stage="decode"), letter(4, where="bad-\udcff.jpg")]
    writer = to.writer()
    writer.write(wanted)
    writer.close()
    assert list(to.read()) == wanted
    assert [record.key for record in _raw(kafka, topic)] == [b"train-0007.tar#3", b"bad-\xff.jpg"]


def test_nobody_takes_letters(embedded: Kafka) -> None:
    """An address where nobody listens ends the pass with the address and the seconds, and no state can be taken."""
    embedded.publish(embedded.topic, _records(), partitions=2)
    nowhere = f"127.0.0.1:{free_ports(1)[0]}"
    bad = BadRecords(limit=None, dead_letter=Producer("dead", nowhere, timeout=0.7))
    with Feed(
        KafkaTopic(embedded.topic, embedded.servers), 4, decode=Decode(engine="host"), tuning=QUICK, bad=bad
    ) as feed:
        with pytest.raises(DeadLetterError, match=rf"dead at {nowhere}: .*\]@\d must be .* in \d\.\d s: .*refused"):
            list(feed)
        with pytest.raises(DeadLetterError, match=nowhere):
            feed.state_dict()
    with pytest.raises(SourceUnreachableError, match=nowhere):
        KafkaTopic("t", nowhere, timeout=0.5).original(0, 0)


def test_a_broker_that_comes_back_takes_what_it_refused(link_broker: RealBroker) -> None:
    """A broker that is gone is an error; the same writer goes on when it is back, and so does another."""
    link_broker.create("comes-back")
    to = Producer("comes-back", link_broker.link_servers, timeout=5)
    with Proxy(*link_broker.link_ports) as link:
        writer = to.writer()
        writer.write([letter(0)])
        link.down()
        with pytest.raises(DeadLetterError, match=r"s\[0\]@1 must be acknowledged"):
            writer.write([letter(1)])
        link.up()
        writer.write([letter(1)])
        to.writer().write([letter(2)])
        assert {found.position for found in to.read()} == {0, 1, 2}


def test_a_topic_that_refuses_letters(link_broker: RealBroker) -> None:
    """No right to write is told with what the broker says; so is a topic to read from that is not there."""
    link_broker.create("refuses-letters")
    config = {**ALICE, "sasl.password": PASSWORD}
    with pytest.raises(DeadLetterError, match=r"(?i)authoriz"):
        Producer("refuses-letters", link_broker.sasl_servers, config=config, timeout=5.0).writer().write([letter()])
    with pytest.raises(SourceNotFoundError, match="none"):
        list(Producer("no-letters", link_broker.servers).read())
