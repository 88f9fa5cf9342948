"""What `inspect` counts and draws: classes, sizes in bars, and a contact sheet."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from kit.command import Cli, assert_one_line, cli
from kit.images import cut_jpeg, encoded, jpeg
from kit.inside import write_shard
from PIL import Image

__all__ = ["cli"]  # a fixture


def words(printed: str) -> str:
    """Spaces as one."""
    return " ".join(printed.split())


def test_classes_are_counted(cli: Cli, tmp_path: Path) -> None:
    """The rarest, the most frequent and how far they are apart; and that it was a sample, where it was one."""
    labels = [0] * 6 + [1] * 3 + [2] * 2 + [3] * 1
    write_shard(tmp_path / "a.tar", [(jpeg(n), label) for n, label in enumerate(labels)])
    told = words(cli("inspect", tmp_path / "a.tar").out)
    assert "4 in all records, 3.0 records each; most frequent 0 (6), 1 (3), 2 (2); rarest 3 (1), 2 (2), 1 (3)" in told
    assert "the most frequent is 6.0 times the rarest; as balanced as 3.3 classes of equal size" in told
    assert "classes 3 in the sample of 5" in words(cli("inspect", tmp_path / "a.tar", "--sample", 5).out)


def test_sizes_are_bars(cli: Cli, tmp_path: Path) -> None:
    """Of bytes and of pixels, the longest bar for the most; nothing where all are one size."""
    sizes = [(16, 16)] * 5 + [(64, 64)] * 10
    write_shard(tmp_path / "a.tar", [(jpeg(3, *size), 1) for size in sizes])
    out = cli("inspect", tmp_path / "a.tar").out
    drawn = dict(re.findall(r"^ *([\d,]+ to [\d,]+) +(█*\S*) +\d+ *$", out, re.MULTILINE))
    assert (len(drawn["256 to 512"]), len(drawn["4,096 to 8,192"])) == (15, 30)
    write_shard(tmp_path / "b.tar", [(jpeg(3), 1)] * 4)
    assert "█" not in cli("inspect", tmp_path / "b.tar").out


def test_a_contact_sheet(cli: Cli, tmp_path: Path) -> None:
    """A PNG with the images of the sample, a frame with the reason for what is none."""
    red = encoded(np.full((40, 40, 3), (250, 10, 10), np.uint8))
    write_shard(tmp_path / "a.tar", [(red, 1), (b"<html>", 2), (cut_jpeg(), 3)], suffix="png")
    done = cli("inspect", tmp_path / "a.tar", "--sheet", tmp_path / "s.png")
    assert (done.code, done.err) == (0, "")
    assert "s.png: 3 records" in done.out
    with Image.open(tmp_path / "s.png") as sheet:
        assert sheet.format == "PNG"
        pixels = np.asarray(sheet)
    assert pixels[96, 96].tolist() == [250, 10, 10]
    inside = pixels[16:176, 188:348].reshape(-1, 3)
    assert (0xB4, 0x5F, 0x06) in {tuple(map(int, pixel)) for pixel in inside}
    below = pixels[176:210, 16:176]
    assert (below < 128).any()


@pytest.mark.parametrize("name", ["s.jpg", "no/s.png", "folder.png"])
def test_a_sheet_that_cannot_be_written_is_said_first(cli: Cli, tmp_path: Path, name: str) -> None:
    """Before anything is read, in one line, and nothing is left."""
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "set").mkdir()
    write_shard(tmp_path / "set/a.tar", [(jpeg(1), 1)])
    assert_one_line(cli("inspect", tmp_path / "set/a.tar", "--sheet", tmp_path / name), "--sheet: must be a")
    assert sorted(each.name for each in tmp_path.rglob("*")) == ["a.tar", "folder.png", "set"]
