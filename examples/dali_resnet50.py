"""Train a classifier on DALI's pipeline, fed by DALI's reader or by any source of ours.

    python examples/dali_resnet50.py --data imagenet/train                      # a folder per class
    python examples/dali_resnet50.py --data 'imagenet/train-*.tar' --classes 1000
    python examples/dali_resnet50.py --data kafka://broker:9092/imagenet --classes 1000
    python examples/dali_resnet50.py --data imagenet/train --dalis-own          # as it was before

The graph and the training loop are the same both ways. What changes is marked with (1), the import, and (2), the line
where the records come from; what is gained is at (3): a checkpoint in the middle of an epoch. On a machine without a
GPU it runs on DALI's CPU backend; --tiny makes it quick.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from nvidia.dali import fn, pipeline_def, types
from torch import nn

from dali_feed.external_sources import FileList, KafkaTopic, ShardSet
from dali_feed.records.source import Source

MEAN, STD = [0.485 * 255, 0.456 * 255, 0.406 * 255], [0.229 * 255, 0.224 * 255, 0.225 * 255]


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--data", required=True, help="folder of class folders, 'shards-*.tar', or kafka://broker/topic"
    )
    parser.add_argument("--dalis-own", action="store_true", help="DALI's reader and iterator, on a folder")
    parser.add_argument("--classes", type=int, help="where --data is no folder, which tells")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tiny", action="store_true", help="a network of two layers instead of ResNet-50")
    parser.add_argument("--checkpoint", type=Path, help="written after each epoch and at --stop-after; gone on with")
    parser.add_argument("--stop-after", type=int, help="save and stop after so many steps, as a preempted job would")
    return parser.parse_args(given)


def augmented(payloads: Any, size: int, *, gpu: bool) -> Any:
    """The usual augmentation, in DALI's own operators."""
    images = fn.decoders.image_random_crop(payloads, device="mixed" if gpu else "cpu", output_type=types.RGB)
    images = fn.resize(images, size=[size, size])
    return fn.crop_mirror_normalize(
        images, mirror=fn.random.coin_flip(), dtype=types.FLOAT, output_layout="CHW", mean=MEAN, std=STD
    )


@pipeline_def  # type: ignore[untyped-decorator, unused-ignore]
def before(root: str, size: int, *, gpu: bool) -> Any:
    """As a DALI user has it: the reader is part of the graph."""
    payloads, labels = fn.readers.file(file_root=root, random_shuffle=True, name="Reader")  # (2)
    return augmented(payloads, size, gpu=gpu), labels


@pipeline_def  # type: ignore[untyped-decorator, unused-ignore]
def after(size: int, *, gpu: bool) -> Any:
    """The same, fed from outside."""
    payloads, labels = fn.external_source(name="image"), fn.external_source(name="label")  # (2)
    return augmented(payloads, size, gpu=gpu), labels


def source_of(data: str) -> Source:
    """Where the records are."""
    if data.startswith("kafka://"):
        broker, _, topic = data.removeprefix("kafka://").partition("/")
        return KafkaTopic(topic, broker)
    return FileList.from_folder(data) if Path(data).is_dir() else ShardSet(data)


def made_loop(args: argparse.Namespace, device: torch.device) -> Any:
    """The iterator, one way or the other."""
    gpu = device.type == "cuda"
    options = {"batch_size": args.batch_size, "num_threads": args.threads, "device_id": device.index if gpu else None}
    if args.dalis_own:
        from nvidia.dali.plugin.pytorch import DALIClassificationIterator as Before  # (1)
        from nvidia.dali.plugin.pytorch import LastBatchPolicy as BeforesPolicy

        pipe = before(args.data, args.size, gpu=gpu, seed=args.seed, **options)
        return Before(pipe, reader_name="Reader", last_batch_policy=BeforesPolicy.PARTIAL)
    from dali_feed.dali import DALIClassificationIterator, LastBatchPolicy  # (1)

    pipe = after(args.size, gpu=gpu, **options)
    return DALIClassificationIterator(
        pipe, source_of(args.data), last_batch_policy=LastBatchPolicy.PARTIAL, shuffle=True, seed=args.seed
    )


def made_model(args: argparse.Namespace) -> nn.Module:
    """ResNet-50, or something that learns colours."""
    classes = args.classes or sum(path.is_dir() for path in Path(args.data).iterdir())
    if args.tiny:
        layers = (nn.Conv2d(3, 8, 5, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, classes))
        return nn.Sequential(*layers)
    from torchvision.models import resnet50

    model: nn.Module = resnet50(num_classes=classes)
    return model


def main(given: list[str] | None = None) -> None:
    """Train."""
    args = arguments(given)
    torch.manual_seed(args.seed)
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    model = made_model(args).to(device)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9)
    loop = made_loop(args, device)
    epoch = step = 0
    if args.checkpoint and args.checkpoint.exists():
        saved = torch.load(args.checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        epoch, step = saved["epoch"], saved["step"]
        if not args.dalis_own:
            loop.load_state_dict(json.loads(saved["loop"]))  # (3)

    def save(epoch: int) -> None:
        if args.checkpoint:
            held = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch, "step": step}
            if not args.dalis_own:
                held["loop"] = json.dumps(loop.state_dict())  # (3)
            torch.save(held, args.checkpoint.with_suffix(".new"))
            args.checkpoint.with_suffix(".new").replace(args.checkpoint)  # whole or not at all

    for now in range(epoch, args.epochs):
        begun, seen, right, total = time.perf_counter(), 0, 0, 0.0
        for data in loop:
            images, labels = data[0]["data"].to(device), data[0]["label"].squeeze(-1).long().to(device)
            scores = model(images)
            loss = nn.functional.cross_entropy(scores, labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            step += 1
            seen += len(labels)
            right += int((scores.argmax(1) == labels).sum())
            total += loss.item() * len(labels)
            if step == args.stop_after:
                save(now)
                print(f"stopped at step {step}, {seen} samples into epoch {now}", flush=True)
                return
        loop.reset()
        save(now + 1)
        rate = seen / (time.perf_counter() - begun)
        told = f"loss {total / max(seen, 1):.3f}, {right / max(seen, 1):.0%} right, {rate:.0f} images/s"
        print(f"epoch {now}: {seen} samples, {told}", flush=True)


if __name__ == "__main__":
    main()
