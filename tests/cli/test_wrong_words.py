"""Commands with arguments that cannot be: one line that says which, and what exit codes say of records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kit.command import Cli, assert_one_line, cli
from kit.images import jpeg

from dali_feed.cli.pack import members_of
from dali_feed.cli.sheet import put_whole
from dali_feed.cli.targets import storage_options_of
from dali_feed.cli.user_file import object_of
from dali_feed.errors import ConfigError, SourceError
from dali_feed.storage import lustre
from dali_feed.storage.lustre import LustreLayout, set_layout
from dali_feed.testing.shards import write_shard

__all__ = ["cli"]  # a fixture


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    """Two samples, one of whose labels is no number and whose image is none."""
    write_shard(tmp_path / "a.tar", [{"jpg": jpeg(0), "cls": b"1"}, {"jpg": b"none", "cls": b"cat"}])
    return tmp_path / "a.tar"


def test_records_that_were_not_written_are_an_exit_code(cli: Cli, shard: Path, tmp_path: Path) -> None:
    """Of pack, split and convert: 1 where one failed, so that a script stops."""
    assert cli("pack", shard, tmp_path / "p", "--resize", 8).code == 1
    assert cli("pack", shard, tmp_path / "whole").code == 0
    done = cli("convert", shard, tmp_path / "m", "--to", "mds")
    assert done.code == 1
    assert "must be a whole number; found b'cat'" in " ".join(done.out.split())


def test_one_source_at_a_time(cli: Cli, shard: Path, tmp_path: Path) -> None:
    """Shards beside a folder are two; --payload is of tar shards alone."""
    (tmp_path / "images" / "class").mkdir(parents=True)
    (tmp_path / "images" / "class" / "0.jpg").write_bytes(jpeg(0))
    done = cli("convert", shard, tmp_path / "images", tmp_path / "m", "--to", "mds")
    assert_one_line(done, "source: must be one topic, one folder, or tar shards; found")
    done = cli("produce", tmp_path / "images", "kafka://127.0.0.1:1/topic", "--payload", "jpg")
    assert_one_line(done, "--payload: is for tar shards, whose files it names; found 'jpg'")


def test_parts_have_a_name_and_a_size(cli: Cli, shard: Path, tmp_path: Path) -> None:
    """A share, a count or the rest."""
    for part in ("=5", "a/b=5", "val=few"):
        done = cli("shards", "split", shard, tmp_path / "p", "--part", part)
        assert_one_line(done, f"--part: must be NAME=SHARE, NAME=COUNT or NAME=rest; found '{part}'")


def test_members_are_names_or_suffixes_of_them() -> None:
    """Not both."""
    assert members_of("jpg, cls,") == ["jpg", "cls"]
    assert members_of("jpg=image,y=label") == {"jpg": "image", "y": "label"}
    with pytest.raises(ConfigError, match="--members: must be NAME,NAME or SUFFIX=NAME"):
        members_of("jpg=image,label")


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        (["token"], "--storage-option: must be KEY=VALUE; found 'token'"),
        (["a..b=1"], "--storage-option: must be KEY=VALUE; found 'a..b'"),
        (["headers=1", "headers.X=2"], "'headers' must have a value or parts, not both; found 'headers.X'"),
    ],
)
def test_storage_options_are_pairs(pairs: list[str], said: str) -> None:
    """Those with dots are parts of one; a name cannot be both."""
    with pytest.raises(ConfigError, match=said):
        storage_options_of(pairs)
    found: Any = storage_options_of(["headers.X=1", "headers.Y=true"])
    assert found == {"headers": {"X": "1", "Y": True}}


def test_a_file_that_is_a_folder_cannot_be_written(tmp_path: Path) -> None:
    """The option is named, and nothing is left beside it."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "file").touch()
    with pytest.raises(ConfigError, match=r"--sheet: .*out must be a file that can be written; found: Is a directory"):
        put_whole("--sheet", tmp_path / "out", b"held")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_transform_is_of_a_python_file(cli: Cli, shard: Path, tmp_path: Path) -> None:
    """A file of another ending is not run, and show says of one that fails which line it was."""
    (tmp_path / "t.txt").write_text("raise SystemExit")
    (tmp_path / "t.py").write_text("train = []\nraise SystemExit(3)")
    command = ("show", shard, "--out", tmp_path / "sheet.png")
    assert_one_line(cli(*command, "--transform", f"{tmp_path / 't.txt'}:train"), "must be FILE.py:NAME; found")
    told = "t.py must run without an error; found in line 2 SystemExit: 3"
    assert_one_line(cli(*command, "--transform", f"{tmp_path / 't.py'}:train"), told)


def test_a_users_file_may_define_dataclasses(tmp_path: Path) -> None:
    """Those with annotations as texts look for their module by its name, as where Python itself runs the file."""
    (tmp_path / "mine_of_words.py").write_text(
        "from __future__ import annotations\nimport dataclasses\n\n"
        "@dataclasses.dataclass\nclass Crop:\n    size: int = 7\n\ncrop = Crop()\n"
    )
    assert object_of("--transform", f"{tmp_path / 'mine_of_words.py'}:crop").size == 7


def test_an_lfs_that_is_no_program_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the system's word, and so is one that hangs, and a folder that cannot be made."""
    tool = tmp_path / "bin" / "lfs"
    tool.parent.mkdir()
    tool.write_bytes(b"\0no program")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent), prepend=":")
    monkeypatch.setattr(lustre, "magic_of", lambda _: lustre.MAGIC)
    layout = LustreLayout(4, 1 << 20)
    with pytest.raises(ConfigError, match=r"lfs setstripe .*: Lustre's tool must be a program; .* failed: Exec format"):
        set_layout(str(tmp_path), layout)
    tool.write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(lustre, "_SECONDS", 0.05)
    with pytest.raises(SourceError, match=r"must end in time; it took more than 0.05 seconds; check the mount"):
        set_layout(str(tmp_path), layout)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="must be a folder that can be written to; found Not a directory"):
        set_layout(str(tmp_path / "file" / "set"), layout)
