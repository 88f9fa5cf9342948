"""Whether a model judges alike behind torch's DataLoader and behind ours: top-1 of one ResNet-18, the loader changed.

    python bench/measure_top1.py [--size 224] [--train 2000] [--val 1000] [--epochs 4]

No weights and no photographs are downloaded: crops are cut at random out of the photographs that come with scikit-image
and scikit-learn, JPEGs of many sizes and qualities in an ImageFolder's layout, and the class is the quarter of the
photograph that the crop's middle lies in. So a crop near a border is hard, and many a judgement is a close one, as it
must be if small differences of pixels are to show. torchvision's resnet18 is trained on --train of them with torch's
loader; then the same weights judge the other --val behind each loader, shuffle off, with ImageNet's transforms for
validation: Resize(256), CenterCrop(224), Normalize at --size 224.

Columns: top-1 in percent, how far it is from torch's on PIL images (which most people run), how many crops are judged
otherwise and by how much a logit differs at most; then the same beside torch's on tensors. One row is there to differ:
torch's with the nearest pixels shows that the comparison can see a change of them. Rows go to results/top1.csv.
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision
from _results import RESULTS
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader as TorchLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import InterpolationMode as Mode
from torchvision.transforms import v2

from dali_feed import DataLoader, Decode
from dali_feed.bench.facts import facts
from dali_feed.bench.photos import cache_folder, originals
from dali_feed.bench.rows import append, table

VERSION = 1  # of the crops; another one makes them anew
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
TRAIN_BATCH, VAL_BATCH = 32, 100
MOST_LR = 0.05

Judged = tuple[torch.Tensor, torch.Tensor]


def cut(picture: Image.Image, rng: np.random.Generator) -> tuple[Image.Image, int]:
    """A crop of a quarter to a half of the photograph's short edge, and the quarter that its middle lies in."""
    wide, high = (min(picture.size) * rng.uniform(0.25, 0.5) for _ in range(2))
    x, y = rng.uniform(0, picture.width - wide), rng.uniform(0, picture.height - high)
    quarter = 2 * (y + high / 2 >= picture.height / 2) + (x + wide / 2 >= picture.width / 2)
    scale = rng.uniform(200, 500) / max(wide, high)
    size = (round(wide * scale), round(high * scale))
    return picture.resize(size, Image.Resampling.BICUBIC, box=(x, y, x + wide, y + high)), int(quarter)


def crops(root: Path, count: int, seed: int) -> Path:
    """`count` crops as JPEGs, or those that are there: root/PHOTOGRAPH-QUARTER/NUMBER.jpg."""
    folder = root / f"crops-v{VERSION}-{count}-{seed}"
    if folder.exists():
        return folder
    pictures, rng = originals(), np.random.default_rng(seed)
    work = folder.with_name(f"{folder.name}.{os.getpid()}.tmp")
    try:
        for label in range(4 * len(pictures)):  # an ImageFolder numbers the folders that it finds
            (work / f"{label // 4:02d}-{label % 4}").mkdir(parents=True)
        for number in range(count):
            which = number % len(pictures)
            crop, quarter = cut(pictures[which], rng)
            options = {"quality": int(rng.integers(60, 96)), "subsampling": int(rng.integers(3))}
            crop.save(work / f"{which:02d}-{quarter}" / f"{number:05d}.jpg", "JPEG", **options)
        work.rename(folder)  # whole or not at all
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return folder


def transforms(size: int, *, tensors: bool = True, mode: Mode = Mode.BILINEAR) -> v2.Compose:
    """ImageNet's for validation; without `tensors` Pillow resizes."""
    floats = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    space = [v2.Resize(size * 256 // 224, interpolation=mode), v2.CenterCrop(size)]
    return v2.Compose([v2.ToImage(), *space, *floats] if tensors else [*space, v2.ToImage(), *floats])


def trained(dataset: ImageFolder, epochs: int, device: torch.device) -> nn.Module:
    """A resnet18 that has seen the dataset `epochs` times, by torch's loader."""
    torch.manual_seed(0)
    model: nn.Module = torchvision.models.resnet18(num_classes=len(dataset.classes))
    model = model.to(device).to(memory_format=torch.channels_last)
    loader = TorchLoader(dataset, TRAIN_BATCH, shuffle=True, drop_last=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=MOST_LR, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, MOST_LR, total_steps=epochs * len(loader))
    half = device.type == "cuda"  # a CPU without arithmetic for bfloat16 would take five times as long with it
    for epoch in range(epochs):
        total = 0.0
        for images, labels in loader:
            with torch.autocast(device.type, torch.bfloat16, enabled=half):
                scores = model(images.to(device, memory_format=torch.channels_last))
                loss = nn.functional.cross_entropy(scores, labels.to(device))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            total += float(loss.detach())
        print(f"epoch {epoch}: loss {total / len(loader):.3f}", flush=True)
    return model.eval()


def judged(model: nn.Module, loader: Any, device: torch.device) -> Judged:
    """The logits of all crops, and their labels."""
    scores, labels = [], []
    with torch.inference_mode():
        for images, some in loader:
            scores.append(model(images.to(device, memory_format=torch.channels_last)).cpu())
            labels.append(some.cpu())
    return torch.cat(scores), torch.cat(labels)


def ways(val: Path, size: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Every loader by name: torch's on PIL images and on tensors come first."""
    pil, tensors = (ImageFolder(str(val), transforms(size, tensors=kind)) for kind in (False, True))
    rough = ImageFolder(str(val), transforms(size, mode=Mode.NEAREST))
    yield "torch, PIL", lambda: TorchLoader(pil, VAL_BATCH)
    yield "torch, tensors", lambda: TorchLoader(tensors, VAL_BATCH)
    yield "host, PIL", lambda: DataLoader(pil, VAL_BATCH, device="cpu")
    yield "host, tensors", lambda: DataLoader(tensors, VAL_BATCH, device="cpu")
    yield "dali on the CPU", lambda: DataLoader(pil, VAL_BATCH, device="cpu", decode=Decode(engine="dali"))
    yield "torch, nearest", lambda: TorchLoader(rough, VAL_BATCH)
    if torch.cuda.is_available():
        yield "dali on the GPU", lambda: DataLoader(pil, VAL_BATCH, device="cuda")


def beside(ours: Judged, theirs: Judged, who: str) -> dict[str, str | int]:
    """Three columns that compare two ways."""
    assert torch.equal(ours[1], theirs[1]), "the order must be the same"
    return {
        f"points from {who}": f"{top1(ours) - top1(theirs):+.2f}",
        f"others than {who}": int((ours[0].argmax(1) != theirs[0].argmax(1)).sum()),
        f"logit from {who}": f"{float((ours[0] - theirs[0]).abs().max()):.4f}",
    }


def top1(found: Judged) -> float:
    """In percent."""
    return 100 * float((found[0].argmax(1) == found[1]).double().mean())


def main() -> None:
    """Train, judge, print, and add rows to results/top1.csv."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--train", type=int, default=2000, help="crops to train on (default %(default)s)")
    parser.add_argument("--val", type=int, default=1000, help="crops to judge (default %(default)s)")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--data", type=Path, default=None, help="folder that keeps the crops")
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    root: Path = args.data or cache_folder()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    asked = {"size": args.size, "train": args.train, "val": args.val, "epochs": args.epochs}
    made = facts() | {"torchvision": torchvision.__version__, "model on": device.type} | asked
    learnt = ImageFolder(str(crops(root, args.train, 0)), transforms(args.size))
    val = crops(root, args.val, 1)
    model = trained(learnt, args.epochs, device)
    found: dict[str, Judged] = {}
    for name, make in ways(val, args.size):
        loader = make()
        found[name] = judged(model, loader, device)
        if isinstance(loader, DataLoader):
            loader.close()
        print(f"{name}: {top1(found[name]):.2f} %", flush=True)
    rows = [
        {"loader": name, "top-1": f"{top1(each):.2f}"}
        | beside(each, found["torch, PIL"], "PIL")
        | beside(each, found["torch, tensors"], "tensors")
        for name, each in found.items()
    ]
    print(table(rows, list(rows[0])))
    print(f"\nadded {len(rows)} rows to {append('top1', [made | row for row in rows], args.results)}")


if __name__ == "__main__":
    main()
