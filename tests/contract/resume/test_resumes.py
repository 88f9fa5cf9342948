"""assert_resumes_anywhere: every source passes it, and sources that are broken on purpose do not."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit.broker.handle import Kafka, in_transactions
from kit.images import broken_png, jpeg, labelled, text
from kit.inside import Abort, Block, Corrupt, Extents, Gap, Lease, Reader, Snapshot, write_shard
from kit.resumes import assert_resumes_in_turn
from torchvision.transforms import v2

from dali_feed import Shuffle
from dali_feed.columns import Array
from dali_feed.errors import ConfigError
from dali_feed.external_sources import FileList, KafkaTopic, ShardSet
from dali_feed.testing import Message, ScriptedSource, assert_resumes_anywhere

CROP = v2.Compose([v2.RandomResizedCrop(16, scale=(0.3, 1.0)), v2.RandomHorizontalFlip()])


def scripted(**options: Any) -> ScriptedSource:
    """37 records in two partitions: gaps, corrupt ones, and one that only the decoder refuses."""
    items: list[Any] = labelled(37, sizes=True)
    items[0], items[10], items[11], items[12], items[17], items[25], items[35] = (
        Gap(), Corrupt(), Gap(), Corrupt("torn"), (text(), 1), (broken_png(), 2), Gap(),
    )  # fmt: skip
    return ScriptedSource(items, **({"partitions": 2, "extent": 3} | options))


@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": Shuffle(3, 2), "lanes": 4, "world_sizes": (1, 2, 4)},
        {"shuffle": True, "drop_last": True, "seed": 2**63},
        {"shuffle": False, "lanes": 1, "world_sizes": (1,), "batch_size": 5, "positions": [0, 1, 7, 8]},
    ],
    ids=["windows, three world sizes", "uniform, drop_last", "in order, one lane"],
)
def test_scripted_faults_resume_anywhere(options: dict[str, Any]) -> None:
    """Gaps, records that the screen refuses and one that the decoder refuses stand where they stood."""
    assert_resumes_anywhere(scripted(first=5), transform=CROP, absent=3, **options)


def test_a_partition_after_another_resumes_anywhere() -> None:
    """Sources whose partitions take turns, and whose single records are dear, as a topic's."""
    source = scripted(interleaved=True, random_access=False, first=3)
    assert_resumes_anywhere(source, transform=CROP, lanes=4, world_sizes=(2, 4), positions=4)


@pytest.mark.parametrize("shuffle", [True, Shuffle(4, 2), False], ids=["uniform", "windows", "in order"])
@pytest.mark.parametrize("kind", ["files", "shards"])
def test_files_and_shards_resume_anywhere(kind: str, shuffle: bool | Shuffle, tmp_path: Path) -> None:
    """A folder and shards of unequal lengths, one record corrupt."""
    images = [jpeg(n, 16 + n % 3 * 4) for n in range(21)] + [text()]
    if kind == "files":
        for n, image in enumerate(images):
            (tmp_path / f"{n % 2}").mkdir(exist_ok=True)
            (tmp_path / f"{n % 2}" / f"{n:02}.jpg").write_bytes(image)
        source: Any = FileList.from_folder(str(tmp_path))
    else:
        write_shard(tmp_path / "s-0.tar", [(image, n) for n, image in enumerate(images[:15])])
        write_shard(tmp_path / "s-1.tar", [(image, n) for n, image in enumerate(images[15:])])
        source = ShardSet(str(tmp_path / "s-*.tar"))
    assert_resumes_in_turn(source, transform=CROP, shuffle=shuffle, positions=4, absent=0)


@pytest.mark.parametrize(
    ("kafka", "shuffle"),
    [
        pytest.param(broker, shuffle, id=f"{broker}-{name}", marks=[] if quick else pytest.mark.long)
        for name, shuffle, brokers in (
            ("windows", Shuffle(4, 2), ("embedded", "by message")),
            ("in order", False, ("real", "by message")),
        )
        for broker in ("embedded", "real", "by message")
        for quick in [broker in brokers]
    ],
    indirect=["kafka"],
)
def test_a_topic_resumes_anywhere(kafka: Kafka, shuffle: bool | Shuffle) -> None:
    """Partitions of unequal lengths, a tombstone and a record that is no image.

    Each broker and each order once; `make test-long` has each order of each broker.
    """
    topic = kafka.create(kafka.topic, 2)
    values = [jpeg(n) for n in range(20)]
    values[7] = text()
    messages = [Message(v, headers=(("label", b"3"),), partition=n % 5 // 3) for n, v in enumerate(values)]
    kafka.publish(topic, [*messages, Message(None, partition=0)])
    source = KafkaTopic(topic, kafka.servers)
    assert_resumes_in_turn(source, transform=CROP, shuffle=shuffle, positions=3, absent=0)


@pytest.mark.parametrize(("holes", "absent"), [("replace", 2 * 5 + 4), ("auto", 0)])
def test_a_topic_with_aborted_transactions_resumes_anywhere(real_kafka: Kafka, holes: Any, absent: int) -> None:
    """Offsets of aborted records and of transaction markers are holes and stay holes, or are left out."""
    topic = real_kafka.create(real_kafka.topic)
    records = [Message(jpeg(n), headers=(("label", b"%d" % (n % 5)),)) for n in range(20)]
    in_transactions(real_kafka, topic, records, 5, lambda turn: bool(turn % 2))
    source = KafkaTopic(topic, real_kafka.servers, holes=holes)
    assert_resumes_in_turn(source, transform=CROP, shuffle=Shuffle(4, 3), positions=3, absent=absent)


class Broken(ScriptedSource):
    """A sound source of which `harm` changes what its readers give; it is told which read of the source it is."""

    def __init__(self, harm: Callable[[int, Block], None], items: Any = None) -> None:
        super().__init__(items or labelled(24), partitions=2, extent=4)
        self.harm, self.count = harm, itertools.count()

    def reader(self, members: Sequence[str], stop: threading.Event | None = None) -> Any:
        """One that does harm."""
        return BrokenReader(self, super().reader(members, stop))


class BrokenReader(Reader):
    """Reads as the sound one, then does harm."""

    def __init__(self, source: Broken, reader: Reader) -> None:
        self.source, self.inner = source, reader

    def read(self, extents: Extents, lease: Lease) -> Block:
        """What the sound reader gives, harmed."""
        block = self.inner.read(extents, lease)
        self.source.harm(next(self.source.count), block)
        return block

    def close(self) -> None:
        """As the sound one."""
        self.inner.close()


def shift_by_calls(nth: int, block: Block) -> None:
    """Every other read gives its rows turned by one, ids and all else in place."""
    if nth % 2:
        block.values["value"] = block.values["value"][np.roll(np.arange(len(block.ids)), 1)]


def lose(block: Block, row: int) -> None:
    """The block has no record there."""
    absent = np.zeros(len(block.ids), bool) if block.absent is None else block.absent
    absent[row] = True
    block.absent = absent


def lose_a_first_record(nth: int, block: Block) -> None:
    """After some reads the first record of each is lost, as by a reader that starts one too late."""
    if nth > 50:
        lose(block, 0)


def relabel(nth: int, block: Block) -> None:
    """Pixels stay and labels change from read to read."""
    block.values["label"] = block.values["label"] + nth


def lose_always(nth: int, block: Block) -> None:
    """Position 5 of partition 1 is never there."""
    for row, sample in enumerate(block.ids.tolist()):
        if sample == (1 << 40) | 5:
            lose(block, row)


def leave_out(nth: int, block: Block) -> None:
    """A block without its last row."""
    block.ids = block.ids[:-1]
    block.values = {name: values[:-1] for name, values in block.values.items()}


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        (shift_by_calls, r"scripted\[\d\]@\d+: a record must be the same however it is read; .* it is"),
        (relabel, r"scripted\[\d\]@\d+: a record must be the same however it is read"),
        (lose_a_first_record, r"world size \d.*batch \d+, slot \d+ must be scripted\[.*ok=True.*ok=False"),
        (lose_always, r"with absent=0 so many positions must hold no record; found 1, such as \['scripted\[1\]@5'\]"),
        (leave_out, r"read of scripted\[0\]@0 to scripted\[0\]@3: must give one row per position, 4"),
    ],
)
def test_a_broken_reader_is_found(harm: Callable[[int, Block], None], told: str) -> None:
    """One that depends on the order of calls, one that loses a record now and one that always does."""
    with pytest.raises(AssertionError, match=told):
        assert_resumes_anywhere(Broken(harm), shuffle=Shuffle(4, 2), absent=None if harm is lose_a_first_record else 0)


def test_a_number_of_a_long_array_that_changes_is_found() -> None:
    """Of which the message shows no list: as of an image, what it is and a hash of it."""

    def turn_the_last(nth: int, block: Block) -> None:
        if nth > 50:
            block.values["value"] = [bytes(value[:-1]) + b"?" for value in block.values["value"]]

    source = Broken(turn_the_last, [(bytes([n]) * 100, n) for n in range(24)])
    with pytest.raises(AssertionError, match=r"slot \d+ must be .*x='uint8 \(100,\) \(\w{16}\)'.*; found .*x='uint8 "):
        assert_resumes_anywhere(source, shuffle=Shuffle(4, 2), columns={"x": Array("value", "uint8", (100,))})


class Moving(ScriptedSource):
    """A source whose snapshot is another one each time, in the field that it is told."""

    def __init__(self, name: str) -> None:
        super().__init__(labelled(24), partitions=2, extent=4)
        self.field, self.taken = name, 0

    def snapshot(self, pin: Mapping[str, Any] | None = None) -> Snapshot:
        """A new one each time."""
        found, self.taken = super().snapshot(pin), self.taken + 1
        changed: dict[str, Any] = {
            "fingerprint": f"{self.taken}",
            "stops": found.stops - self.taken % 2,
            "extent": 3 + self.taken,
        }
        return dataclasses.replace(found, **{self.field: changed[self.field]})


@pytest.mark.parametrize("name", ["fingerprint", "stops", "extent"])
def test_a_snapshot_that_changes_is_found(name: str) -> None:
    """Contents, ends and extents must be what they were."""
    with pytest.raises(AssertionError, match=f"a snapshot taken again must be the same; {name} was"):
        assert_resumes_anywhere(Moving(name))


def test_an_error_of_the_source_says_where_it_came() -> None:
    """A run that ends in a SourceError has not resumed."""
    items = labelled(12)
    with pytest.raises(AssertionError, match="SourceError: scripted.0.@3"):
        assert_resumes_anywhere(ScriptedSource([*items[:3], Abort(), *items[3:]]))


@pytest.mark.parametrize(
    "wrong",
    [
        {"lanes": 3},
        {"world_sizes": (3,)},
        {"world_sizes": ()},
        {"positions": [99]},
        {"positions": []},
        {"positions": 0},
    ],
    ids=str,
)
def test_arguments_that_cannot_be(wrong: dict[str, Any]) -> None:
    """They are the caller's mistake, and no verdict about the source."""
    with pytest.raises(ConfigError):
        assert_resumes_anywhere(ScriptedSource(labelled(12)), **wrong)
