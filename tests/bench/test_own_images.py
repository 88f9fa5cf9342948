"""Images of one's own in the forms that a bench reads."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dali_feed.bench.data import cached, payloads_of
from dali_feed.bench.data import own_images as own
from dali_feed.errors import SourceEmptyError
from dali_feed.external_sources import FileList, ShardSet


def encoded(form: str, side: int, seed: int) -> memoryview:
    """A picture of noise."""
    out = BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side + 8, 3), np.uint8)
    Image.fromarray(pixels).save(out, form)
    return memoryview(out.getvalue())


def records(count: int, *, sides: tuple[int, ...] = (32,), form: str = "JPEG") -> Iterator[tuple[memoryview, int]]:
    """Pictures of three classes."""
    yield from ((encoded(form, sides[k % len(sides)], k), k % 3) for k in range(count))


def test_files_and_shards_hold_the_same_images(tmp_path: Path) -> None:
    """Each payload is once a file, below its class, and once in the shards; the linked ones hold each several times."""
    given = list(records(7))
    data = own(given, "mine", tmp_path)
    files = FileList.from_folder(data.files)
    assert (data.count, len(files), len(ShardSet(list(map(str, data.shards))).snapshot())) == (7, 7, 7)
    assert len(ShardSet(list(map(str, data.linked))).snapshot()) == 12 * 7
    assert sorted(payloads_of(data)) == sorted(bytes(payload) for payload, _ in given)
    assert files.labels is not None
    assert sorted(files.labels.tolist()) == sorted(label for _, label in given)
    assert (data.height, data.width) == (32, 40)
    assert data.mean_bytes == round(sum(len(payload) for payload, _ in given) / 7)


def test_few_images_many_and_too_many(tmp_path: Path) -> None:
    """Two are enough, and of several sizes none is named; copies end at their limit; memory has all classes."""
    data = own(records(2, sides=(32, 48)), "two", tmp_path / "two")
    assert (len(data.shards), data.height, data.width) == (2, 0, 0)
    assert own(records(9), "nine", tmp_path / "nine", limit=1).count == 1
    data = own(records(9), "nine", tmp_path / "all")
    kept = payloads_of(data, 4 * data.mean_bytes)
    assert len(kept) == 4
    assert {label for payload, label in records(9) if bytes(payload) in kept} == {0, 1, 2}


def test_what_nobody_could_decode_is_left_out_and_told(tmp_path: Path) -> None:
    """No bytes of an image, a cut one, and a format that some loaders do not know; others are as they were."""
    whole = encoded("JPEG", 32, 0)
    given = [*records(2, form="PNG"), (memoryview(b"no image"), 0), (whole[: len(whole) // 2], 1)]
    data = own([*given, (encoded("BMP", 32, 1), 0)], "mine", tmp_path)
    assert data.count == 2
    assert data.name == "2 images of mine, 3 left out (BMP is not read by every loader)"
    assert {path.suffix for path in data.files.glob("*/*")} == {".png"}


def test_no_image_is_a_named_error(tmp_path: Path) -> None:
    """With what was found, and the reason of the last."""
    with pytest.raises(
        SourceEmptyError, match="mine: a bench of loaders needs images .*; found none; 1 were left out, the last"
    ):
        own([(memoryview(b"text"), 0)], "mine", tmp_path)


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
