"""Shards that were cut, and indexes with checksums that are not theirs any more: nothing of it goes unsaid."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from kit.images import jpeg

from dali_feed.errors import DataLostError, SourceError
from dali_feed.external_sources import ShardSet
from dali_feed.external_sources.tar import SUFFIX
from dali_feed.packing import index
from dali_feed.testing.shards import write_shard


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A shard of six samples."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_shard(tmp_path / "a.tar", [{"jpg": jpeg(n), "cls": b"%d" % n} for n in range(6)])
    return tmp_path / "a.tar"


def test_a_shard_that_is_cut_anywhere_is_told(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By an error; where it is cut between members, as an old archive may end there, by a warning."""
    whole = path.read_bytes()
    end = len(whole.rstrip(b"\0")) // 512 * 512 + 512
    warned = 0
    for at in range(64, end, 64):
        path.with_name(path.name + SUFFIX).unlink(missing_ok=True)
        path.write_bytes(whole[:at])
        caplog.clear()
        try:
            ShardSet(path).snapshot()
        except DataLostError:
            continue
        assert at % 512 == 0
        assert f"there is no end-of-archive mark after its last sample: was the file cut at byte {at}?" in (caplog.text)
        warned += 1
        caplog.clear()
        assert len(ShardSet(path).snapshot())  # by the index that was kept
        assert "was the file cut" in caplog.text
    assert warned > 5
    path.write_bytes(whole)
    caplog.clear()
    assert len(ShardSet(path).snapshot()) == 6
    assert not caplog.text


@pytest.mark.parametrize("how", ["cut", "longer", "damaged"])
def test_an_index_with_checksums_that_is_not_the_shards_is_told(
    path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    """Nothing is compared then: so it is said at each start, and the index stays for who looks; a new one ends it."""
    index(path)
    beside, whole = path.with_name(path.name + SUFFIX), path.read_bytes()
    if how == "damaged":
        held = bytearray(beside.read_bytes())
        held[-3] ^= 1
        beside.write_bytes(held)
    else:
        path.write_bytes(whole[: 512 * 4] + bytes(1024) if how == "cut" else whole + bytes(512))
    kept = beside.read_bytes()
    said = "damaged" if how == "damaged" else f"of a shard of {len(whole)} bytes, and this shard has "
    for _ in range(2):
        caplog.clear()
        ShardSet(path).snapshot()
        (record,) = caplog.records
        assert f"the index with checksums beside it is {said}" in record.message
        assert "nothing is compared until `dali-feed index` has run" in record.message
        assert beside.read_bytes() == kept
    index(path)
    caplog.clear()
    ShardSet(path).snapshot()
    assert not caplog.text


@pytest.mark.parametrize(("what", "cure"), [("pipe", "write it into a file"), ("folder", "name the files in it")])
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, what: str, cure: str) -> None:
    """A pipe, as a shell makes of `<(zcat a.tar.gz)`, is not waited for, and a matched folder not read."""
    path = tmp_path / "a.tar"
    if what == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    with pytest.raises(SourceError, match=f"a shard must be a file, to be read by position; found a {what}; {cure}"):
        ShardSet(str(tmp_path / "*.tar")).snapshot()
