"""`dali-feed show`: the batch of a run as a model gets it, with who it is, what was drawn and what was replaced."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pytest
from kit.command import Cli, assert_one_line, cli
from kit.images import jpeg
from PIL import Image

from dali_feed.cli.options import load_object
from dali_feed.cli.sheet import Cell
from dali_feed.cli.show import Shown, cells_of
from dali_feed.errors import ConfigError
from dali_feed.external_sources import Arrays, ShardSet
from dali_feed.feed import Feed
from dali_feed.packing.sinks import write_shard

__all__ = ["cli"]  # a fixture

RECIPE = """
import torch
from torchvision.transforms import v2

train = v2.Compose([
    v2.RandomResizedCrop(12), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True),
    v2.Normalize([0.4, 0.5, 0.6], [0.2, 0.3, 0.25]),
])
plain = v2.RandomResizedCrop(12)
"""


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    """40 images, one of them no image, and a recipe beside them."""
    samples = [(jpeg(n, 24, 32), n % 5) for n in range(40)]
    samples[7] = (b"<html><b>", 3)
    write_shard(tmp_path / "a.tar", samples)
    (tmp_path / "recipe.py").write_text(RECIPE)
    return tmp_path


def cells(folder: Path, recipe: str, shown: Shown) -> list[Cell]:
    """What the command draws of a batch."""
    transform = load_object("--transform", f"{folder / 'recipe.py'}:{recipe}")
    return cells_of(ShardSet(str(folder / "a.tar")), transform, shown)


def test_large_batches_are_those_of_one_lane(tmp_path: Path) -> None:
    """Of 64 a loader would have four lanes by default; the command's help says one."""
    write_shard(tmp_path / "a.tar", [(jpeg(n, 8, 8), n % 5) for n in range(192)])
    source = ShardSet(str(tmp_path / "a.tar"))
    shown = [cell.where for cell in cells_of(source, None, Shown(batch=2, batch_size=64, seed=5))]
    with Feed(source, 64, shuffle=True, seed=5, lanes=1) as feed:
        *_, last = ([feed.where(int(n)) for n in batch.ids] for batch in feed)
    assert shown == last


def test_a_source_without_images_has_nothing_to_show(tmp_path: Path) -> None:
    """Said by its name."""
    np.save(tmp_path / "x.npy", np.zeros((4, 3), np.float32))
    with pytest.raises(ConfigError, match=r"Arrays\(.*\): must have images, which this command shows; found none"):
        cells_of(Arrays(str(tmp_path / "x.npy")), None, Shown(batch=0, batch_size=2))


def test_it_is_the_batch_of_a_run(shard: Path) -> None:
    """The third batch of epoch 1: the same records in the same slots, and the pixels before Normalize, to a level."""
    from torchvision.transforms import v2

    shown = cells(shard, "train", Shown(batch=2, batch_size=8, epoch=1, seed=5))
    plain = v2.Compose([v2.RandomResizedCrop(12), v2.RandomHorizontalFlip()])
    with Feed(ShardSet(str(shard / "a.tar")), 8, shuffle=True, seed=5, transform=plain) as feed:
        feed.set_epoch(1)
        batch = [batch for batch in feed][2]  # noqa: C416  batches hold views that live as long as they do
        assert [cell.where for cell in shown] == [feed.where(each) for each in batch.ids.tolist()]
        for cell, label, image in zip(shown, batch.fields["label"], np.from_dlpack(batch), strict=True):
            assert cell.label == f"label {label}"
            assert np.abs(image.transpose(1, 2, 0).astype(int) - np.asarray(cell.image)).max() <= 1


def test_what_was_drawn_is_told(shard: Path) -> None:
    """Each crop window lies in the image, and cut and scaled so, and flipped where it says, gives these pixels."""
    flips = set()
    for cell in cells(shard, "train", Shown()):
        words = "; ".join(cell.notes)
        width, height, x, y = map(int, re.search(r"Crop: (\d+) x (\d+) at (\d+), (\d+)", words).groups())  # type: ignore[union-attr]
        assert x + width <= 32
        assert y + height <= 24
        flip = re.search(r"Flip: (yes|no)", words)[1]  # type: ignore[index]
        flips.add(flip)
        number = int(re.search(r"#(\d+)", cell.where)[1])  # type: ignore[index]
        image = Image.open(io.BytesIO(jpeg(number, 24, 32))).crop((x, y, x + width, y + height))
        wanted = np.asarray(image.resize((12, 12), Image.Resampling.BILINEAR)).astype(int)
        wanted = wanted[:, ::-1] if flip == "yes" else wanted
        assert np.abs(wanted - np.asarray(cell.image)).mean() < 6
    assert flips == {"yes", "no"}


def test_replaced_slots_are_marked(shard: Path) -> None:
    """Whose place it took, and why."""
    marks = [cell.mark for cell in cells(shard, "plain", Shown(batch_size=16, shuffle=False)) if cell.mark]
    assert len(marks) == 1
    assert re.match(r"in place of \S*a\.tar#7: \w+", marks[0])


def test_a_sheet(cli: Cli, shard: Path) -> None:
    """A PNG with the images, the mark in its colour; the same command gives the same bytes."""
    sheet = shard / "s.png"
    recipe = f"{shard / 'recipe.py'}:plain"
    command = ("show", shard / "a.tar", "--transform", recipe, "--no-shuffle", "--batch-size", 16, "--out", sheet)
    done = cli(*command)
    assert (done.code, done.err) == (0, "")
    assert done.out == f"{sheet}: 16 records, 1 of them in place of another\n"
    drawn = sheet.read_bytes()
    pixels = np.asarray(Image.open(sheet)).reshape(-1, 3)
    assert (0xB4, 0x5F, 0x06) in set(map(tuple, pixels.tolist()))
    assert cli(*command).code == 0
    assert sheet.read_bytes() == drawn


def test_what_cannot_be_shown(cli: Cli, shard: Path) -> None:
    """A batch that the epoch has not, a file that fails, a name that it has not, a sheet that is no PNG: one line."""
    (shard / "broken.py").write_text("x = 1\ny = x / 0\n")
    tar, recipe = shard / "a.tar", f"{shard / 'recipe.py'}:train"
    out = ("--out", shard / "s.png")
    assert_one_line(cli("show", tar, "--transform", recipe, "--batch", 2, *out), "--batch", "0..1", "found 2")
    assert_one_line(cli("show", tar, "--transform", f"{shard / 'broken.py'}:x", *out), "line 2", "ZeroDivisionError")
    assert_one_line(cli("show", tar, "--transform", f"{shard / 'recipe.py'}:none", *out), "must define none", "train")
    assert not (shard / "s.png").exists()
