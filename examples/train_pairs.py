"""Pictures and captions learnt together, as CLIP does: a batch is a dict of images and tokens from tar shards.

    python examples/train_pairs.py --out /tmp/pairs --steps 60

The pairs are drawn on the spot: a coloured shape, and a caption such as "a red circle". Two small networks turn both
into vectors; the loss asks each picture for its own caption among the batch's, and each caption for its own picture. A
run that was stopped goes on at the very next batch, with the crops that it would have had.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path

import numpy as np
import torch
from PIL import Image as Picture
from PIL import ImageDraw
from torch import nn
from torchvision.transforms import v2

from dali_feed import DataLoader
from dali_feed.columns import Image, Text, Tokens
from dali_feed.external_sources import ShardSet
from dali_feed.packing.sinks import write_shard

COLOURS = ("red", "green", "blue", "white")
SHAPES = ("circle", "square", "triangle")
WORDS = ("", "a", *COLOURS, *SHAPES)  # the number of a word is its token; 0 fills a row
SIDE, PAIRS, SHARDS = 32, 96, 2


def tokens(caption: str) -> list[int]:
    """The numbers of its words. `Tokens` takes a tokenizer.json of Hugging Face's as well."""
    return [WORDS.index(word) for word in caption.split()]


def pair(draw: np.random.Generator) -> dict[str, bytes]:
    """A record: the members of a tar sample by their suffix."""
    colour, shape = (str(draw.choice(names)) for names in (COLOURS, SHAPES))
    picture, (x, y) = Picture.new("RGB", (40, 40), (30, 30, 30)), draw.integers(4, 16, 2).tolist()
    pen, box = ImageDraw.Draw(picture), (x, y, x + 18, y + 18)
    if shape == "circle":
        pen.ellipse(box, fill=colour)
    elif shape == "square":
        pen.rectangle(box, fill=colour)
    else:
        pen.polygon([(x, y + 18), (x + 18, y + 18), (x + 9, y)], fill=colour)
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=95)
    return {"jpg": file.getvalue(), "txt": f"a {colour} {shape}".encode()}


def packed(folder: Path) -> ShardSet:
    """Tar shards of pairs; made where they are not there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(0)
    paths = [folder / f"pairs-{k}.tar" for k in range(SHARDS)]
    for path in paths:
        records = [pair(draw) for _ in range(PAIRS // SHARDS)]
        if not path.exists():
            write_shard(path, records)
    return ShardSet(paths)


class Pairs(nn.Module):
    """Unit vectors of pictures and of captions, and how sharply they are compared."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        conv = [nn.Conv2d(3, 16, 5, 2, 2), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU()]
        self.picture = nn.Sequential(*conv, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, width))
        self.word = nn.Embedding(len(WORDS), width)
        self.text = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, images: torch.Tensor, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """How well each picture (row) fits each caption (column)."""
        weight = mask.unsqueeze(-1).float()
        words = (self.word(ids) * weight).sum(1) / weight.sum(1)
        pictures, texts = (nn.functional.normalize(x) for x in (self.picture(images), self.text(words)))
        return self.scale.exp() * pictures @ texts.T


def contrastive(fit: torch.Tensor, captions: list[str]) -> torch.Tensor:
    """Cross entropy both ways. Equal captions are equally right."""
    same = torch.tensor([[a == b for b in captions] for a in captions], dtype=fit.dtype, device=fit.device)
    same /= same.sum(1, keepdim=True)
    return (nn.functional.cross_entropy(fit, same) + nn.functional.cross_entropy(fit.T, same)) / 2


def main(argv: list[str] | None = None) -> list[float]:
    """Train up to --steps, and give the losses of the steps made now."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the shards and of the checkpoint")
    parser.add_argument("--steps", type=int, default=60, help="in all; a run that was stopped before goes on to it")
    parser.add_argument("--batch-size", type=int, default=16)
    args = parser.parse_args(argv)

    shards = packed(args.out / "shards")
    crop = v2.Compose([v2.ToImage(), v2.RandomCrop(SIDE), v2.ToDtype(torch.float32, scale=True)])
    columns = {"image": Image("jpg", crop), "caption": Text("txt"), "tokens": Tokens("txt", tokens, length=4)}
    torch.manual_seed(0)
    losses: list[float] = []
    with DataLoader(shards, args.batch_size, shuffle=True, columns=columns) as loader:
        model = Pairs().to(loader.device)
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        step, checkpoint = 0, args.out / "checkpoint.pt"
        if checkpoint.exists():
            saved = torch.load(checkpoint, weights_only=True)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            loader.load_state_dict(saved["loader"])
            step = saved["step"]
        while step < args.steps:
            for batch in loader:
                loss = contrastive(model(batch["image"], *batch["tokens"]), batch["caption"])
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                losses.append(loss.item())
                step += 1
                if step % 10 == 0 or step == 1:
                    print(f"step {step} loss {losses[-1]:.4f}")
                if step == args.steps:
                    break
        states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
        torch.save(states | {"step": step}, checkpoint)
    return losses


if __name__ == "__main__":
    main()
