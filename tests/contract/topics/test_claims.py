"""Payloads that lie in a folder beside the topic: written before their records, read as if they were in them."""

from __future__ import annotations

import hashlib
import re
import shutil
from pathlib import Path
from typing import Any, Literal

import pytest
from kit.broker.handle import Kafka, OpenedStream, labels, payloads
from kit.claimed import claimed, made
from kit.images import QUICK, jpeg
from kit.killed_producer import CLAIMED_ABOVE, killed_at, produced
from kit.produced import block_of, numbered, shard_of, values_in

from dali_feed import BadRecords, DataLoader
from dali_feed.errors import ConfigError, ProduceError, SourceNotFoundError, StateError
from dali_feed.external_sources import Claim, KafkaStream, KafkaTopic, Producer
from dali_feed.testing import Message

ABOVE = 110  # of values that are 96 to 132 bytes long


def objects(folder: Path) -> dict[str, bytes]:
    """What lies in the folder, by path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def claim_of(record: Message) -> str:
    """The URI in its headers."""
    return dict(record.headers)["claim.uri"].decode()


def test_large_values_lie_in_the_folder_and_are_read_from_there(kafka: Kafka, tmp_path: Path) -> None:
    """Whatever way a topic is read: payload and label, columns, a codec; the small values are in the topic as ever."""
    values, topic, folder = numbered(20), kafka.create(kafka.topic, 2), made(tmp_path)
    done = Producer(topic, kafka.servers, claim=Claim(folder, ABOVE)).run(shard_of(tmp_path, values))
    assert (done.tally.records, done.tally.size, done.tally.failed) == (20, sum(map(len, values)), 0)
    large = [value for value in values if len(value) > ABOVE]
    assert 0 < len(large) < 20
    digests = [hashlib.sha256(value).hexdigest() for value in large]
    assert objects(folder) == {f"{d[:2]}/{d}": value for d, value in zip(digests, large, strict=True)}
    assert values_in(kafka.servers, topic) == [[v if len(v) <= ABOVE else b"" for v in values[p::2]] for p in (0, 1)]
    source = KafkaTopic(topic, kafka.servers, claims=folder)
    block = block_of(source, 1)
    assert (payloads(block), block.faults) == (values[1::2], {})
    assert labels(block) == list(range(20))[1::2]
    for asked in (("value",), ("nothing;value", "label")):
        assert payloads(block_of(source, 1, *asked)) == values[1::2]
    coded = KafkaTopic(
        topic, kafka.servers, label=None, codec=lambda value, _key, _headers: {"image": value[3:]}, claims=folder
    )
    assert payloads(block_of(coded, 1)) == [value[3:] for value in values[1::2]]


def test_memory_is_planned_for_what_is_read(embedded: Kafka, tmp_path: Path) -> None:
    """A topic of a few bytes a record whose payloads are megabytes is read in extents of few records."""
    folder = made(tmp_path)
    embedded.publish(embedded.topic, [claimed(folder, b"%d" % n * 2_000_000) for n in range(4)], 1)
    looks: tuple[Literal["replace", "scan"], ...] = ("replace", "scan")
    for holes in looks:
        found = KafkaTopic(embedded.topic, embedded.servers, claims=folder, holes=holes).snapshot()
        assert (found.record_bytes, found.extent) == (2_000_000, 16)
    assert KafkaTopic(embedded.topic, embedded.servers).snapshot().record_bytes < 1000


def test_what_is_not_there_as_it_was_is_that_records_fault(embedded: Kafka, tmp_path: Path) -> None:
    """Gone, cut, altered, half told: each names the object; the records beside it are read."""
    folder = made(tmp_path)
    gone, cut, altered = (claimed(folder, b"%d" % n * 50) for n in range(3))
    paths = [folder / claim_of(each) for each in (gone, cut, altered)]
    paths[0].unlink()
    paths[1].write_bytes(b"1" * 49)
    paths[2].write_bytes(b"2" * 49 + b"3")
    records = {
        gone: rf"^claim '{claim_of(gone)}': the object is not in {folder}: No such file",
        cut: "the object must have 50 bytes; found 49$",
        altered: rf"^claim '{claim_of(altered)}': the object must have the SHA-256 {paths[2].name}; .*: it was changed",
        claimed(folder, b"a", size=b""): "must have the headers claim.uri, claim.size and .*; found no claim.size",
        claimed(folder, b"b", size=b"-1"): "header claim.size: a decimal number is needed; found b'-1'",
        claimed(folder, b"c", sha256=b"xy"): "header claim.sha256: 64 hexadecimal digits are needed; found b'xy'",
        claimed(folder, b"d", "ab"): "a folder, not a file|the object is not in",
    }
    good = claimed(folder, b"good")
    embedded.publish(embedded.topic, [*records, good], 1)
    source = KafkaTopic(embedded.topic, embedded.servers, claims=folder)
    for block in (block_of(source, 0), block_of(source, 0, "value")):
        assert sorted(block.faults) == list(range(len(records)))
        for row, said in enumerate(records.values()):
            assert re.search(said, block.faults[row].reason)
    assert payloads(block)[-1] == b"good"


def test_no_record_leads_out_of_the_folder(embedded: Kafka, tmp_path: Path) -> None:
    """By dots, a whole path, a link, another scheme: nothing outside is read, though size and hash are right."""
    folder, payload = made(tmp_path), b"secret"
    outside = tmp_path / "outside"
    outside.write_bytes(payload)
    (folder / "link").symlink_to(outside)
    (folder / "inside").symlink_to(folder / claim_of(claimed(folder, payload)))
    out = ["../outside", f"file://{outside}", str(outside), "%2e%2e/outside", "link", "s3://bucket/x", "a\0b", "."]
    out += [f"file://{folder}-other/x", "http://localhost/x", "file://host/x", ""]
    there = ["inside", f"file://{folder}/inside", claim_of(claimed(folder, payload)).replace("/", "/./")]
    embedded.publish(embedded.topic, [claimed(folder, payload, uri) for uri in out + there], 1)
    block = block_of(KafkaTopic(embedded.topic, embedded.servers, label=None, claims=folder), 0)
    assert [row for row, found in enumerate(payloads(block)) if found == payload] == [
        *range(len(out), len(out + there))
    ]
    assert sorted(block.faults) == list(range(len(out)))
    for row in range(len(out) - 1):
        assert "the URI leads out of it" in block.faults[row].reason


def test_who_was_not_told_of_the_folder_is_told_what_lacks(embedded: Kafka, tmp_path: Path) -> None:
    """Without claims= each such record is a fault that names the option; an empty value without a claim is as ever."""
    record = claimed(made(tmp_path), b"payload")
    embedded.publish(embedded.topic, [record, Message(b"", None, (("label", b"1"),), 0)], 1)
    source = KafkaTopic(embedded.topic, embedded.servers)
    for block in (block_of(source, 0), block_of(source, 0, "value")):
        assert list(block.faults) == [0]
        said = "the payload is stored elsewhere; give the source claims=, the folder that it may be read from"
        assert block.faults[0].reason == f"claim {claim_of(record)!r}: {said}"


def test_a_folder_that_is_not_there_is_no_records_fault(embedded: Kafka, tmp_path: Path) -> None:
    """Nor one that is empty, as where nothing is mounted: an error names it, and no record is called bad."""
    folder = made(tmp_path)
    embedded.publish(embedded.topic, [claimed(folder, b"payload")], 1)
    shutil.rmtree(folder)
    source = KafkaTopic(embedded.topic, embedded.servers, claims=folder)
    with pytest.raises(SourceNotFoundError, match=f"^claims='{folder}': must be the folder of the payloads; found: No"):
        block_of(source, 0)
    folder.mkdir()
    with pytest.raises(SourceNotFoundError, match=f"^claims='{folder}': .* it is empty: is it mounted"):
        block_of(source, 0)


def test_a_payload_that_is_gone_costs_its_slot(
    embedded: Kafka, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A loader gives the others, with the pixels of a topic without a folder, and says which one it left out."""
    images, folder = [jpeg(n) for n in range(4)], made(tmp_path)
    source, plain, apart = shard_of(tmp_path, images), embedded.topic + "-plain", embedded.topic
    for topic, claim in ((plain, None), (apart, Claim(folder, 0))):
        Producer(embedded.create(topic), embedded.servers, claim=claim).run(source)
    missing = hashlib.sha256(images[2]).hexdigest()
    (folder / missing[:2] / missing).unlink()
    batches: list[Any] = []
    for topic, claims in ((plain, None), (apart, folder)):
        reads = KafkaTopic(topic, embedded.servers, claims=claims)
        with DataLoader(reads, 4, bad=BadRecords(limit=1), info=True, tuning=QUICK) as loader:
            batches += loader
    (whole, labels, _), (others, found, about) = batches
    assert (labels.tolist(), found.tolist(), about.ok.tolist()) == (
        [0, 1, 2, 3],
        [0, 1, 3, 3],
        [True, True, False, True],
    )
    assert (whole[[0, 1, 3]] == others[[0, 1, 3]]).all()
    (said,) = [each for each in caplog.messages if "bad record" in each]
    assert f"{apart}[0]@2: claim '{missing[:2]}/{missing}': the object is not in {folder}" in said


def test_a_run_that_goes_on_writes_nothing_twice(embedded: Kafka, tmp_path: Path) -> None:
    """An object that is there stays; one that a cut left half is written again; another folder is another run."""
    values, topic, folder = numbered(12), embedded.create(embedded.topic), made(tmp_path)
    source, claim = shard_of(tmp_path, values), Claim(folder, ABOVE)
    producer = Producer(topic, embedded.servers, claim=claim)
    producer.run(source)
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    before = [path.stat().st_ino for path in paths]
    paths[0].write_bytes(b"half")
    journal = tmp_path / "journal"
    assert producer.run(source, journal=journal).tally.records == 12
    assert [path.stat().st_ino for path in paths[1:]] == before[1:]
    assert sorted(objects(folder).values()) == sorted(value for value in values if len(value) > ABOVE)
    with pytest.raises(StateError, match=r"claim: \{'folder': '.*', 'above': 110\}, found"):
        Producer(topic, embedded.servers, claim=Claim(folder, 111)).run(source, journal=journal)


def test_a_payload_is_there_before_its_record(embedded: Kafka, tmp_path: Path) -> None:
    """Where it cannot be written the run ends, with the folder in the error, and no record says that it is there."""
    values, topic, folder = numbered(12), embedded.create(embedded.topic), made(tmp_path)
    source = shard_of(tmp_path, values)
    for two in range(256):
        (folder / f"{two:02x}").write_bytes(b"no folder")
    with pytest.raises(
        ProduceError, match=f"^{folder}: a payload of 114 bytes must be written before its record is sent"
    ):
        Producer(topic, embedded.servers, claim=Claim(folder, ABOVE)).run(source)
    assert b"" not in values_in(embedded.servers, topic)[0]


def test_where_payloads_cannot_be_is_told_at_once(embedded: Kafka, tmp_path: Path) -> None:
    """Where there is no folder."""
    topic, source = embedded.create(embedded.topic), shard_of(tmp_path, numbered(2))
    with pytest.raises(ConfigError, match=f"folder must exist, and readers must see it too; found none at {tmp_path}"):
        Producer(topic, embedded.servers, claim=Claim(tmp_path / "none")).run(source)
    Claim(tmp_path, 999).check(topic, 1000)


def test_a_stream_reads_them_too(embedded: Kafka, tmp_path: Path) -> None:
    """Its records are the payloads, whose bytes make a batch full; a replay reads them as well."""
    folder, values = made(tmp_path), [*(b"%d" % n * 1000 for n in range(4)), b"4" * 3000]
    embedded.publish(embedded.topic, [claimed(folder, value) for value in values], 1)
    source = KafkaStream(embedded.topic, embedded.servers, start="earliest", claims=folder)
    reader = OpenedStream(source)
    found, end = [], {0: 0}
    while end[0] < 5:
        got = reader.poll(4, 2500, 30.0)
        found.append(payloads(got.block))
        end |= got.position
        got.block.lease.release()
    reader.close()
    assert [each for each in found if each] == [values[:2], values[2:4], values[4:]]
    replay = source.replay(source.mark({0: 1}), source.mark({0: 3}))
    assert payloads(block_of(replay, 0)) == values[1:3]


def test_a_killed_run_goes_on_with_its_payloads(embedded: Kafka, tmp_path: Path) -> None:
    """After kill -9 every record is there, and what it refers to."""
    values, topic = numbered(60), embedded.create(embedded.topic)
    shard_of(tmp_path, values)
    run = (tmp_path / "s.tar", embedded.servers, topic, tmp_path / "journal", False, made(tmp_path))
    assert killed_at(40, *run) == -9
    assert produced(*run).tally.records == 60
    block = block_of(KafkaTopic(topic, embedded.servers, claims=run[-1]), 0)
    assert (sorted({each or b"" for each in payloads(block)}), block.faults) == (values, {})
    assert sorted(objects(run[-1]).values()) == sorted(value for value in values if len(value) > CLAIMED_ABOVE)


def test_a_copy_of_a_topic_refers_to_the_same_payloads(embedded: Kafka, tmp_path: Path) -> None:
    """Its records are as they were, whether the source could have followed them or not."""
    folder, payload = made(tmp_path), b"payload"
    record = claimed(folder, payload)
    embedded.publish(embedded.topic, [record], 1)
    for claims in (None, folder):
        copy = embedded.create(f"{embedded.topic}-{claims is None}")
        source = KafkaTopic(embedded.topic, embedded.servers, claims=claims)
        assert Producer(copy, embedded.servers).run(source, copy=True).tally.failed == 0
        there = KafkaTopic(copy, embedded.servers, claims=folder)
        found = there.original(0, 0)
        assert found is not None
        assert (found.value, found.headers) == (b"", record.headers)
        assert payloads(block_of(there, 0)) == [payload]
