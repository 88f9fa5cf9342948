"""Training on a Kafka topic that never ends, with checkpoints: killed and started again, no record is lost or repeated.

    python examples/continual_training.py --out run --servers broker:9092 --topic clicks --steps 1000
    python examples/continual_training.py --out run --servers broker:9092 --topic clicks --steps 2000  # goes on
    python examples/continual_training.py --out run --servers broker:9092 --topic clicks --replay  # what it has seen

The topic has images, and their classes in the header `label`. A checkpoint has the model with the stream's position: of
what the loop received, not of what was read ahead. --replay reads the stretch from the first checkpoint to the last as
a data set that ends: the same records with the same augmentation, to look for the one that spoilt the model.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from pictures import COLOURS, SIDE, network
from torch import nn
from torchvision.transforms import v2

from dali_feed import DataLoader
from dali_feed.external_sources import KafkaStream

TRANSFORM = v2.Compose([v2.Resize((SIDE, SIDE)), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)])


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument("--servers", required=True, help="of Kafka")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=1000, help="in all; a run that was stopped before goes on to it")
    parser.add_argument("--every", type=int, default=100, help="steps between checkpoints")
    parser.add_argument("--replay", action="store_true", help="read again what the checkpoint has been trained with")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> list[list[str]]:
    """Train up to --steps, from the checkpoint where there is one; gives the coordinates of each step's records."""
    args = arguments(given)
    args.out.mkdir(parents=True, exist_ok=True)
    stream = KafkaStream(args.topic, args.servers, start="earliest")
    checkpoint = args.out / "checkpoint.pt"
    saved = torch.load(checkpoint, weights_only=True) if checkpoint.exists() else None
    if args.replay:
        return replay(stream, saved, args.batch_size)
    torch.manual_seed(0)
    with DataLoader(stream, args.batch_size, transform=TRANSFORM, seed=0, info=True) as loader:
        model = network(len(COLOURS)).to(loader.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        step, begin = 0, ""
        if saved is not None:
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            loader.load_state_dict(json.loads(saved["loader"]))
            step, begin = saved["step"], saved["begin"]
        batches = iter(loader)
        begin = begin or json.dumps(loader.state_dict())  # where the stream began
        seen = []
        while step < args.steps:
            images, labels, info = next(batches)
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            step += 1
            seen.append([where for where, ok in zip(info.where, info.ok.tolist(), strict=True) if ok])
            if step % args.every == 0:
                held = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step, "begin": begin}
                torch.save(held | {"loader": json.dumps(loader.state_dict())}, checkpoint.with_suffix(".new"))
                checkpoint.with_suffix(".new").replace(checkpoint)  # whole or not at all
                loader.commit()  # for lag tools, where the stream has a group: the checkpoint is what counts
                print(f"step {step}: loss {loss.item():.4f}", flush=True)
    return seen


def replay(stream: KafkaStream, saved: dict[str, Any] | None, batch_size: int) -> list[list[str]]:
    """The records between the first checkpoint's beginning and the last one, with the loss of each batch."""
    if saved is None:
        msg = "--replay: there must be a checkpoint; found none under --out"
        raise SystemExit(msg)
    first, last = (json.loads(saved[name])["stream"] for name in ("begin", "loader"))
    seen = []
    with DataLoader(stream.replay(first, last), batch_size, transform=TRANSFORM, seed=0, info=True) as loader:
        model = network(len(COLOURS)).to(loader.device)
        model.load_state_dict(saved["model"])
        for images, labels, info in loader:
            with torch.no_grad():
                loss = nn.functional.cross_entropy(model(images), labels)
            seen.append([where for where, ok in zip(info.where, info.ok.tolist(), strict=True) if ok])
            print(f"{info.where[0]} to {info.where[-1]}: loss {loss.item():.4f}")
    return seen


if __name__ == "__main__":
    main()
