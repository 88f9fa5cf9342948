"""A cache of records on a disk: the same batches with and without, and what is kept from run to run."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import named_rows
from kit.cached_feeds import epochs, feed, keys, scripted, without
from kit.images import jpeg, labelled, seen
from kit.inside import write_shard
from kit.member_shards import shards
from kit.web import Web
from torchvision.transforms import v2

from dali_feed import Cache
from dali_feed.columns import Image, JsonValue, Text
from dali_feed.errors import ConfigError
from dali_feed.external_sources import ShardSet
from dali_feed.testing import ScriptedSource

CROP = v2.RandomResizedCrop(16, scale=(0.3, 1.0))


@pytest.mark.parametrize(
    "options",
    [
        {"disk_limit": "1GB"},
        {"disk_limit": "1GB", "memory": 20_000},
        {"disk_limit": 30_000},
        {"disk_limit": "1GB", "pixels": True},
        {"disk_limit": 40_000, "memory": 50_000, "pixels": True},
    ],
    ids=["disk", "few in memory", "few", "pixels", "few pixels"],
)
def test_a_batch_does_not_see_it(tmp_path: Path, options: dict[str, Any]) -> None:
    """Ids, labels, holes, replacements and pixels are those of a run without one, in a second run too."""
    for _ in range(2):
        assert epochs(feed(scripted(), Cache(disk=tmp_path / "rows", **options))) == without()


@pytest.mark.parametrize("pixels", [False, True])
def test_a_later_run_reads_what_is_bad_and_nothing_else(tmp_path: Path, pixels: bool) -> None:
    """It finds what the first one kept, and says so."""
    cache = Cache(disk=tmp_path, disk_limit="1GB", pixels=pixels)
    epochs(feed(scripted(), cache))
    source = scripted()
    with feed(source, cache) as made:
        for _ in made:
            pass
        found = made.stats().cache
    bad = {(0, 20), (0, 21)} if pixels else {(0, 21)}
    assert {(p, k) for p, start, stop in source.reads for k in range(start, stop)} == bad
    assert found is not None
    assert (found.disk_records, found.records, found.damaged) == (48 - len(bad), 0, 0)
    assert 0 < found.disk_held < found.disk_limit == 10**9
    assert "on the disk 4" in str(found)


def test_two_runs_at_once_share_what_they_read(tmp_path: Path) -> None:
    """From its next pass on each finds what the other has kept."""
    cache = Cache(disk=tmp_path, disk_limit="1GB")
    mine = scripted()
    with feed(mine, cache) as one:
        next(iter(one))  # it has begun, and found nothing
        one.set_epoch(1)
        epochs(feed(scripted(), cache))
        before = len(mine.reads)
        for _ in one:
            pass
    assert {(p, k) for p, start, stop in mine.reads[before:] for k in range(start, stop)} <= {(0, 21)}


def test_columns_come_out_of_it(tmp_path: Path) -> None:
    """Members of a record, by a second run that reads none."""
    columns = {"image": Image("jpg", CROP), "text": Text("txt"), "data": JsonValue("json")}
    found = []
    cache = Cache(disk=tmp_path / "rows", disk_limit="1GB")
    for each in (None, cache, cache):
        with feed(shards(tmp_path), each, transform=None, columns=columns) as made:
            found.append([(batch.ids.tolist(), batch.fields["text"], batch.fields["data"]) for batch in made])
            stats = made.stats().cache
    assert found[0] == found[1] == found[2]
    assert stats is not None
    assert (stats.misses, stats.hits) == (0, 24)


def test_what_is_read_otherwise_is_kept_apart(tmp_path: Path) -> None:
    """Other labels of the same files, another version of them: nothing of one is given to another."""
    samples = [{"jpg": jpeg(n), "cls": b"%d" % n, "json": b'{"y": %d}' % (n + 10)} for n in range(8)]
    write_shard(tmp_path / "a.tar", samples)

    def labels(**options: Any) -> list[int]:
        source = ShardSet(tmp_path / "a.tar", **options)
        with feed(source, Cache(disk=tmp_path / "rows", disk_limit="1GB"), shuffle=False) as made:
            return [int(label) for batch in made for label in batch.fields["label"]]

    for _ in range(2):
        assert labels() == [*range(8)]
        assert labels(label="json:y") == [*range(10, 18)]
    write_shard(tmp_path / "a.tar", [{"jpg": jpeg(n), "cls": b"%d" % (7 - n)} for n in range(8)])
    assert labels() == [*range(7, -1, -1)]


def test_remote_shards_are_asked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second run asks the server for no range; and of an object that was written again it has the new records."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))

    def write(first: int) -> bytes:
        write_shard(tmp_path / "a.tar", [{"jpg": jpeg(n), "cls": b"%d" % (first + n)} for n in range(8)])
        return (tmp_path / "a.tar").read_bytes()

    def labels() -> list[int]:
        cache = Cache(disk=tmp_path / "rows", disk_limit="1GB")
        with feed(ShardSet(f"{web.url}/a.tar"), cache, shuffle=False) as made:
            return [int(label) for batch in made for label in batch.fields["label"]]

    with Web({"a.tar": write(0)}) as web:
        web.faults["a.tar"].extend(["503", "short"])
        assert labels() == [*range(8)]
        web.requests.clear()
        assert labels() == [*range(8)]
        assert web.ranges("a.tar") == []
        web.files["a.tar"] = write(1)
        assert labels() == [*range(1, 9)]


def test_a_source_has_one_name_in_all_processes(tmp_path: Path) -> None:
    """Whatever it has read before, and however Python orders its sets: else nothing would ever be found."""
    mine = keys(tmp_path)
    assert len(set(mine.values())) == len(mine)
    done = subprocess.run(
        [sys.executable, "-P", named_rows.__file__, str(tmp_path)],
        env=os.environ | {"PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == mine


def test_code_of_the_users_own_is_refused(tmp_path: Path) -> None:
    """A folder cannot know that a function has changed."""

    class Mine(ScriptedSource):
        pass

    refused = pytest.raises(ConfigError, match=r"reads with your own code, .*Mine, and a folder cannot know")
    with feed(Mine(labelled(8)), Cache(disk=tmp_path, disk_limit="1GB")) as made, refused:
        next(iter(made))


@pytest.mark.usefixtures("warm_children")
@pytest.mark.slow
def test_a_killed_run_leaves_what_it_had_kept(tmp_path: Path) -> None:
    """Killed while it writes, at any step: the next run has the same batches, and reads less."""
    command = [sys.executable, "-P", keys.__code__.co_filename, str(tmp_path)]
    for step in (1, 20):
        done = subprocess.run([*command, str(step)], capture_output=True, check=False)
        assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    source = scripted()
    assert epochs(feed(source, Cache(disk=tmp_path, disk_limit="1GB"))) == without()
    assert len(source.reads) < 3 * 48 / 2


def test_any_damage_costs_a_read_and_never_a_batch(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Any byte of any file flipped, and each cut anywhere; one warning in a run, and the rest is counted."""
    whole = tmp_path / "whole"
    epochs(feed(scripted(), Cache(disk=whole, disk_limit="1GB")))
    rng = np.random.default_rng(0)
    files = list(whole.rglob("*.sqlite"))
    assert len(files) == 1
    damaged = 0
    for path in files * 12:
        shutil.rmtree(tmp_path / "harmed", ignore_errors=True)
        shutil.copytree(whole, tmp_path / "harmed")
        held = bytearray(path.read_bytes())
        if rng.random() < 0.3:
            del held[int(rng.integers(len(held))) :]
        for at in rng.integers(len(held), size=min(len(held), 30)).tolist():
            held[at] ^= int(rng.integers(1, 256))
        (tmp_path / "harmed" / path.relative_to(whole)).write_bytes(held)
        caplog.clear()
        with feed(scripted(), Cache(disk=tmp_path / "harmed", disk_limit="1GB")) as made:
            assert list(map(seen, made)) == without()[:6]
            stats = made.stats().cache
        assert stats is not None
        damaged += stats.damaged
        told_of = [each for each in caplog.records if "is damaged, and is read again" in each.message]
        assert len(told_of) == min(1, stats.damaged)
    assert damaged > 10


def test_what_was_mended_stays_mended(tmp_path: Path) -> None:
    """A damaged record is kept again, and the run behind finds that one."""
    cache = Cache(disk=tmp_path, disk_limit="1GB")
    epochs(feed(scripted(), cache))
    (rows,) = tmp_path.glob("rows-*/*.sqlite")
    held = bytearray(rows.read_bytes())
    held[held.rindex(b"\xff\xd8\xff") + 40] ^= 1  # of some record's image
    rows.write_bytes(held)
    found = []
    for _ in range(2):
        with feed(scripted(), cache) as made:
            for _ in made:
                pass
            stats = made.stats().cache
            assert stats is not None
            found.append(stats.damaged)
    assert found == [1, 0]


def test_without_its_folder_batches_are_the_same(tmp_path: Path) -> None:
    """One that goes away, or fails, costs speed; one that cannot be is told before anything is read."""
    with feed(scripted(), Cache(disk=tmp_path / "rows", disk_limit="1GB")) as made:
        found = []
        for n in range(3):
            found += list(map(seen, made))
            if not n:
                shutil.rmtree(tmp_path / "rows")
    assert found == without()
    (tmp_path / "file").write_bytes(b"")
    refused = pytest.raises(ConfigError, match=r"Cache\(disk=.*file'\): must be a folder that can be written")
    with feed(scripted(), Cache(disk=tmp_path / "file", disk_limit="1GB")) as made, refused:
        next(iter(made))
