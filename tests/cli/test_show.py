"""`dali-feed show`: the batch of a run as a model gets it, with who it is, what was drawn and what was replaced."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path

import numpy as np
import pytest
from kit.command import Cli, assert_one_line, cli
from kit.images import jpeg
from PIL import Image

from dali_feed.external_sources import ShardSet
from dali_feed.feed import Feed
from dali_feed.testing.shards import write_shard

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


def figures(text: str) -> list[tuple[str, np.ndarray]]:
    """Caption and pixels of each image of a page."""
    found = re.findall(r'base64,([^"]+)"><figcaption>(.*?)</figcaption>', text)
    return [(caption, np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))) for data, caption in found]


def test_it_is_the_batch_of_a_run(cli: Cli, shard: Path) -> None:
    """The third batch of epoch 1: the same records in the same slots, and the pixels before Normalize, to a level."""
    page = shard / "s.html"
    options = ("--batch", 2, "--batch-size", 8, "--epoch", 1, "--seed", 5, "--out", page)
    done = cli("show", shard / "a.tar", "--transform", f"{shard / 'recipe.py'}:train", *options)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"{page}: 8 records")
    from torchvision.transforms import v2

    with Feed(ShardSet(str(shard / "a.tar")), 8, shuffle=True, seed=5, transform=v2.Compose(_train())) as feed:
        feed.set_epoch(1)
        batch = [batch for batch in feed][2]  # noqa: C416  batches hold views that live as long as they do
        shown = figures(page.read_text())
        assert [re.match(r"<b>(.*?)</b>", caption)[1] for caption, _ in shown] == [  # type: ignore[index]
            feed.where(each) for each in batch.ids.tolist()
        ]
        for (caption, pixels), label, image in zip(shown, batch.fields["label"], np.from_dlpack(batch), strict=True):
            assert f"label {label}" in caption
            assert np.abs(image.transpose(1, 2, 0).astype(int) - pixels).max() <= 1


def _train() -> list[object]:
    from torchvision.transforms import v2

    return [v2.RandomResizedCrop(12), v2.RandomHorizontalFlip()]


def test_what_was_drawn_is_told(cli: Cli, shard: Path) -> None:
    """Each crop window lies in the image, and cut and scaled so, and flipped where it says, gives these pixels."""
    page = shard / "s.html"
    done = cli("show", shard / "a.tar", "--transform", f"{shard / 'recipe.py'}:train", "--out", page)
    assert done.code == 0, done.err
    flips = set()
    for caption, pixels in figures(page.read_text()):
        width, height, x, y = map(int, re.search(r"Crop: (\d+) x (\d+) at (\d+), (\d+)", caption).groups())  # type: ignore[union-attr]
        assert x + width <= 32
        assert y + height <= 24
        flip = re.search(r"Flip: (yes|no)", caption)[1]  # type: ignore[index]
        flips.add(flip)
        number = int(re.search(r"#(\d+)", caption)[1])  # type: ignore[index]
        image = Image.open(io.BytesIO(jpeg(number, 24, 32))).crop((x, y, x + width, y + height))
        wanted = np.asarray(image.resize((12, 12), Image.Resampling.BILINEAR)).astype(int)
        wanted = wanted[:, ::-1] if flip == "yes" else wanted
        assert np.abs(wanted - pixels).mean() < 6
    assert flips == {"yes", "no"}


def test_replaced_slots_are_marked(cli: Cli, shard: Path) -> None:
    """Whose place it took, and why; with every text escaped and nothing from elsewhere."""
    page = shard / "s.html"
    recipe = f"{shard / 'recipe.py'}:plain"
    done = cli("show", shard / "a.tar", "--transform", recipe, "--no-shuffle", "--batch-size", 16, "--out", page)
    assert done.out.endswith("16 records, 1 of them in place of another\n")
    text = page.read_text()
    marked = re.findall(r'<figure class="marked">.*?</figure>', text)
    assert len(marked) == 1
    assert re.search(r"in place of \S*a\.tar#7: \w+", marked[0])
    assert "<script" not in text
    assert not re.search(r'(src|href)="(?!data:)', text)


def test_a_png(cli: Cli, shard: Path) -> None:
    """The same on one picture, the mark in its colour."""
    sheet = shard / "s.png"
    recipe = f"{shard / 'recipe.py'}:plain"
    done = cli("show", shard / "a.tar", "--transform", recipe, "--no-shuffle", "--batch-size", 8, "--out", sheet)
    assert done.code == 0, done.err
    pixels = np.asarray(Image.open(sheet)).reshape(-1, 3)
    assert (0xB4, 0x5F, 0x06) in set(map(tuple, pixels.tolist()))


def test_texts_are_escaped() -> None:
    """A place, a label or a reason is text, whatever it looks like."""
    from dali_feed.cli.sheet import Cell
    from dali_feed.cli.sheet_page import page

    text = page("<t>", [Cell("<a>", '"l"', Image.new("RGB", (1, 1)), ("<n>",), "<m>"), Cell("b", "", "<why>")]).decode()
    assert not re.search(r"<[atnmw](hy)?>", text)
    assert text.count("&lt;") >= 6


def test_what_cannot_be_shown(cli: Cli, shard: Path) -> None:
    """A batch that the epoch has not, a file that fails, a name that it has not, a sheet of another kind: one line."""
    (shard / "broken.py").write_text("x = 1\ny = x / 0\n")
    tar, recipe = shard / "a.tar", f"{shard / 'recipe.py'}:train"
    out = ("--out", shard / "s.png")
    assert_one_line(cli("show", tar, "--transform", recipe, "--batch", 2, *out), "--batch", "0..1", "found 2")
    assert_one_line(cli("show", tar, "--transform", f"{shard / 'broken.py'}:x", *out), "line 2", "ZeroDivisionError")
    assert_one_line(cli("show", tar, "--transform", f"{shard / 'recipe.py'}:none", *out), "must define none", "train")
    assert_one_line(cli("show", tar, "--transform", "recipe.py", *out), "FILE.py:NAME")
    assert_one_line(cli("show", tar, "--transform", f"{shard / 'gone.py'}:x", *out), "found none at")
    assert_one_line(cli("show", tar, "--out", shard / "s.gif"), "--out", "PNG", "HTML")
    assert not (shard / "s.png").exists()
