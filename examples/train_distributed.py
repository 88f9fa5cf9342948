"""Train on several ranks, stop anywhere, go on with another number of ranks.

    torchrun --nproc-per-node 2 examples/train_distributed.py --out run --stop-after 5
    torchrun --nproc-per-node 4 examples/train_distributed.py --out run

It runs on the CPU with gloo. Without --data it makes some hundred images of coloured squares, in tar shards under
--out. The global batch (all ranks' batches of a step) has the same samples at any world size that divides --lanes;
--trace writes down what each rank got.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torchvision.io import encode_jpeg
from torchvision.transforms import v2

from dali_feed import BadRecords, DataLoader, Info
from dali_feed.external_sources import ShardSet
from dali_feed.packing.sinks import write_shard

SIDE = 32
COLOURS = ((250, 40, 40), (40, 250, 40), (40, 40, 250), (250, 250, 40))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--out", type=Path, required=True, help="folder of the checkpoint, of --trace and of made shards"
    )
    parser.add_argument("--data", help="tar shards, as 'train-*.tar'; made under --out where this is not given")
    parser.add_argument("--classes", type=int, default=len(COLOURS), help="labels are 0 to this")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--global-batch", type=int, default=32, help="over all ranks; --lanes must divide it")
    parser.add_argument("--lanes", type=int, default=4, help="world sizes that divide it can go on with the checkpoint")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--bad-limit", type=Fraction, default=Fraction(1, 100), help="share of bad records that is borne"
    )
    parser.add_argument("--stop-after", type=int, help="save and stop after so many steps, as a preempted job would")
    parser.add_argument("--trace", action="store_true")
    return parser.parse_args()


def main() -> None:
    """One rank, from its loader to its end."""
    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    with process_group() as (rank, ranks):
        loader = DataLoader(
            ShardSet(args.data or made_shards(args.out, rank)),
            args.global_batch // ranks,
            shuffle=True,
            seed=args.seed,
            lanes=args.lanes,
            device="cpu",
            transform=v2.Compose(
                [
                    v2.RandomResizedCrop(SIDE, scale=(0.5, 1.0)),
                    v2.RandomHorizontalFlip(),
                    v2.ToDtype(torch.float32, scale=True),
                ]
            ),
            bad=BadRecords(limit=args.bad_limit),
            info=True,
        )
        with loader:
            train(args, loader, rank)


def train(args: argparse.Namespace, loader: DataLoader, rank: int) -> None:
    """The training loop, from the checkpoint where there is one."""
    torch.manual_seed(args.seed)
    model = DistributedDataParallel(
        nn.Sequential(
            *(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU()),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, args.classes)),
        )
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    checkpoint, step = args.out / "checkpoint.pt", 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(json.loads(saved["loader"]))
        step = saved["step"]

    def save() -> None:
        if rank == 0:  # the loader's state is the same on every rank
            held = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
            held |= {"loader": json.dumps(loader.state_dict()), "step": step}
            torch.save(held, checkpoint.with_suffix(".new"))
            checkpoint.with_suffix(".new").replace(checkpoint)  # whole or not at all
            loader.commit()  # for lag tools, where the source is a Kafka topic with a group

    trace = args.out / f"trace-of-{dist.get_world_size()}-rank-{rank}.jsonl" if args.trace else None
    for epoch in range(loader.epoch, args.epochs):
        for images, labels, info in loader:
            if trace is not None:
                note(trace, step, images, labels, info)
            # Each step is a meeting of all ranks: were one of them a batch short, the others would wait for ever.
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            step += 1
            if rank == 0 and step % 10 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.3f}", flush=True)
            if step == args.stop_after:
                save()
                return
        save()
    if rank == 0:
        print(f"done: {step} steps; {len(loader.stats().recent_bad)} bad records on rank 0", flush=True)


def note(trace: Path, step: int, images: torch.Tensor, labels: torch.Tensor, info: Info) -> None:
    """A line of JSON: which samples this rank got, place by place."""
    pixels = [hashlib.sha256(image.contiguous().numpy().tobytes()).hexdigest()[:16] for image in images]
    line: dict[str, Any] = {"step": step, "ids": info.ids.tolist(), "ok": info.ok.tolist(), "labels": labels.tolist()}
    line["pixels"] = pixels
    with trace.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def made_shards(folder: Path, rank: int) -> str:
    """Squares of four colours, in three shards of unequal length; rank 0 makes them, the others wait."""
    if rank == 0 and not (folder / "squares-2.tar").exists():
        draws = torch.Generator().manual_seed(1)
        for shard, count in enumerate((150, 40, 101)):
            write_shard(folder / f"squares-{shard}.tar", [square(n % len(COLOURS), draws) for n in range(count)])
    dist.barrier()
    return str(folder / "squares-*.tar")


def square(colour: int, draws: torch.Generator) -> tuple[bytes, int]:
    """A JPEG of noise with a coloured square on it, and which colour that is."""
    image = torch.randint(0, 120, (3, 48, 48), dtype=torch.uint8, generator=draws)
    image[:, 12:36, 12:36] = torch.tensor(COLOURS[colour], dtype=torch.uint8)[:, None, None]
    return encode_jpeg(image).numpy().tobytes(), colour


@contextmanager
def process_group() -> Iterator[tuple[int, int]]:
    """Rank and number of ranks, as torchrun says."""
    dist.init_process_group("gloo")
    try:
        yield dist.get_rank(), dist.get_world_size()
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
