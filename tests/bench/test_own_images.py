"""Images of one's own in the forms that a bench reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from kit.images import encoded

from dali_feed.bench.data import cached, payloads_of
from dali_feed.bench.data import own_images as own
from dali_feed.errors import SourceEmptyError
from dali_feed.external_sources import FileList, ShardSet


def picture(form: str, seed: int) -> memoryview:
    """Of noise."""
    return memoryview(encoded(np.random.default_rng(seed).integers(0, 256, (32, 40, 3), np.uint8), form))


def test_files_and_shards_hold_the_same_images(tmp_path: Path) -> None:
    """Each is once a file, below its class, and once in the shards; what nobody could decode is left out and told.

    No bytes of an image, a cut one, and a format that some loaders do not know. Where not all fit into memory, those
    that are held are spread over the classes.
    """
    given = [(picture("PNG", k), k % 3) for k in range(9)]
    whole = picture("JPEG", 0)
    bad = [(memoryview(b"no image"), 0), (whole[: len(whole) // 2], 1), (picture("BMP", 1), 0)]
    data = own([*given, *bad], "mine", tmp_path)
    files = FileList.from_folder(data.files)
    assert data.name == "9 images of mine, 3 left out (BMP is not read by every loader)"
    assert (data.count, len(files), len(ShardSet(list(map(str, data.shards))).snapshot())) == (9, 9, 9)
    assert len(ShardSet(list(map(str, data.linked))).snapshot()) == 12 * 9
    assert sorted(payloads_of(data)) == sorted(bytes(payload) for payload, _ in given)
    assert files.labels is not None
    assert sorted(files.labels.tolist()) == sorted(label for _, label in given)
    assert (data.height, data.width) == (32, 40)
    held = payloads_of(data, 4 * data.mean_bytes)
    assert len(held) == 4
    assert {label for payload, label in given if bytes(payload) in held} == {0, 1, 2}
    with pytest.raises(SourceEmptyError, match="mine: a bench of loaders needs images .*; found none; 2 were left out"):
        own(bad[:2], "mine", tmp_path / "none")


def test_of_two_first_runs_at_once_the_second_takes_what_the_first_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own is dropped; once there, nothing is made again."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    home = tmp_path / "dali_feed" / "bench"

    def make(folder: Path) -> None:
        (folder / "a").write_text("second")
        (home / "some").mkdir()
        (home / "some" / "a").write_text("first")

    assert (cached("some", make) / "a").read_text() == "first"
    assert cached("some", make) == home / "some"
    assert list(home.iterdir()) == [home / "some"]
