"""Train a torchvision model on a folder of images, with torch's DataLoader or with ours: one import is the difference.

    python examples/imagenet.py FOLDER [--loader dali_feed|torch] [--model resnet50] [--epochs 90] [--batch-size 256]

FOLDER has train/ and val/, each with a folder per class, as ImageNet is kept. With dali_feed the run goes on in the
middle of an epoch: --checkpoint names a file that is written every --save-every steps and read at the start.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch import nn
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def data_loader(name: str) -> Any:
    """The one line that differs."""
    if name == "torch":
        from torch.utils.data import DataLoader
    else:
        from dali_feed import DataLoader  # type: ignore[assignment]
    return DataLoader


def transforms(size: int, *, train: bool) -> v2.Compose:
    """ImageNet's usual ones."""
    floats = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    if train:
        return v2.Compose([v2.ToImage(), v2.RandomResizedCrop(size), v2.RandomHorizontalFlip(), *floats])
    return v2.Compose([v2.ToImage(), v2.Resize(size * 256 // 224), v2.CenterCrop(size), *floats])


def accuracy(model: nn.Module, loader: Any, device: torch.device) -> float:
    """Top-1, in percent."""
    model.eval()
    right = seen = 0
    with torch.inference_mode():
        for images, labels in loader:
            images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)  # noqa: PLW2901
            right += int((model(images).argmax(dim=1) == labels).sum())
            seen += len(labels)
    model.train()
    return 100 * right / seen


def main() -> None:
    """Train, and say how far it got after each epoch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--loader", choices=("dali_feed", "torch"), default="dali_feed")
    parser.add_argument("--model", default="resnet50", help="of torchvision (default %(default)s)")
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--checkpoint", type=Path, default=None)
    parser.add_argument("--save-every", type=int, default=1000, help="steps (default %(default)s)")
    args = parser.parse_args()

    for part in (args.folder / "train", args.folder / "val"):
        if not part.is_dir():
            sys.exit(f"{part}: there is no such folder; FOLDER must hold train/ and val/, each with a folder per class")

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_set = ImageFolder(str(args.folder / "train"), transforms(args.size, train=True))
    val_set = ImageFolder(str(args.folder / "val"), transforms(args.size, train=False))

    DataLoader = data_loader(args.loader)
    options = {"batch_size": args.batch_size, "num_workers": args.workers}
    train = DataLoader(train_set, shuffle=True, drop_last=True, **options)
    val = DataLoader(val_set, **options)

    model: nn.Module = torchvision.models.get_model(args.model, num_classes=len(train_set.classes)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    first = 0
    if args.checkpoint is not None and args.checkpoint.exists():
        saved = torch.load(args.checkpoint, map_location=device, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["epoch"]
        if "loader" in saved:
            train.load_state_dict(saved["loader"])  # goes on in the middle of that epoch

    step = 0
    for epoch in range(first, args.epochs):
        begun, seen, total = time.perf_counter(), 0, torch.zeros((), device=device)
        for images, labels in train:
            images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)  # noqa: PLW2901
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            seen, step, total = seen + len(labels), step + 1, total + loss.detach() * len(labels)
            if args.checkpoint is not None and step % args.save_every == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
                if args.loader == "dali_feed":
                    state["loader"] = train.state_dict()
                new = args.checkpoint.with_suffix(".new")
                torch.save(state, new)
                new.replace(args.checkpoint)  # whole or not at all
        seconds = time.perf_counter() - begun
        print(
            f"epoch {epoch}: loss {float(total) / max(1, seen):.3f}, top-1 {accuracy(model, val, device):.1f} %,"
            f" {seen / seconds:,.0f} images/s",
            flush=True,
        )


if __name__ == "__main__":
    main()
