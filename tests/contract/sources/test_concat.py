"""Concat and Mix: several sources as one, with the ids, names, order and errors that follow from theirs."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit.blocks import rows, taken
from kit.broker.handle import Kafka, value
from kit.images import jpeg, labelled
from kit.inside import Corrupt, Extents, Feed, Gap, Pieces, SlabPool, open_reader, unpack_ids, write_shard
from kit.resumes import assert_resumes_in_turn
from torchvision.transforms import v2

from dali_feed import BadRecords, DataLoader, Shuffle, Tuning
from dali_feed.columns import Bytes, Column, Image, JsonValue, Number, Text
from dali_feed.errors import ClosedError, ConfigError, StateError
from dali_feed.external_sources import Concat, FileList, KafkaTopic, Mix, ShardSet
from dali_feed.testing import Message, ScriptedSource

QUICK = Tuning(threads=1, readers=1)
CROP = v2.RandomResizedCrop(8, scale=(0.3, 1.0))


def scripted(count: int, name: str = "s", **options: Any) -> ScriptedSource:
    """`count` images whose labels count from 0."""
    return ScriptedSource(labelled(count), name=name, **options)


def files(folder: Path, count: int) -> FileList:
    """`count` files with labels from 100 on."""
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{n}.jpg" for n in range(count)]
    for n, path in enumerate(paths):
        path.write_bytes(jpeg(n))
    return FileList(paths, list(range(100, 100 + count)))


def test_in_order_each_source_comes_after_the_one_before() -> None:
    """Partitions are shifted, those of a source that takes its partitions in turn stay in turn; ids say which is it."""
    both = Concat([scripted(5, "a", partitions=2, extent=1, interleaved=True), scripted(3, "b")])
    with Feed(both, 4, transform=v2.CenterCrop(8), tuning=QUICK) as feed:
        batches = list(feed)
    assert np.concatenate([batch.fields["label"] for batch in batches]).tolist() == [0, 2, 1, 3, 4, 0, 1, 2]
    partitions = unpack_ids(np.concatenate([batch.ids for batch in batches]))[0]
    assert partitions.tolist() == [0, 1, 0, 1, 1, 2, 2, 2]
    assert [both.where(2, 1), both.where(1, 3)] == ["b[0]@1", "a[1]@3"]


def test_a_sampler_counts_through_all() -> None:
    """Index 5 of five records and three is the first of the second."""
    with Feed(Concat([scripted(5), scripted(3)]), 3, sampler=[5, 0, 7], transform=CROP, tuning=QUICK) as feed:
        (batch,) = feed
    assert batch.fields["label"].tolist() == [0, 0, 2]
    assert unpack_ids(batch.ids)[0].tolist() == [1, 0, 1]


@pytest.mark.parametrize("shuffle", [True, Shuffle(3, 2), False], ids=["own", "windows", "in order"])
def test_shards_files_a_topic_and_faults_resume_anywhere(tmp_path: Path, embedded: Kafka, shuffle: Any) -> None:
    """One source of a tar, a topic, files, and one with gaps and bad records; the pin of the topic is in the state."""
    embedded.publish("both", [(jpeg(n), 40 + n) for n in range(7)], partitions=2)
    write_shard(tmp_path / "a.tar", [(jpeg(n), n) for n in range(5)])
    faulty: list[Any] = labelled(8)
    faulty[2], faulty[5] = Gap(), Corrupt()
    source = Concat(
        [
            ShardSet(tmp_path / "a.tar"),
            KafkaTopic("both", embedded.servers),
            Concat([files(tmp_path / "f", 4), ScriptedSource(faulty, extent=3)]),
        ]
    )
    assert_resumes_in_turn(source, transform=CROP, shuffle=shuffle, absent=1, positions=3)


def test_labels_of_two_kinds_are_an_error_that_names_the_sources() -> None:
    """Numbers beside texts cannot make one column."""

    class Worded(ScriptedSource):
        @property
        def preset(self) -> Any:
            return {"image": Image("value"), "label": Text("label")}

    both = Concat([scripted(4, "numbers"), Worded(labelled(4), name="words")])
    rule = "the column 'label' must be of one kind in all sources; numbers has Number.*words has Text"
    with pytest.raises(ConfigError, match=rule):
        Feed(both, 8, transform=CROP, tuning=QUICK)


def test_a_preset_is_what_all_have() -> None:
    """Labels are left out beside a source that has none."""
    both = Concat([scripted(4), ScriptedSource([jpeg(1), jpeg(2)])])
    assert list(both.preset) == ["image"]
    with Feed(both, 6, transform=CROP, tuning=QUICK) as feed:
        (batch,) = feed
    assert batch.fields == {}


def test_a_preset_takes_each_sources_own_member(tmp_path: Path) -> None:
    """Shards, files and scripted records call their images and labels by other names; rows of all are one column."""
    write_shard(tmp_path / "a.tar", [(jpeg(n), n) for n in range(3)])
    source = Concat([ShardSet(tmp_path / "a.tar"), Concat([files(tmp_path / "f", 2), scripted(2)])])
    assert [row["image"] for row in rows(source)] == [jpeg(n) for n in (0, 1, 2, 0, 1, 0, 1)]
    assert [int(row["label"]) for row in rows(source)] == [0, 1, 2, 100, 101, 0, 1]
    turned = Extents(np.array([2, 0, 1, 1, 0]), np.array([1, 2, 1, 0, 0]), np.array([2, 3, 2, 1, 1]))
    assert [int(row["label"]) for row in rows(source, extents=turned)] == [1, 2, 101, 100, 0]


def test_rows_of_pieces_stay_pieces(tmp_path: Path) -> None:
    """Bytes of several sources are joined without a look at each row, in the order in which they were asked for."""
    for name, first in ("a", 0), ("b", 10):
        write_shard(tmp_path / f"{name}.tar", [{"txt": b"%d" % (first + n)} for n in range(4)])
    two = Concat([ShardSet(tmp_path / f"{name}.tar", label=None) for name in "ab"])
    two.snapshot()
    turns = Extents(np.array([1, 0, 1]), np.array([2, 0, 0]), np.array([4, 2, 1]))
    found = open_reader(two, ["txt"]).read(turns, SlabPool().lease()).values["txt"]
    assert isinstance(found, Pieces)
    assert [taken(view) for view in found] == [b"12", b"13", b"0", b"1", b"10"]


class Doubtful(ScriptedSource):
    """Its reader reads all again each time, into the memory that it had."""

    def reader(self, members: Sequence[str], stop: Any = None) -> Any:
        """One that starts over once."""
        reader = super().reader(members, stop)
        once = reader.read

        def twice(extents: Extents, lease: Any) -> Any:
            mark = lease.mark()
            once(extents, lease)
            lease.rewind(mark)
            return once(extents, lease)

        reader.read = twice  # type: ignore[method-assign]
        return reader


@pytest.mark.parametrize("size", [600, 40_000], ids=["many slabs", "in one slab"])
def test_a_reader_that_starts_over_leaves_what_others_have_read(size: int) -> None:
    """The bytes of the first source stand while the second one's reader goes back to where it began."""
    first = ScriptedSource([(b"%03d" % n * 60, n) for n in range(20)], name="first")
    second = Doubtful([(b"x%02d" % n * 60, n) for n in range(20)], name="second")
    both, pool = Concat([first, second]), SlabPool(size)
    both.snapshot()
    extents, lease = Extents(np.array([0, 1]), np.array([0, 0]), np.array([20, 20])), pool.lease()
    block = open_reader(both, ["value"]).read(extents, lease)
    wanted = [b"%03d" % n * 60 for n in range(20)] + [b"x%02d" % n * 60 for n in range(20)]
    assert [taken(view) for view in block.values["value"]] == wanted
    assert pool.leased == lease.size
    lease.release()
    assert pool.leased == 0


def test_columns_are_members_that_all_have(tmp_path: Path) -> None:
    """Each source gives the member; where one cannot, the error names it."""
    for name in "ab":
        write_shard(tmp_path / f"{name}.tar", [{"jpg": jpeg(n), "txt": name.encode()} for n in range(3)])
    two = Concat([ShardSet(tmp_path / "a.tar", label=None), ShardSet(tmp_path / "b.tar", label=None)])
    assert [member.name for member in two.members()] == ["jpg", "txt"]
    columns = {"image": Image("jpg", CROP), "text": Text("txt")}
    with Feed(two, 6, columns=columns, tuning=QUICK) as feed:
        (batch,) = feed
    assert list(batch.fields["text"]) == ["a"] * 3 + ["b"] * 3
    with pytest.raises(
        ConfigError, match=r"all sources must have the members that the columns name; FileList.* does not"
    ):
        Feed(Concat([two, files(tmp_path / "f", 2)]), 2, columns={"text": Bytes("txt")}, tuning=QUICK)


def test_positions_are_published_by_each_source_that_can() -> None:
    """`commit` gives each its own part of the positions."""

    class Published(ScriptedSource):
        at: Any = None

        def commit(self, positions: Any) -> None:
            self.at = positions.tolist()

    last = Published(labelled(6), partitions=2, first=5)
    with Feed(Concat([scripted(2), last]), 4, transform=CROP, tuning=QUICK) as feed:
        passes = iter(feed)
        next(passes)
        feed.commit()
        assert last.at == [7, 5]
        next(passes)
        feed.commit()
        assert last.at == [8, 8]


def test_a_concat_refuses_the_state_of_other_sources() -> None:
    """Of another number of them, and of others."""
    two = Concat([scripted(4), scripted(4)])
    with pytest.raises(StateError, match="must be of 2 sources; found a state of 3"):
        two.snapshot({"sources": [None] * 3})
    with Feed(two, 4, transform=CROP) as feed:
        state = feed.state_dict()
    with (
        Feed(Concat([scripted(4), scripted(5)]), 4, transform=CROP) as other,
        pytest.raises(StateError, match="source: the state has"),
    ):
        other.load_state_dict(state)


def test_a_concat_can_be_pickled(tmp_path: Path) -> None:
    """It looks anew in another process."""
    source = Concat([files(tmp_path / "f", 2), files(tmp_path / "g", 3)])
    known = source.snapshot()
    again = pickle.loads(pickle.dumps(source))
    assert again.snapshot().fingerprint == known.fingerprint
    assert again.where(1, 2) == str(tmp_path / "g" / "2.jpg")


def sets(folder: Path) -> tuple[ShardSet, ShardSet]:
    """Two sets of one kind of record, whose members have other names in each."""
    mine = [{"jpg": jpeg(n, 16, 16), "cls": b"%d" % n, "meta.json": b'{"who": "a%d"}' % n} for n in range(7)]
    yours = [
        {"JPEG" if n % 2 else "jpeg": jpeg(n, 16, 16), "class": b"%d" % (10 + n), "info.json": b'{"who": "b%d"}' % n}
        for n in range(7)
    ]
    write_shard(folder / "a.tar", mine)
    write_shard(folder / "b.tar", yours)
    return ShardSet(folder / "a.tar"), ShardSet(folder / "b.tar", label=None)


def test_two_sets_with_other_names_are_one(tmp_path: Path) -> None:
    """A column that names both gives the first that a record has: of images, of labels, and inside of members."""
    columns: dict[str, Column] = {
        "image": Image("jpg;jpeg;JPEG", CROP),
        "label": Number("cls;class"),
        "who": Text("meta.json:who;info.json:who"),
        "all": JsonValue("meta.json;info.json"),
    }
    with DataLoader(Concat(sets(tmp_path)), 7, columns=columns, device="cpu", tuning=QUICK) as loader:
        first, second = loader
    assert first["label"].tolist() == [*range(7)]
    assert second["label"].tolist() == [*range(10, 17)]
    assert first["who"] + second["who"] == [f"{letter}{n}" for letter in "ab" for n in range(7)]
    assert second["all"][3] == {"who": "b3"}


@pytest.mark.parametrize("mixed", [True, False], ids=["Mix", "Concat"])
def test_other_names_resume_anywhere(tmp_path: Path, embedded: Kafka, mixed: bool) -> None:
    """Of a set beside a topic whose names are others again."""
    embedded.publish("renamed", [Message(jpeg(n, 16, 16), headers=(("y", b"%d" % n),)) for n in range(9)], partitions=2)
    parts: list[Any] = [sets(tmp_path)[1], KafkaTopic("renamed", embedded.servers, label=None)]
    source = Mix(parts, [1, 2], stop="all") if mixed else Concat(parts)
    columns = {"image": Image("jpeg;JPEG;value", CROP), "label": Number("class;y")}
    assert_resumes_in_turn(source, columns=columns, shuffle=True, positions=3, absent=0)


def counted(count: int, name: str = "s", first: int = 0, **options: Any) -> ScriptedSource:
    """`count` images with labels from `first` on."""
    items: list[Any] = [(jpeg(n), first + n) for n in range(count)]
    return ScriptedSource(items, name=name, **options)


def test_batches_have_exact_proportions_bad_records_or_not() -> None:
    """Seven and three of ten in every batch; a bad record's place goes to another of its own source."""
    items: list[Any] = labelled(60)
    items[3] = items[20] = items[21] = Corrupt()
    items[40] = Gap()
    mixed = Mix([ScriptedSource(items, name="a"), counted(60, "b", 100)], [0.7, 0.3])
    with Feed(mixed, 10, shuffle=True, transform=CROP, bad=BadRecords(limit=None), tuning=QUICK) as feed:
        batches = list(feed)
        stats = feed.stats()
        assert "7 : 3" in feed.describe()
    assert len(batches) == 9
    for batch in batches[:8]:
        assert (batch.fields["label"] >= 100).sum() == 3
        assert np.flatnonzero(batch.fields["label"] >= 100).tolist() != [7, 8, 9], "not source by source"
    assert sorted(where for where, _ in stats.recent_bad) == ["a[0]@20", "a[0]@21", "a[0]@3"]
    assert stats.absent == 1


@pytest.mark.parametrize("shuffle", [True, Shuffle(3, 2), False], ids=["own", "windows", "in order"])
def test_a_mix_of_all_kinds_resumes_anywhere(tmp_path: Path, embedded: Kafka, shuffle: Any) -> None:
    """One of a tar, a topic and files beside faults; the smaller ones begin again within the epoch."""
    embedded.publish("mix", [(jpeg(n), 40 + n) for n in range(2)], partitions=2)
    write_shard(tmp_path / "a.tar", [(jpeg(n), n) for n in range(5)])
    faulty: list[Any] = labelled(8)
    faulty[2], faulty[5] = Gap(), Corrupt()
    for n in range(4):
        (tmp_path / f"{n}.jpg").write_bytes(jpeg(n))
    source = Mix(
        [
            ShardSet(tmp_path / "a.tar"),
            KafkaTopic("mix", embedded.servers),
            Concat([FileList([tmp_path / f"{n}.jpg" for n in range(4)], [1] * 4), ScriptedSource(faulty, extent=3)]),
        ],
        [3, 1, 4],
        stop="all",
    )
    assert_resumes_in_turn(source, transform=CROP, shuffle=shuffle, absent=1, positions=3, lanes=2)


def test_lanes_and_world_sizes_give_the_same_batches() -> None:
    """At four lanes, on one rank and on four."""
    source = Mix([counted(13, partitions=2), counted(29, first=100)], [1, 2], samples=50)
    assert_resumes_in_turn(source, transform=CROP, shuffle=Shuffle(2, 3), lanes=4, world_sizes=(1, 4), positions=3)


def test_a_sample_that_comes_again_is_drawn_anew() -> None:
    """Its crop is another one the second time, its id the same; the first time it is as where there is no second."""
    one, few = counted(2), counted(8, first=100)

    def crops(samples: int) -> dict[int, list[bytes]]:
        found: dict[int, list[bytes]] = {}
        mixed = Mix([one, few], samples=samples)
        with Feed(mixed, 2, transform=v2.RandomCrop(8), tuning=QUICK) as feed:
            for batch in feed:
                for sample, image in zip(batch.ids.tolist(), np.from_dlpack(batch), strict=True):
                    found.setdefault(sample, []).append(image.tobytes())
        return found

    first, again = crops(4), crops(16)
    assert [len(again[n]) for n in (0, 1)] == [4, 4]
    assert all(len(set(again[n])) > 1 for n in (0, 1))
    assert [again[n][0] for n in (0, 1)] == [first[n][0] for n in (0, 1)]


def test_a_changed_mixture_is_a_named_difference() -> None:
    """A state says what the weights, the schedule and the end of its epochs were."""
    a, b = counted(20), counted(20)
    with Feed(Mix([a, b], [7, 3]), 5, transform=CROP, tuning=QUICK) as feed:
        next(iter(feed))
        state = json.loads(json.dumps(feed.state_dict()))
    for other in (Mix([a, b], [6, 4]), Mix([a, b], {0: [7, 3], 5: [1, 1]}), Mix([a, b], [7, 3], stop="all")):
        with (
            Feed(other, 5, transform=CROP, tuning=QUICK) as feed,
            pytest.raises(StateError, match="mix: the state has"),
        ):
            feed.load_state_dict(state)
    with Feed(Concat([a, b]), 5, transform=CROP, tuning=QUICK) as feed, pytest.raises(StateError, match="mix: the sta"):
        feed.load_state_dict(state)


def test_a_loader_mixes_by_a_schedule(tmp_path: Path) -> None:
    """`DataLoader` of shards and files: epoch by epoch other shares, and as many batches as that makes."""
    write_shard(tmp_path / "a.tar", [(jpeg(n), 0) for n in range(12)])
    for n in range(12):
        (tmp_path / f"{n}.jpg").write_bytes(jpeg(n))
    files = FileList([tmp_path / f"{n}.jpg" for n in range(12)], [1] * 12)
    mixed = Mix([ShardSet(tmp_path / "a.tar"), files], {0: [1, 0], 1: [3, 1]})
    with DataLoader(mixed, 4, shuffle=True, transform=CROP, device="cpu", tuning=QUICK) as loader:
        shares = [[int(labels.sum()) for _, labels in loader] for _ in range(2)]
    assert shares == [[0, 0, 0], [1, 1, 1, 1]]


def test_columns_of_a_mixture(tmp_path: Path) -> None:
    """Each source gives its members, in the mixture's slots."""
    for name in "ab":
        write_shard(tmp_path / f"{name}.tar", [{"jpg": jpeg(n), "txt": name.encode()} for n in range(6)])
    mixed = Mix([ShardSet(tmp_path / f"{name}.tar", label=None) for name in "ab"], [2, 1])
    with Feed(mixed, 3, columns={"image": Image("jpg", CROP), "text": Text("txt")}, tuning=QUICK) as feed:
        texts = [sorted(batch.fields["text"]) for batch in feed]
    assert texts == [["a", "a", "b"]] * 3
    with pytest.raises(
        ConfigError, match=r"Mix: all sources must have the members that the columns name; FileList.* does not"
    ):
        Feed(Mix([mixed.sources[0], FileList([tmp_path / "x.jpg"])]), columns={"text": Text("txt")}, tuning=QUICK)


def test_a_mixture_takes_no_sampler() -> None:
    """Its order is its own."""
    mixed = Mix([counted(3), counted(3)])
    with Feed(mixed, 2, sampler=[0, 1], transform=CROP) as feed, pytest.raises(ConfigError, match="order of its own"):
        len(feed)


def test_a_reader_of_several_sources_is_for_its_own_snapshot() -> None:
    """Extents that no source has, and a read after it was closed, are refused by its own name."""
    reader = Concat([ScriptedSource([(jpeg(0), 1)]), ScriptedSource([(jpeg(1), 2)], name="b")]).reader(["value"])
    lease = SlabPool().lease()
    (value,) = reader.read(Extents.one(1, 0, 1), lease).values["value"]
    assert taken(value) == jpeg(1)
    with pytest.raises(ConfigError, match=r"Concat\(.*\): extents must lie inside the snapshot"):
        reader.read(Extents.one(-1, 0, 1), lease)
    reader.close()
    with pytest.raises(ClosedError, match=r"Concat\(.*\): this reader is closed"):
        reader.read(Extents.one(0, 0, 1), lease)


def test_trouble_of_any_reader_is_that_of_all(embedded: Kafka) -> None:
    """What librdkafka last complained of is told by whoever reads the topic beside others, and nothing before that."""
    embedded.publish(embedded.topic, [(value(i), i) for i in range(4)], partitions=1)
    both = Concat([ScriptedSource([(jpeg(0), 1)]), KafkaTopic(embedded.topic, embedded.servers)])
    both.snapshot()
    reader, lease = both.reader(["value"], threading.Event()), SlabPool().lease()
    reader.read(Extents.one(1, 0, 4), lease)
    assert reader.trouble == ""
    reader.rest()  # as its thread does while there is nothing to read
    found = reader.gauges()
    assert found is None or found.topic == embedded.topic
    assert len(reader.read(Extents.one(1, 0, 4), lease).values["value"]) == 4
    cluster: Any = embedded.cluster
    cluster.down()
    while not reader.trouble:
        reader.rest()
    assert "Broker" in reader.trouble or "broker" in reader.trouble or "Connect" in reader.trouble
    reader.close()
