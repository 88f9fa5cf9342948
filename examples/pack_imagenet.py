"""ImageNet as a set of shards: a folder per class in, tar files with checksums out, and a look at the first batch.

    python examples/pack_imagenet.py IMAGENET/train /data/imagenet [--name train] [--resize 512] [--shard-size-mb 512]

Killed, it goes on when it is called again. `dali-feed pack IMAGENET/train /data/imagenet/train.dfset` does the same.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from torchvision.transforms import v2

from dali_feed import DataLoader
from dali_feed.external_sources import FileList, ShardSet
from dali_feed.packing import pack, verify


def main() -> None:
    """Pack, read all of it again, and train on it from here on."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a folder per class")
    parser.add_argument("out", type=Path)
    parser.add_argument("--name", default="train")
    parser.add_argument("--resize", type=int, help="the shorter side of larger images becomes so long")
    parser.add_argument("--shard-size-mb", type=int, default=512)
    args = parser.parse_args()

    path = args.out / f"{args.name}.dfset"
    images = FileList.from_folder(args.folder)
    done = pack(images, path, resize=args.resize, shard_bytes=args.shard_size_mb * 1_000_000)
    print(f"{done.tally.records:,} images in {done.shards:,} shards, {done.tally.failed:,} left out")
    damages = verify(path).damages
    print(f"{len(damages)} files are damaged")

    transform = v2.Compose([v2.RandomResizedCrop(64), v2.RandomHorizontalFlip()])
    with DataLoader(ShardSet(path), batch_size=4, shuffle=True, transform=transform, device="cpu") as loader:
        batch, labels = next(iter(loader))
        print(f"a batch of {tuple(batch.shape)}, labels {labels.tolist()}")


if __name__ == "__main__":
    main()
