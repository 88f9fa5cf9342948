"""Draws the pictures of docs/watching.md from runs that are made for them.

    python docs/_pictures.py

writes docs/pictures/watch.svg (what `dali-feed watch` shows of two ranks) and docs/pictures/show.png (what `dali-feed
show` does), with photographs of scikit-image and scikit-learn, two of them broken.
"""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from rich.console import Console
from torchvision.transforms import v2

from dali_feed import DataLoader, watching
from dali_feed.cli import view
from dali_feed.cli.app import main as dali_feed
from dali_feed.cli.watch import WatchedEndpoint, look_at, report_of
from dali_feed.external_sources import ShardSet
from dali_feed.testing.shards import write_shard

HERE = Path(__file__).parent / "pictures"
WIDE = 660  # pixels
RECIPE = """
import torch
from torchvision.transforms import v2

train = v2.Compose([
    v2.RandomResizedCrop(224), v2.RandomHorizontalFlip(), v2.ColorJitter(0.3, 0.3),
    v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
])
"""


def photographs() -> list[bytes]:
    """A few, as JPEGs."""
    import skimage.data
    from sklearn.datasets import load_sample_images

    data: Any = skimage.data
    arrays = [*load_sample_images().images, data.chelsea(), data.coffee(), data.astronaut()]
    found = []
    for array in arrays:
        out = io.BytesIO()
        image = Image.fromarray(array)
        image.thumbnail((400, 400))
        image.save(out, "JPEG", quality=85)
        found.append(out.getvalue())
    return found


def train(loader: DataLoader, stop: threading.Event) -> None:
    """A loop that takes ten milliseconds for a step."""
    while not stop.is_set():
        for _ in loader:
            time.sleep(0.01)
            if stop.is_set():
                break


def main() -> None:
    """Both pictures."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        pictures = photographs()
        samples = [(pictures[n % len(pictures)], n % 10) for n in range(960)]
        samples[5], samples[700] = (b"<html><body>404 Not Found", 5), (samples[700][0][:200], 1)
        write_shard(Path("train.tar"), samples)
        Path("recipe.py").write_text(RECIPE, encoding="utf-8")
        show = ["show", "train.tar", "--transform", "recipe.py:train", "--no-shuffle", "--batch-size", "12"]
        with contextlib.suppress(SystemExit):
            dali_feed([*show, "--out", str(HERE / "show.png")])
        with Image.open(HERE / "show.png") as sheet:  # smaller, and nobody measures its colours
            small = sheet.convert("RGB").resize((WIDE, sheet.height * WIDE // sheet.width), Image.Resampling.LANCZOS)
            small.quantize(64).save(HERE / "show.png", optimize=True)
        crop = v2.Compose([v2.RandomResizedCrop(64), v2.ToDtype(torch.float32, scale=True)])
        source, stop = ShardSet("train.tar"), threading.Event()
        ranks = [
            DataLoader(source, 16, shuffle=True, device="cpu", transform=crop, rank=rank, world_size=2, lanes=2)
            for rank in (0, 1)
        ]
        loops = [threading.Thread(target=train, args=(rank, stop)) for rank in ranks]
        at = [watching.serve(rank, job="resnet50") for rank in ranks]
        for loop in loops:
            loop.start()
        endpoints = [*(WatchedEndpoint(each.url) for each in at), WatchedEndpoint("node2:9402")]
        look_at(endpoints)
        time.sleep(8)
        seen = look_at(endpoints)
        stop.set()
        for loop, rank, endpoint in zip(loops, ranks, at, strict=True):
            loop.join()
            endpoint.close()
            rank.close()
        console = Console(width=120, record=True, file=io.StringIO(), highlight=False)
        console.print(view.drawn(report_of(seen)))
        svg = console.export_svg(title="dali-feed watch", unique_id="watch")
        (HERE / "watch.svg").write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
