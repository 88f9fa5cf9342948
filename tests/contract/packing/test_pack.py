"""Packing: what becomes of a source's records, the same whoever writes it and however often it is killed."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from kit.blocks import rows
from kit.images import jpeg
from kit.inside import Gap, write_shard
from kit.killed_pack import contents, killed_at, packed
from kit.member_shards import shards
from PIL import Image

from dali_feed.errors import ConfigError, DataLostError, SourceChangedError, SourceEmptyError, StateError
from dali_feed.external_sources import MDS, Arrays, FileList, ShardSet, Table
from dali_feed.packing import index, merge, pack, split
from dali_feed.testing import ScriptedSource


def in_tars(folder: Path) -> list[tuple[str, bytes]]:
    """Names and bytes of all members of all shards, in order, as tarfile has them."""
    found = []
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as tar:
            found += [(info.name, tar.extractfile(info).read()) for info in tar]  # type: ignore[union-attr]
    return found


def files(folder: Path, count: int = 20) -> Path:
    """A flat folder of files."""
    (folder / "files").mkdir()
    for k in range(count):
        (folder / "files" / f"{k:03d}.jpg").write_bytes(jpeg(k % 16, 16, 16))
    return folder / "files"


def test_the_same_bytes_whatever_the_workers(tmp_path: Path) -> None:
    """One thread and four write the same set, in shards of about the size that was asked for."""
    source = FileList(sorted(map(str, files(tmp_path).iterdir())))
    for workers in (1, 4):
        done = pack(source, tmp_path / str(workers) / "x.dfset", shard_bytes=7000, workers=workers)
        assert (done.total, done.done, done.tally.records, done.tally.failed) == (20, 20, 20, 0)
        assert 2 <= done.shards <= 5
    assert contents(tmp_path / "1") == contents(tmp_path / "4")
    assert [name for name, _ in in_tars(tmp_path / "1")] == [f"{k:03d}.jpg" for k in range(20)]


@pytest.mark.usefixtures("warm_children")
def test_a_killed_run_goes_on_and_ends_with_the_same_set(tmp_path: Path) -> None:
    """Killed while it writes, syncs or renames, and run again: no file differs, none is left over."""
    folder = files(tmp_path)
    packed(folder, tmp_path / "whole" / "x.dfset")
    whole = contents(tmp_path / "whole")
    for step in (8, 26, 39):
        out = tmp_path / str(step) / "x.dfset"
        assert killed_at(step, folder, out)
        packed(folder, out)
        assert contents(out.parent) == whole
    assert not killed_at(10_000, folder, tmp_path / "whole" / "x.dfset")
    assert contents(tmp_path / "whole") == whole


def test_all_members_of_a_tar_sample_stay_as_they_are(tmp_path: Path) -> None:
    """Keys, suffixes and bytes; of those that were asked for alone, under the suffixes that were asked for."""
    source = shards(tmp_path, 6)
    pack(source, tmp_path / "all")
    found = dict(in_tars(tmp_path / "all"))
    with tarfile.open(tmp_path / "0.tar") as tar:
        assert all(found[info.name] == tar.extractfile(info).read() for info in tar)  # type: ignore[union-attr]
    assert len(found) == 6 * 5
    pack(source, tmp_path / "some", members={"caption.txt": "txt", "cls": "cls"}, keys="number")
    assert in_tars(tmp_path / "some")[2:4] == [
        ("000000001.caption.txt", "sample 2 é".encode()),
        ("000000001.cls", b"2"),
    ]


def test_shards_that_count_from_the_start_again_keep_their_samples_apart(tmp_path: Path) -> None:
    """Keys that two shards have are put behind the shard's name; within a shard two of one key are refused."""
    for name in "ab":
        write_shard(tmp_path / f"{name}.tar", [{"bin": name.encode()}, {"bin": b"2"}])
    pack(ShardSet(str(tmp_path / "?.tar")), tmp_path / "set")
    assert [name for name, _ in in_tars(tmp_path / "set")] == [
        "a/00000000.bin", "a/00000001.bin", "b/00000000.bin", "b/00000001.bin",
    ]  # fmt: skip
    with pytest.raises(ConfigError, match=r"no two samples of a shard may have one key; found '00000000' twice"):
        pack(ShardSet(str(tmp_path / "?.tar")), tmp_path / "own", keys="own")


def test_a_record_that_cannot_be_written_is_counted(tmp_path: Path) -> None:
    """It costs itself, and is told with its coordinates and the reason, after a resume too."""
    folder = files(tmp_path, 4)
    (folder / "001.jpg").write_bytes(b"no image")
    (folder / "002.jpg").unlink()
    source = FileList([str(folder / f"{k:03d}.jpg") for k in range(4)])
    for _ in range(2):
        done = pack(source, tmp_path / "set", resize=8)
        assert (done.tally.records, done.tally.failed) == (2, 2)
        told = "\n".join(first for kind in done.tally.failures.values() for first in kind.first)
        assert "001.jpg: UnidentifiedImageError" in told
        assert "002.jpg: " in told


def test_images_are_made_smaller_and_decoded_and_texts_tokenized(tmp_path: Path) -> None:
    """Resize and decoded give PPM of the size that was asked for; tokens are int64 of the text."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"one": 1, "two": 2, "?": 0}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "t.json"))
    write_shard(tmp_path / "a.tar", [{"jpg": jpeg(1, 40, 60), "txt": b"two one one"}])
    pack(ShardSet(tmp_path / "a.tar"), tmp_path / "set", resize=20, decoded=True, tokens=tmp_path / "t.json")
    found = dict(in_tars(tmp_path / "set"))
    with Image.open(io.BytesIO(found["00000000.ppm"])) as image:
        assert (image.format, image.size) == ("PPM", (30, 20))
    assert np.load(io.BytesIO(found["00000000.tokens.npy"])).tolist() == [2, 1, 1]
    assert "00000000.jpg" not in found


def test_rows_of_tables_and_datasets_are_packed(tmp_path: Path) -> None:
    """Images by what they are, labels as cls, texts, lists and numbers each as the file that others would read."""
    import datasets

    rows = {
        "image": [{"bytes": jpeg(k, 16, 16), "path": None} for k in range(3)],
        "label": [2, 0, 1],
        "caption": ["a", "é", "c"],
        "vector": [[1.0, 2.0], [3.0], []],
    }
    dataset = datasets.Dataset.from_dict(rows).cast_column("image", datasets.Image()).select([2, 0])
    pack(dataset, tmp_path / "set")
    found = dict(in_tars(tmp_path / "set"))
    assert found["000000000.jpg"] == jpeg(2, 16, 16)
    assert (found["000000000.cls"], found["000000001.cls"]) == (b"1", b"2")
    assert found["000000000.caption.txt"] == b"c"
    assert np.load(io.BytesIO(found["000000001.vector.npy"])).tolist() == [1.0, 2.0]
    assert len(found) == 2 * 4


def test_a_set_under_way_goes_on_with_its_own_source_and_options_alone(tmp_path: Path) -> None:
    """Others are refused with what differs, and files that no run is responsible for are not replaced."""
    folder = files(tmp_path, 3)
    source = FileList(sorted(map(str, folder.iterdir())))
    pack(source, tmp_path / "set", shard_bytes=5000)
    with pytest.raises(StateError, match="shard_bytes: 5000, found 6000"):
        pack(source, tmp_path / "set", shard_bytes=6000)
    with pytest.raises(SourceChangedError, match="a set must be packed from one source"):
        pack(FileList(source.paths[:2]), tmp_path / "set", shard_bytes=5000)
    pack(source, tmp_path / "map", map=lambda image: image + b"1")
    assert pack(source, tmp_path / "map", map=lambda image: image + b"1").begun == 3
    with pytest.raises(StateError, match="changes: "):
        pack(source, tmp_path / "map", map=lambda image: image + b"2")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "other-000000.tar").write_bytes(b"somebody's")
    with pytest.raises(ConfigError, match="must not replace files that are there; found other-000000.tar"):
        pack(source, tmp_path / "other")
    assert json.dumps(sorted(path.name for path in (tmp_path / "other").iterdir())) == '["other-000000.tar"]'


@pytest.mark.usefixtures("warm_children")
def test_what_a_killed_run_kept_is_used_only_as_it_was(tmp_path: Path) -> None:
    """A receipt with a flipped digit is none, and its shard is written again; such a plan is an error that says so."""
    folder = files(tmp_path)
    packed(folder, tmp_path / "whole" / "x.dfset")
    for n, name in enumerate(("000000.json", "plan.json")):
        for step in range(26, 60):  # two threads write shards, and which of their steps it is, varies
            out = tmp_path / f"{n}-{step}" / "x.dfset"
            assert killed_at(step, folder, out)
            path = out.parent / ".x.packing" / name
            if path.exists():
                break
        held = path.read_bytes()
        digit = next(k for k, byte in enumerate(held) if chr(byte) in "2345678" and chr(held[k - 1]) in "0123456789")
        path.write_bytes(held[:digit] + bytes([held[digit] ^ 1]) + held[digit + 1 :])
        if name == "plan.json":
            with pytest.raises(
                StateError, match=r"must be the plan of a run .*; found: its SHA-256 is another; remove "
            ):
                packed(folder, out)
            continue
        packed(folder, out)
        assert contents(out.parent) == contents(tmp_path / "whole")


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
