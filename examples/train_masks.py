"""Segmentation: images with their masks from tar shards, cropped and mirrored alike.

    python examples/train_masks.py --out /tmp/masks --steps 60

Windows of photographs that come with scikit-image are the images; what a threshold leaves bright is the mask, a PNG of
0 and 1 beside the JPEG. `Mask` follows the image column: the same crop and flip, nearest pixels. The network has four
layers. A run that was stopped goes on at the very next batch, with the crops that it would have had.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path

import numpy as np
import torch
from PIL import Image as Picture
from torch import nn
from torchvision.transforms import v2

from dali_feed import DataLoader
from dali_feed.columns import Image, Mask
from dali_feed.external_sources import ShardSet
from dali_feed.packing.sinks import write_shard

PHOTOGRAPHS = ("coins.png", "camera.png", "coffee.png", "rocket.jpg")
WINDOW, SIDE, WINDOWS = 96, 64, 24  # pixels of a window and of a crop; windows of each photograph


def encoded(pixels: np.ndarray, form: str) -> bytes:
    """As a file."""
    file = io.BytesIO()
    Picture.fromarray(pixels).save(file, form)
    return file.getvalue()


def windows(path: Path) -> list[dict[str, bytes]]:
    """Records: windows of a photograph, and where they are brighter than its mean."""
    with Picture.open(path) as photograph:
        colour = np.asarray(photograph.convert("RGB"))
        gray = np.asarray(photograph.convert("L"))
    bright, draw = (gray > gray.mean()).astype(np.uint8), np.random.default_rng(0)
    records = []
    for _ in range(WINDOWS):
        y, x = (int(draw.integers(0, length - WINDOW)) for length in gray.shape)
        cut = slice(y, y + WINDOW), slice(x, x + WINDOW)
        records.append({"jpg": encoded(colour[cut], "JPEG"), "seg.png": encoded(bright[cut], "PNG")})
    return records


def packed(folder: Path) -> ShardSet:
    """A tar shard for each photograph; made where it is not there yet."""
    import skimage

    folder.mkdir(parents=True, exist_ok=True)
    for name in PHOTOGRAPHS:
        shard = folder / f"{Path(name).stem}.tar"
        if not shard.exists():
            write_shard(shard, windows(Path(str(skimage.__file__)).parent / "data" / name))
    return ShardSet(sorted(folder.glob("*.tar")))


def network() -> nn.Module:
    """Two scores a pixel: dark and bright."""
    layers: list[nn.Module] = []
    for before, behind in ((3, 12), (12, 12), (12, 12)):
        layers += [nn.Conv2d(before, behind, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(12, 2, 1))


def overlap(scores: torch.Tensor, masks: torch.Tensor) -> float:
    """Intersection over union of what is bright."""
    found, wanted = scores.argmax(1) == 1, masks == 1
    return float((found & wanted).sum() / (found | wanted).sum().clamp(min=1))


def main(argv: list[str] | None = None) -> list[tuple[float, float]]:
    """Train up to --steps, and give loss and intersection over union of the steps made now."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the shards and of the checkpoint")
    parser.add_argument("--steps", type=int, default=60, help="in all; a run that was stopped before goes on to it")
    parser.add_argument("--batch-size", type=int, default=16)
    args = parser.parse_args(argv)

    shards = packed(args.out / "shards")
    pixels = [v2.ToImage(), v2.RandomCrop(SIDE), v2.RandomHorizontalFlip()]
    transform = v2.Compose([*pixels, v2.ToDtype(torch.float32, scale=True)])
    columns = {"image": Image("jpg", transform), "mask": Mask("seg.png", dtype="int64")}
    torch.manual_seed(0)
    made: list[tuple[float, float]] = []
    with DataLoader(shards, args.batch_size, shuffle=True, columns=columns) as loader:
        model = network().to(loader.device)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        step, checkpoint = 0, args.out / "checkpoint.pt"
        if checkpoint.exists():
            saved = torch.load(checkpoint, weights_only=True)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            loader.load_state_dict(saved["loader"])
            step = saved["step"]
        while step < args.steps:
            for batch in loader:
                scores = model(batch["image"])
                loss = nn.functional.cross_entropy(scores, batch["mask"])
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                made.append((loss.item(), overlap(scores, batch["mask"])))
                step += 1
                if step % 10 == 0 or step == 1:
                    print(f"step {step} loss {made[-1][0]:.4f} intersection over union {made[-1][1]:.3f}")
                if step == args.steps:
                    break
        states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
        torch.save(states | {"step": step}, checkpoint)
    return made


if __name__ == "__main__":
    main()
