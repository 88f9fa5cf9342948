"""ShardSet: tar files read by position."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.blocks import Reads, columns_of, pictures, read_sizes
from kit.inside import Extents, write_shard
from kit.properties import examples
from kit.s3 import S3Server, unavailable
from obstore.store import S3Store

from dali_feed.columns import Bytes
from dali_feed.errors import (
    ClosedError,
    ConfigError,
    SourceChangedError,
    SourceDeniedError,
    SourceNotFoundError,
)
from dali_feed.external_sources import Secret, ShardSet

pytestmark = pytest.mark.usefixtures("cache_home")


records = st.lists(st.tuples(st.binary(max_size=2000), st.integers(-(2**63), 2**63 - 1)), min_size=1, max_size=30)


@examples(times=0.8)
@given(records=records, data=st.data())
def test_what_was_written_is_read_in_any_order(records: list[tuple[bytes, int]], data: st.DataObject) -> None:
    """Any extents of any shards give exactly the records that were written there."""
    with tempfile.TemporaryDirectory() as folder:
        half = len(records) // 2
        parts = [p for p in (records[:half], records[half:]) if p]
        paths = [Path(folder, f"{k}.tar") for k in range(len(parts))]
        for path, part in zip(paths, parts, strict=True):
            assert write_shard(path, part) == len(part)
        source = ShardSet(paths, label="cls")
        assert [(p, label) for p, label, _ in pictures(source)] == records
        runs = data.draw(
            st.lists(
                st.integers(0, len(parts) - 1).flatmap(
                    lambda p: st.tuples(st.just(p), st.integers(0, len(parts[p])), st.integers(0, len(parts[p])))
                ),
                max_size=8,
            )
        )
        runs = [(p, min(a, b), max(a, b)) for p, a, b in runs]
        found = pictures(source, Extents(*np.array(runs, np.int64).reshape(-1, 3).T))
        assert [(p, label) for p, label, _ in found] == [r for p, a, b in runs for r in parts[p][a:b]]


def test_labels_from_cls_and_json(tmp_path: Path) -> None:
    """Text, JSON and a key of one's own are read; "auto" takes what the first sample has."""
    write_shard(tmp_path / "cls.tar", [{"jpg": b"a", "cls": b" 7\n", "json": b'{"label": 1}'}])
    write_shard(tmp_path / "json.tar", [{"json": b'{"label": 8, "fine": -9}', "png": b"b"}])
    write_shard(tmp_path / "other.tar", [{"jpg": b"c", "json": b'{"caption": "no label here"}'}])
    write_shard(tmp_path / "bare.tar", [b"d"])
    cases = [
        ("cls", "auto", 7), ("cls", "json", 1), ("cls", None, None), ("json", "auto", 8),
        ("json", "json:fine", -9), ("other", "auto", None), ("bare", "auto", None),
    ]  # fmt: skip
    for name, label, want in cases:
        source = ShardSet(tmp_path / f"{name}.tar", label=label)
        assert [(found, fault) for _, found, fault in pictures(source)] == [(want, None)]
        assert tuple(source.preset) == (("image",) if want is None else ("image", "label"))


def columns(path: Path, **options: Any) -> list[tuple[Any, Any, str | None]]:
    """Image, label and what is wrong, of every sample; no image is screened."""
    source = ShardSet(path, **options)
    block = columns_of(source, {"image": Bytes("jpg"), "label": source.preset["label"]})
    found = zip(block.values["image"], block.values["label"].tolist(), strict=True)
    return [
        (None, None, f"{block.faults[k].member}: {block.faults[k].reason}")
        if k in block.faults
        else (bytes(image), label, None)
        for k, (image, label) in enumerate(found)
    ]


def test_a_sample_without_image_or_with_a_bad_label_costs_its_own_row(tmp_path: Path) -> None:
    """Each fault is a reason in its row, and the rows around it are whole."""
    path = tmp_path / "a.tar"
    deep = b"[" * 100_000
    bad = [b"seven", b"", b"1_0", b"7.5", b"9" * 30, b"9" * 5000, b"\xff"]
    good = {"jpg": b"good", "cls": b"3"}
    write_shard(path, [good, {"cls": b"1"}, {"jpg": b"lone"}, *({"jpg": b"pic", "cls": text} for text in bad), good])
    found = columns(path)
    assert found[0] == found[-1] == (b"good", 3, None)
    assert all(fault is not None for _, _, fault in found[1:-1])
    assert "jpg" in str(found[1][2])
    assert all("label" in str(fault) for _, _, fault in found[2:-1])
    texts = [b"{", deep, b"[1]", b'{"label": "x"}', b'{"label": 1.5}', b"{}", b"\xff\xfe"]
    write_shard(path, [{"jpg": b"pic", "json": text} for text in texts])
    assert all("label" in str(fault) for _, _, fault in columns(path, label="json"))


def test_a_gif_or_avif_is_the_image_where_there_is_no_other(tmp_path: Path) -> None:
    """The suffixes that every engine takes come first; a sample that has none of them still has its image."""
    both = {"gif": b"GIF", "jpg": b"JPEG"}
    write_shard(tmp_path / "s.tar", [both, {"gif": b"GIF"}, {"avif": b"AVIF"}])
    assert [payload for payload, _, _ in pictures(ShardSet(str(tmp_path / "s.tar")))] == [b"JPEG", b"GIF", b"AVIF"]


def test_a_label_far_from_its_image_is_read_on_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large member between the two is not read, and a sample with several images gives the foremost suffix."""
    path = tmp_path / "a.tar"
    wide = {"png": b"second", "jpg": b"first", "npy": bytes(200_000), "cls": b"5"}
    write_shard(path, [wide, wide])
    with monkeypatch.context() as patch:
        sizes = read_sizes(patch)
        assert pictures(ShardSet(path)) == [(b"first", 5, None)] * 2
    assert sorted(sizes) == [1, 1, 5, 5]
    assert pictures(ShardSet(path, image=["npy"], label=None)) == [(bytes(200_000), None, None)] * 2
    assert pictures(ShardSet(path, image=["PNG", "jpg"])) == [(b"second", 5, None)] * 2


def test_the_snapshot_tells_sizes_and_a_fingerprint_of_the_contents(tmp_path: Path) -> None:
    """It is the same for the same bytes at another time and place, and another for other sizes or samples."""
    (tmp_path / "copy").mkdir()
    for path in (tmp_path / "a.tar", tmp_path / "copy" / "a.tar"):
        write_shard(path, [(bytes(30_000 + 1000 * k), k) for k in range(5)])
    snapshot = ShardSet(tmp_path / "a.tar").snapshot()
    assert (snapshot.record_bytes, len(snapshot), snapshot.random_access) == (32_001, 5, True)
    assert 200 < snapshot.extent < 300
    os.utime(tmp_path / "a.tar", (1, 1))
    same = [ShardSet(p).snapshot().fingerprint for p in (tmp_path / "a.tar", tmp_path / "copy" / "a.tar")]
    assert same == [snapshot.fingerprint] * 2
    write_shard(tmp_path / "a.tar", [(bytes(30_001), 0)])
    assert ShardSet(tmp_path / "a.tar").snapshot().fingerprint != snapshot.fingerprint


def test_a_reader_keeps_few_files_open(tmp_path: Path) -> None:
    """However many shards there are at most 128 stay open, those that were used last, and none after close()."""
    for k in range(140):
        write_shard(tmp_path / f"{k:03}.tar", [(b"x", k)])
    source = ShardSet(f"{tmp_path}/*.tar")
    source.snapshot()
    reader = Reads(source)

    def read(shard: int) -> list[str]:
        block = reader.first(1, shard)
        assert int(bytes(block.values["label"][0])) == shard
        block.lease.release()
        return opened()

    def opened() -> list[str]:
        files = list[str]()
        for number in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):  # of the listing, or of another thread that has closed it
                files.append(os.readlink(f"/proc/self/fd/{number}"))
        ours = (file.rpartition("/") for file in files)
        return sorted(name.removesuffix(".tar") for folder, _, name in ours if folder == str(tmp_path))

    assert max(len(read(shard)) for shard in [*range(140)] * 2) == 128
    assert opened() == [f"{k:03}" for k in range(12, 140)]
    assert read(12)[0] == "012"
    assert read(0)[:3] == ["000", "012", "014"]
    reader.close()
    reader.close()
    assert opened() == []
    with pytest.raises(ClosedError):
        read(0)


def test_patterns(tmp_path: Path) -> None:
    """Globs, braces, ranges and lists name the files one expects, in the order one expects."""
    for k in range(12):
        write_shard(tmp_path / f"t-{k:02d}.tar", [(b"x", k)])
    (tmp_path / "u").mkdir()
    write_shard(tmp_path / "u" / "t-00.tar", [(b"y", 0)])
    t = f"{tmp_path}/t-"

    def names(shards: Any) -> list[str]:
        return [os.path.relpath(p, tmp_path)[2:4] for p in ShardSet(shards).paths]

    assert names(f"{t}*.tar") == [f"{k:02d}" for k in range(12)]
    assert names(t + "{08..11}.tar") == ["08", "09", "10", "11"]
    assert names(t + "{0,1}{1,0}.tar") == ["00", "01", "10", "11"]
    for index in (".dfidx", ".idx"):
        Path(f"{t}00.tar{index}").touch()  # an index beside its shard is no shard, ours nor another tool's
    assert names(f"{t}0[01]*") == ["00", "01"]
    assert names([f"{t}03.tar", Path(f"{t}01.tar")]) == ["03", "01"]
    twins = ShardSet([f"{t}00.tar", tmp_path / "u" / "t-00.tar", f"{t}05.tar"])
    assert twins.where(1, 7) == "u/t-00.tar#7"
    assert len(set(twins.snapshot().names)) == 3
    assert ShardSet(f"{t}05.tar").where(0, 118) == "t-05.tar#118"
    for bad, error in (
        (f"{tmp_path}/v-*.tar", SourceNotFoundError),
        (t + "{10..12}.tar", SourceNotFoundError),
        ([f"{t}01.tar", f"{t}0*.tar"], ConfigError),
        ([], ConfigError),
        (tmp_path, ConfigError),
        ("pipe:cat a.tar", ConfigError),
        (t + "{11..08}.tar", ConfigError),
    ):
        with pytest.raises(error):
            ShardSet(bad)
    with pytest.raises(SourceNotFoundError, match=r"v-\*\.tar"):
        ShardSet(f"{tmp_path}/v-*.tar")


RECORDS = [[(os.urandom(900), 30 * shard + k) for k in range(30)] for shard in range(2)]


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[S3Server, S3Store]]:
    """One server for the file, and its bucket `train`."""
    why = unavailable()
    if why is not None:
        if os.environ.get("CI") == "true":
            pytest.fail(why)
        pytest.skip(why)
    with S3Server() as server:
        yield server, server.bucket("train")


@pytest.fixture
def server(served: tuple[S3Server, S3Store], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """With two shards and the index of one of them in the bucket."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("S3_SECRET", "alice-secret")
    server, bucket = served
    for k, records in enumerate(RECORDS):
        write_shard(tmp_path / f"{k}.tar", records)
        obstore.put(bucket, f"set/{k}.tar", (tmp_path / f"{k}.tar").read_bytes())
    obstore.put(bucket, "set/0.tar.dfidx", b"no index of ours")
    return server


@pytest.fixture
def bucket(served: tuple[S3Server, S3Store]) -> S3Store:
    """The bucket."""
    return served[1]


@pytest.mark.waits
def test_shards_in_a_bucket_are_what_the_files_are(server: S3Server, bucket: S3Store, tmp_path: Path) -> None:
    """A pattern is matched by the store, and records, labels and fingerprint are those of the files."""
    source = ShardSet("s3://train/set/*.tar", storage_options=server.options(Secret(env="S3_SECRET")))
    assert source.paths == ("s3://train/set/0.tar", "s3://train/set/1.tar")
    found = source.snapshot()
    assert found.fingerprint == ShardSet(str(tmp_path / "*.tar")).snapshot().fingerprint
    reader = Reads(source)
    assert [row[:2] for row in pictures(source)] == [record for shard in RECORDS for record in shard]
    reader.first(1, 1).lease.release()
    obstore.put(bucket, "set/1.tar", bytes((tmp_path / "1.tar").stat().st_size))
    with pytest.raises(SourceChangedError, match=r"s3://train/set/1\.tar"):
        reader.first(1, 1)
    reader.first(1).lease.release()


@pytest.mark.waits
def test_what_a_bucket_refuses_and_what_it_lacks(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong secret and a missing object are told at once, and the secret is in no word of it."""
    with pytest.raises(SourceNotFoundError, match=r"2\.tar"):
        ShardSet("s3://train/set/{0..2}.tar", storage_options=server.options()).snapshot()
    monkeypatch.setenv("S3_SECRET", "another-secret")
    with pytest.raises(SourceDeniedError, match="refuses") as told:
        ShardSet("s3://train/set/0.tar", storage_options=server.options(Secret(env="S3_SECRET"))).snapshot()
    assert "another-secret" not in str(told.value)
