"""Tunings that are kept: read back whole, and anything else is a warning and nothing."""

from __future__ import annotations

import json
import os
import pwd
from pathlib import Path
from typing import Any, NoReturn

import pytest

from dali_feed.options import Cache
from dali_feed.storage.durable import user_cache
from dali_feed.tuner.kept import Kept, Key, keep, kept, path_of

KEY = Key({"cpus": 2}, {"source": "photos"}, {"batch_size": 64})
FOUND = Kept({"readers": 4, "cache": Cache(1000, pixels=True)}, 120.0, 100.0)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_what_is_kept_is_read_back() -> None:
    """A cache too, and only for what it was found for."""
    assert kept(KEY) is None
    path = keep(KEY, FOUND)
    assert kept(KEY) == FOUND
    assert kept(Key({"cpus": 3}, KEY.data, KEY.program)) is None
    assert [each.name for each in path.parent.iterdir()] == [path.name], "nothing else is left there"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"version": 2}, "version 2"),
        ({"machine": {"cpus": 64}}, "another machine"),
        ({"tuning": {"batch_size": 1}}, "the tuning"),
        ({"tuning": {"readers": "many"}}, "readers"),
        ({"tuning": {"cache": {"pixels": True}}}, "memory"),
        ({"samples_per_second": "fast"}, "the rates"),
        ({"more": 1}, "the names"),
    ],
)
def test_a_foreign_file_is_named_and_not_used(
    change: dict[str, Any], named: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever wrote it: a setting is used only where all of the file is as it should be."""
    path = keep(KEY, FOUND)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert kept(KEY) is None
    assert str(path) in caplog.text
    assert named in caplog.text


@pytest.mark.parametrize("held", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b"null"])
def test_a_broken_file_is_named_and_not_used(held: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """Cut, empty, of another kind: the run goes on with the defaults."""
    path = keep(KEY, FOUND)
    path.write_bytes(held)
    assert kept(KEY) is None
    assert str(path_of(KEY)) in caplog.text


def test_without_a_folder_nothing_is_kept(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A cache folder that can be none, as where a home is /dev/null, is no broken file: nobody is told to delete it."""
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    assert kept(KEY) is None
    assert not caplog.text


def test_who_has_no_home_has_a_folder_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is his own, and lies nowhere under the folder that the program runs in."""

    def nobody(_: int) -> NoReturn:
        raise KeyError

    for name in ("XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    assert user_cache().is_absolute()
    assert str(os.getuid()) in user_cache().name
