"""Folders on Lustre, with a made-up `lfs` on PATH and a file system that says it is one."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit.command import Cli, assert_one_line, cli

from dali_feed.errors import ConfigError, SourceError
from dali_feed.packing.sinks import write_shard
from dali_feed.storage import lustre
from dali_feed.storage.lustre import LustreLayout, magic_of, parsed, set_layout
from dali_feed.storage.manifest import load_manifest

__all__ = ["cli"]  # a fixture

FOLDER = "stripe_count:  {} stripe_size:   {} pattern:       0 stripe_offset: -1"


@pytest.fixture
def lfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tool that keeps a folder's layout in a file beside itself, and the calls."""
    tool = tmp_path / "bin" / "lfs"
    tool.parent.mkdir()
    tool.write_text(
        '#!/bin/sh\nhere=$(dirname "$0")\necho "$@" >> "$here/calls"\n'
        '[ -e "$here/refuses" ] && { cat "$here/refuses" >&2; exit 22; }\n'
        f'case $1 in setstripe) printf "{FOLDER.format("%s", "%s")}" "$3" "$5" > "$here/told";;\n'
        'getstripe) cat "$here/told";; esac\n'
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent), prepend=":")
    monkeypatch.setattr(lustre, "magic_of", lambda _: lustre.MAGIC)
    return tool


def test_what_getstripe_says_is_understood() -> None:
    """Of a folder; what does not say it is an error that shows it."""
    assert parsed(FOLDER.format(-1, 65536), "/x") == LustreLayout(-1, 65536)
    with pytest.raises(
        ConfigError, match=r"/x: lfs getstripe must print stripe_count and stripe_size; found 'no stripe"
    ):
        parsed("no stripe info\n", "/x")


def test_pack_sets_the_layout_of_a_folder_on_lustre(cli: Cli, lfs: Path, tmp_path: Path) -> None:
    """Before it makes anything in it; the shards are plain files. A size that Lustre has not is told."""
    write_shard(tmp_path / "a.tar", [{"txt": b"1"}])
    out = tmp_path / "new" / "set"
    assert_one_line(cli("pack", tmp_path / "a.tar", out, "--stripe-size", "5000"), "must be a multiple of 65536 bytes")
    done = cli("pack", tmp_path / "a.tar", out, "--stripe-count", "4")
    assert (done.code, done.err) == (0, "")
    calls = (lfs.parent / "calls").read_text().splitlines()
    assert calls[:2] == [f"setstripe -c 4 -S 1048576 {out}", f"getstripe -d {out}"]
    assert load_manifest(str(out / "set.dfset")).layout is None
    assert (out / "set-000000.tar").is_file()


def test_what_lfs_refuses_is_told(lfs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its own words; so is a layout that it did not set, a folder that cannot be, and an `lfs` that is none."""
    refuses = lfs.parent / "refuses"
    refuses.write_text("lfs setstripe: invalid stripe count\n")
    with pytest.raises(ConfigError, match=r"lfs setstripe -c 9 .*: must end with 0; found 22: .* invalid stripe count"):
        set_layout(str(tmp_path), LustreLayout(9, 1 << 20))
    refuses.unlink()
    lfs.write_text(f"#!/bin/sh\necho '{FOLDER.format(1, 1 << 20)}'\n")
    with pytest.raises(ConfigError, match=r"must have LustreLayout\(count=4, .* found LustreLayout\(count=1, "):
        set_layout(str(tmp_path), LustreLayout(4, 1 << 20))
    lfs.write_bytes(b"\0no program")
    with pytest.raises(ConfigError, match=r"lfs setstripe .*: Lustre's tool must be a program; .* failed: Exec format"):
        set_layout(str(tmp_path), LustreLayout(4, 1 << 20))
    lfs.write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(lustre, "_SECONDS", 0.05)
    with pytest.raises(SourceError, match=r"must end in time; it took more than 0.05 seconds; check the mount"):
        set_layout(str(tmp_path), LustreLayout(4, 1 << 20))
    with pytest.raises(ConfigError, match="must be a folder that can be written to; found Not a directory"):
        set_layout(str(lfs / "set"), LustreLayout(4, 1 << 20))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="Lustre's tool must be on PATH; found none"):
        set_layout(str(tmp_path), LustreLayout(4, 1 << 20))


def test_stripes_without_targets_are_lustre_s(cli: Cli, tmp_path: Path) -> None:
    """Elsewhere they are an error, and no folder was made."""
    write_shard(tmp_path / "a.tar", [{"txt": b"1"}])
    done = cli("pack", tmp_path / "a.tar", tmp_path / "set", "--stripe-count", "4")
    assert_one_line(done, "are for --targets, or for a folder on Lustre")
    assert not (tmp_path / "set").exists()
    assert magic_of("/proc") == 0x9FA0  # as the kernel's magic.h has it
    with pytest.raises(FileNotFoundError):
        magic_of(str(tmp_path / "gone"))
