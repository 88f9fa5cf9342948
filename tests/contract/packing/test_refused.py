"""What cannot be packed, converted, merged or split: told at once by its option, or counted as one record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from kit.blocks import rows
from kit.images import jpeg
from kit.inside import Gap, write_shard
from kit.member_shards import shards

from dali_feed.errors import ConfigError, DataLostError, SourceEmptyError
from dali_feed.external_sources import MDS, Arrays, FileList, ShardSet, Table
from dali_feed.packing import index, merge, pack, split
from dali_feed.testing import ScriptedSource


def told(done: Any) -> str:
    """Every failure with its place."""
    return "\n".join(first for kind in done.tally.failures.values() for first in kind.first)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"workers": 0}, "workers: must be 1 or more; found 0"),
        ({"shard_bytes": 0}, "shard_bytes: must be 1 or more; found 0"),
        ({"members": "jpg"}, "members: must be names of members, or a mapping of suffixes to them; found 'jpg'"),
        ({"members": []}, r"members: must be names of members, or a mapping of suffixes to them; found \[\]"),
        ({"keys": "mine"}, "keys: must be one of .*; found 'mine'"),
        ({"map": bytes, "quality": 80}, "map: takes the place of resize and quality; .* leave one out"),
    ],
)
def test_an_option_that_cannot_be_is_refused(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    """Before anything is written."""
    source = shards(tmp_path, 2)
    with pytest.raises(ConfigError, match=said):
        pack(source, tmp_path / "out" / "x.dfset", **options)
    assert not list(tmp_path.glob("out/*"))


def test_a_set_is_no_shard(tmp_path: Path) -> None:
    """A name that ends as a shard does would be that of a folder of shards."""
    with pytest.raises(ConfigError, match=r"out: must be a folder, or FOLDER/NAME.dfset; found .*x.tar'"):
        pack(shards(tmp_path, 2), tmp_path / "x.tar")


def test_a_place_that_is_a_file_is_refused(tmp_path: Path) -> None:
    """A set and a conversion need a folder: what stands in its place is named, and left as it is."""
    (tmp_path / "file").write_text("mine")
    source = shards(tmp_path, 2)
    with pytest.raises(ConfigError, match=r"file is a file; give another name, or move it away"):
        pack(source, tmp_path / "file" / "x.dfset")
    with pytest.raises(ConfigError, match=r"file is a file; give another name, or move it away"):
        pack(source, tmp_path / "file" / "out", to="mds")
    assert (tmp_path / "file").read_text() == "mine"


def test_nothing_is_no_set(tmp_path: Path) -> None:
    """A source without a record is refused, by pack and by convert."""
    empty = ScriptedSource([])
    with pytest.raises(SourceEmptyError, match="a set must hold records; found none"):
        pack(empty, tmp_path / "a" / "x.dfset")
    with pytest.raises(SourceEmptyError, match="what is converted must hold records; found none"):
        pack(empty, tmp_path / "b", to="mds")
    with pytest.raises(ConfigError, match="shard_bytes: must be 1 or more; found 0"):
        pack(empty, tmp_path / "b", to="mds", shard_bytes=0)


def test_positions_without_a_record_are_counted(tmp_path: Path) -> None:
    """A hole of a source is no failure: the others are written, by pack and by convert."""
    source = ScriptedSource([(jpeg(0), 0), Gap(), (jpeg(1), 1)])
    for done in (pack(source, tmp_path / "a" / "x.dfset"), pack(source, tmp_path / "b", to="mds")):
        assert (done.tally.records, done.tally.absent, done.tally.failed) == (2, 1, 0)


def test_two_members_of_one_name_are_a_bad_record(tmp_path: Path) -> None:
    """A record's own members alone count: another, which has one of the two, is written; the cure is members=."""
    table = pa.table({"a b": ["1", "2"], "a_b": [None, "3"]})
    done = pack(Table(table, None), tmp_path / "out" / "x.dfset", keys="number")
    assert (done.tally.records, done.tally.failed) == (1, 1)
    assert "two of its members would both be .a_b.txt; say which by members=" in told(done)
    table = pa.table({"x": [1, 2], "cls": [7, 8], "label": [None, 9]})
    done = pack(Table(table, None), tmp_path / "mds", to="mds")
    assert (done.tally.records, done.tally.failed) == (1, 1)
    assert "two of its members would both be 'label'; say which by members=" in told(done)


def test_a_record_without_what_is_written_is_bad(tmp_path: Path) -> None:
    """A sample that has none of the members that were asked for has nothing to be."""
    write_shard(tmp_path / "a.tar", [{"jpg": jpeg(0), "txt": b"1"}, {"jpg": jpeg(1)}])
    done = pack(ShardSet(str(tmp_path / "a.tar"), label=None), tmp_path / "out" / "x.dfset", members=["txt"])
    assert "a.tar#1: none of the members that are written" in told(done)


def test_values_of_a_table_that_no_format_holds_are_bad_records(tmp_path: Path) -> None:
    """Text that is no UTF-8 costs its own record, and is told with its member."""
    table = pa.table({"image": [jpeg(0), jpeg(1)], "txt": [b"fine", b"\xff\xfe"], "y": [1, 2]})
    done = pack(Table(table), tmp_path / "mds", to="mds")
    assert (done.tally.records, done.tally.failed) == (1, 1)
    assert "member 'txt': must be UTF-8" in told(done)


def test_arrays_are_written_with_their_shape(tmp_path: Path) -> None:
    """Rows of numbers are columns of MDS with dtype and shape, which its reader gives back."""
    held = np.arange(12, dtype=np.float32).reshape(3, 4)
    pack(Arrays(held, label=np.arange(3)), tmp_path / "m", to="mds", members={"x": "row", "label": "label"})
    told = json.loads((tmp_path / "m" / "index.json").read_text())["shards"][0]
    assert dict(zip(told["column_names"], told["column_encodings"], strict=True))["x"] == "ndarray:float32:4"
    np.testing.assert_array_equal(np.stack([row["x"] for row in rows(MDS(tmp_path / "m"), "x")]), held)


def test_a_merge_takes_sets_that_are_there(tmp_path: Path) -> None:
    """Two or more, each once, and every shard of them."""
    for name in ("a", "b"):
        pack(shards(tmp_path, 4), tmp_path / name / f"{name}.dfset")
    a, b = (tmp_path / name / f"{name}.dfset" for name in "ab")
    for sets in ([], [a], [a, b, a]):
        with pytest.raises(ConfigError, match="merge: takes two or more different sets"):
            merge(sets, tmp_path / "out" / "x.dfset")
    next((tmp_path / "b").glob("*.tar")).unlink()
    with pytest.raises(DataLostError, match="a shard must exist to be merged; it was removed; put it back"):
        merge([a, b], tmp_path / "out" / "x.dfset")


def test_an_index_is_made_of_a_whole_archive_of_its_set(tmp_path: Path) -> None:
    """Bytes behind the archive, or other samples than the manifest's, are refused."""
    made = pack(shards(tmp_path, 4), tmp_path / "set" / "x.dfset")
    (tar,) = (tmp_path / "set").glob("*.tar")
    whole = tar.read_bytes()
    write_shard(tmp_path / "other.tar", [{"jpg": jpeg(9), "cls": b"1"}])
    tar.write_bytes((tmp_path / "other.tar").read_bytes())
    with pytest.raises(DataLostError, match=f"{tar.name}: "):
        index(made.path)
    tar.write_bytes(whole + b"more" * 128)
    with pytest.raises((ConfigError, DataLostError), match=f"{tar.name}: "):
        index(made.path)


def test_a_part_of_a_split_without_a_record_is_refused(tmp_path: Path) -> None:
    """A share so small that nothing falls into it."""
    with pytest.raises(ConfigError, match="split: each part must get at least one record; 'none' gets none of 4"):
        split(shards(tmp_path, 4), tmp_path / "out", {"all": 0.999999, "none": 0.000001})


def test_a_bad_record_of_a_part_has_its_place_in_the_source(tmp_path: Path) -> None:
    """Parts of a split name records as the source that was split does."""
    paths = [tmp_path / f"{k}.jpg" for k in range(4)]
    for path in paths[1:]:
        path.write_bytes(jpeg(0))
    done = split(FileList(list(map(str, paths))), tmp_path / "out", {"all": 4})["all"]
    assert (done.tally.records, done.tally.failed) == (3, 1)
    assert f"{paths[0]}: " in told(done)
