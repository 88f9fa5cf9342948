"""Renamed: sources that call one thing by two names, as one; names alone change."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from kit.broker.handle import Kafka
from kit.images import QUICK, jpeg
from kit.inside import Extents, Member, write_shard
from kit.record_files import make
from torchvision.transforms import v2

from dali_feed import DataLoader
from dali_feed.columns import Image, JsonValue, Number, Text
from dali_feed.errors import ConfigError
from dali_feed.external_sources import Concat, KafkaTopic, Mix, Renamed, ShardSet
from dali_feed.testing import Message, ScriptedSource, assert_resumes_anywhere

CROP = v2.RandomResizedCrop(8, scale=(0.3, 1.0))


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


NAMES = {"jpeg;JPEG": "jpg", "class": "cls", "info.json": "meta.json"}
COLUMNS = {"image": Image("jpg", CROP), "label": Number("cls"), "who": Text("meta.json:who"), "all": JsonValue("meta.json")}


def test_two_sets_with_other_names_are_one(tmp_path: Path) -> None:
    """Columns are asked for by one name: of images, of labels, and inside of members."""
    mine, yours = sets(tmp_path)
    both = Concat([mine, Renamed(yours, NAMES)])
    with DataLoader(both, 7, columns=COLUMNS, device="cpu", tuning=QUICK) as loader:
        first, second = loader
    assert first["label"].tolist() == [*range(7)]
    assert second["label"].tolist() == [*range(10, 17)]
    assert first["who"] + second["who"] == [f"{letter}{n}" for letter in "ab" for n in range(7)]
    assert second["all"][3] == {"who": "b3"}
    assert {each.name for each in both.members()} == {"jpg", "cls", "meta.json"}


def test_members_are_listed_by_their_names_here(tmp_path: Path) -> None:
    """Those that became one have the share of all; a name that went to another can be taken by a third."""
    _, yours = sets(tmp_path)
    found = {each.name: each for each in Renamed(yours, NAMES).members()}
    assert sorted(found) == ["cls", "jpg", "meta.json"]
    assert found["jpg"].share == 1.0
    assert found["cls"] == Member("cls", 1.0, 2)
    swapped = Renamed(yours, {"class": "jpeg", "jpeg": "class"})
    reader = swapped.giving(None, ("jpeg", "class;JPEG")).reader()
    block = reader.read(Extents.one(0, 0, 7))
    assert [bytes(each) for each in block.fields["jpeg"]] == [b"%d" % (10 + n) for n in range(7)]
    assert all(bytes(each[:2]) == b"\xff\xd8" for each in block.fields["class;JPEG"])


@pytest.mark.parametrize("mixed", [True, False], ids=["Mix", "Concat"])
def test_it_resumes_anywhere_among_others(tmp_path: Path, embedded: Kafka, mixed: bool) -> None:
    """With columns, beside a topic whose names are others again."""
    _, yours = sets(tmp_path)
    embedded.publish("renamed", [Message(jpeg(n, 16, 16), headers=(("y", b"%d" % n),)) for n in range(9)], partitions=2)
    topic = Renamed(KafkaTopic("renamed", embedded.servers), {"value": "jpg", "y": "cls"})
    parts = [Renamed(yours, NAMES), topic]
    source = Mix(parts, [1, 2], stop="all") if mixed else Concat(parts)
    columns = {"image": Image("jpg", CROP), "label": Number("cls")}
    assert_resumes_anywhere(source, columns=columns, shuffle=True, positions=3, absent=0)


def test_a_state_is_one_of_the_source(tmp_path: Path) -> None:
    """Saved without other names it goes on with them, and the batches are the same."""
    mine, _ = sets(tmp_path)
    other = pickle.loads(pickle.dumps(Renamed(mine, {"jpg": "photo", "cls": "y"})))
    how: dict[str, Any] = {"shuffle": True, "seed": 3, "device": "cpu", "tuning": QUICK}
    with DataLoader(mine, 2, columns={"x": Image("jpg", CROP), "y": Number("cls")}, **how) as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        wanted = list(batches)
    with DataLoader(other, 2, columns={"x": Image("photo", CROP), "y": Number("y")}, **how) as loader:
        loader.load_state_dict(state)
        found = list(loader)
    assert len(found) == len(wanted) == 3
    for ours, theirs in zip(found, wanted, strict=True):
        assert (ours["x"] == theirs["x"]).all()
        assert (ours["y"] == theirs["y"]).all()


def test_fields_without_columns_have_their_names_too(tmp_path: Path) -> None:
    """Of sources whose labels are called differently."""
    mine, _ = sets(tmp_path)
    source = Renamed(mine, {"label": "y"})
    assert source.fields == ("y",)
    block = source.reader().read(Extents.one(0, 0, 7))
    assert block.fields["y"].tolist() == [*range(7)]
    assert source.where(0, 3) == mine.where(0, 3)
    assert source.snapshot().fingerprint == mine.snapshot().fingerprint


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ({}, "names must map members to new names"),
        ({"a": "b;c"}, "names must map members to new names"),
        ({"a": ""}, "names must map"),
        ("jpg", "names must map"),
        ({"a": "x", "b": ".x"}, 'two members must not become one; found .* twice; give {"one;other"'),
    ],
)
def test_names_that_cannot_be_are_refused(tmp_path: Path, names: Any, said: str) -> None:
    """With what they look like."""
    with pytest.raises(ConfigError, match=said):
        Renamed(sets(tmp_path)[0], names)


def test_what_is_asked_for_by_an_old_name_is_told_the_new_one(tmp_path: Path) -> None:
    """And a name that the source has not is told with the source's own."""
    mine, _ = sets(tmp_path)
    source = Renamed(mine, {"jpg": "photo", "cls;class": "y"})
    with pytest.raises(
        ConfigError, match="member 'jpg': must have the name that Renamed gives it; 'jpg' is 'photo' here"
    ):
        source.giving("jpg", ())
    table = make("mds", tmp_path)
    with pytest.raises(ConfigError, match=r"Renamed\(MDS\(.*\), label as y\): with the source's own names: member"):
        Renamed(table, {"label": "y"}).giving("none", ())
    with pytest.raises(ConfigError, match="source must be a bounded source"):
        Renamed(3, {"a": "b"})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="must list the members of its records; .* does not; leave columns out"):
        Renamed(ScriptedSource([jpeg(0)]), {"a": "b"}).giving(None, ("b",))
