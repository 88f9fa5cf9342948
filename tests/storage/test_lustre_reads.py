"""Reads of files on Lustre, with a made-up `lfs` on PATH and a file system that says it is one."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from dali_feed.external_sources import ShardSet
from dali_feed.records.source import Extents
from dali_feed.storage import lustre, lustre_reads
from dali_feed.storage.local import LOCAL
from dali_feed.storage.local_reads import LARGE
from dali_feed.storage.lustre import LustreLayout, widest
from dali_feed.storage.lustre_reads import AHEAD_BYTES, ahead_of
from dali_feed.testing.shards import write_shard

ONE = """/lustre/x-000000.tar
lmm_stripe_count:  4
lmm_stripe_size:   1048576
lmm_pattern:       raid0
lmm_stripe_offset: 2
"""
PARTS = """  lcm_layout_gen:    3
    lcme_id:             1
      lmm_stripe_count:  1
      lmm_stripe_size:   1048576
    lcme_id:             2
      lmm_stripe_count:  8
      lmm_stripe_size:   16777216
"""
DATA = np.random.default_rng(0).bytes(1 << 20)


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file whose text a made-up `lfs` prints; without it it refuses. `calls` beside it has how it was called."""
    tool = tmp_path / "bin" / "lfs"
    tool.parent.mkdir()
    tool.write_text('#!/bin/sh\nhere=$(dirname "$0")\necho "$@" >> "$here/calls"\ncat "$here/told" || exit 25\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent), prepend=":")
    monkeypatch.setattr(lustre, "magic_of", lambda _: lustre.MAGIC)
    monkeypatch.setattr(lustre_reads, "_told", threading.Event())
    (tool.parent / "told").write_text(ONE)
    return tool.parent / "told"


def test_as_much_is_asked_for_as_the_layout_says(told: Path, tmp_path: Path) -> None:
    """8 MiB for each target that the first file of a folder lies over, or a stripe where that is more; asked once."""
    for k, (text, ahead) in enumerate(((ONE, 4 * AHEAD_BYTES), (PARTS, 8 * (16 << 20)))):
        told.write_text(text)
        folder = tmp_path / str(k)
        folder.mkdir()
        assert [ahead_of(str(folder / name)) for name in ("a", "b")] == [ahead, ahead]
    calls = told.with_name("calls").read_text().splitlines()
    assert calls == [f"getstripe {tmp_path / str(k) / 'a'}" for k in range(2)]
    assert widest(PARTS, "/x") == LustreLayout(8, 16 << 20)


def test_other_file_systems_are_asked_nothing(tmp_path: Path) -> None:
    """And have no limit of bytes."""
    (tmp_path / "a").write_bytes(b"1")
    file = LOCAL.open(str(tmp_path / "a"))
    assert file.ahead == 0
    file.close()


def test_an_lfs_that_does_not_tell_is_told_once(told: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One for all folders; files are read as if one target had each."""
    told.unlink()
    for name in ("x", "y"):
        (tmp_path / name).mkdir()
        assert ahead_of(str(tmp_path / name / "a")) == AHEAD_BYTES
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "read as if it were on one target" in record.message
    assert "must end with 0; found 25" in record.message


def test_a_shard_set_on_lustre_has_the_bytes_it_has_elsewhere(told: Path, tmp_path: Path) -> None:
    """Small reads and large ones."""
    images = [DATA[: 1000 * k] * (1200 if k == 3 else 1) for k in range(1, 6)]
    assert len(images[2]) > LARGE
    write_shard(tmp_path / "a.tar", [(image, k) for k, image in enumerate(images)])
    reader = ShardSet(tmp_path / "a.tar").reader()
    block = reader.read(Extents.one(0, 0, 5))
    assert [bytes(each or b"") for each in block.payloads] == images
    block.lease.release()
    reader.close()
    assert f"getstripe {tmp_path / 'a.tar'}" in told.with_name("calls").read_text()


def test_no_more_bytes_are_asked_for_than_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads are asked for before the first is waited for; each that has come makes room for the next."""
    (tmp_path / "a").write_bytes(DATA)
    events: list[tuple[str, int]] = []
    advise, preadv = os.posix_fadvise, os.preadv

    def advising(fd: int, at: int, size: int, what: int) -> None:
        events.append(("ask", size))
        advise(fd, at, size, what)

    def reading(fd: int, views: Sequence[memoryview], at: int, flags: int = 0) -> int:
        if flags:
            raise OSError(errno.EOPNOTSUPP, "not here")
        events.append(("wait", len(views[0])))
        return preadv(fd, views, at)

    monkeypatch.setattr(os, "posix_fadvise", advising)
    monkeypatch.setattr(os, "preadv", reading)
    file = LOCAL.open(str(tmp_path / "a"))
    file.ahead = 1000
    sizes = [300, 300, 300, 500, 100, 2000, 10]
    views = [memoryview(bytearray(size)) for size in sizes]
    at = [7 * k for k in range(len(sizes))]
    assert LOCAL.fill(lambda _: file, [0] * len(sizes), views, at, threading.Event()) == sizes
    assert [bytes(view) for view in views] == [DATA[k : k + len(view)] for k, view in zip(at, views, strict=True)]
    file.close()
    asked, out = 0, []
    for what, size in events:
        asked += size if what == "ask" else -size
        out.append(asked)
    assert out == [300, 600, 900, 600, 300, 800, 900, 600, 100, 0, 2000, 0, 10, 0]
