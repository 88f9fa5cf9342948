"""Mix: batches in exact proportions out of sources of any kind, on resume too, and what is an error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit.broker.handle import Kafka
from kit.images import jpeg, labelled
from kit.inside import Corrupt, Feed, Gap, write_shard
from torchvision.transforms import v2

from dali_feed import BadRecords, DataLoader, Shuffle, Tuning
from dali_feed.columns import Image, Text
from dali_feed.errors import ConfigError, StateError
from dali_feed.external_sources import Concat, FileList, KafkaTopic, Mix, ShardSet
from dali_feed.testing import ScriptedSource, assert_resumes_anywhere

QUICK = Tuning(threads=1, readers=1)
CROP = v2.RandomResizedCrop(8, scale=(0.3, 1.0))


def scripted(count: int, name: str = "s", first: int = 0, **options: Any) -> ScriptedSource:
    """`count` images with labels from `first` on."""
    items: list[Any] = [(jpeg(n), first + n) for n in range(count)]
    return ScriptedSource(items, name=name, **options)


def test_batches_have_exact_proportions_bad_records_or_not() -> None:
    """Seven and three of ten in every batch; a bad record's place goes to another of its own source."""
    items: list[Any] = labelled(60)
    items[3] = items[20] = items[21] = Corrupt()
    items[40] = Gap()
    mixed = Mix([ScriptedSource(items, name="a"), scripted(60, "b", 100)], [0.7, 0.3])
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
def test_shards_files_a_topic_and_faults_resume_anywhere(tmp_path: Path, embedded: Kafka, shuffle: Any) -> None:
    """One of a tar, a topic and files beside faults; the smaller ones begin again within the epoch."""
    embedded.publish("mix", [(jpeg(n), 40 + n) for n in range(9)], partitions=2)
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
        [3, 1, 2],
        stop="all",
    )
    assert_resumes_anywhere(source, transform=CROP, shuffle=shuffle, absent=1, positions=3, lanes=2)


def test_lanes_and_world_sizes_give_the_same_batches() -> None:
    """At four lanes, on one rank and on four."""
    source = Mix([scripted(13, partitions=2), scripted(29, first=100)], [1, 2], samples=50)
    assert_resumes_anywhere(source, transform=CROP, shuffle=Shuffle(2, 3), lanes=4, world_sizes=(1, 4), positions=3)


def test_a_sample_that_comes_again_is_drawn_anew() -> None:
    """Its crop is another one the second time, its id the same; the first time it is as where there is no second."""
    one, few = scripted(2), scripted(8, first=100)

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
    a, b = scripted(20), scripted(20)
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


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"weights": [1]}, "a number of 0 or more for each of the 2 sources"),
        ({"weights": [1, -1]}, "a number of 0 or more"),
        ({"weights": [0, 0]}, "one above 0"),
        ({"weights": {}}, "found an empty one"),
        ({"weights": {-1: [1, 1]}}, "weights: epoch"),
        ({"linear": True}, "linear needs a schedule"),
        ({"stop": "last"}, "stop must be 'first' or 'all'"),
        ({"samples": 0}, "samples"),
    ],
)
def test_what_a_mix_refuses(options: dict[str, Any], rule: str) -> None:
    """Each value that cannot be, with its rule."""
    with pytest.raises(ConfigError, match=rule):
        Mix([scripted(2), scripted(2)], **options)


def test_a_mixture_is_nothing_s_part_and_takes_no_sampler() -> None:
    """Its order is its own."""
    mixed = Mix([scripted(3), scripted(3)])
    for outer in (Mix([mixed, scripted(3)]), Concat([mixed, scripted(3)])):
        with pytest.raises(ConfigError, match="mixture"):
            outer.snapshot()
    with Feed(mixed, 2, sampler=[0, 1], transform=CROP) as feed, pytest.raises(ConfigError, match="order of its own"):
        len(feed)
