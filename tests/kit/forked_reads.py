"""Workers of torch that read a shard behind an address: forked before and after this process reads, and spawned.

    python forked_reads.py URL

Prints a line of JSON for each way: its name, the labels that came or the error's name and words, and the seconds.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from typing import Any

import torch
from torch.utils import data as torch_data

import dali_feed
from dali_feed.external_sources import ShardSet
from dali_feed.records.extents import Extents
from dali_feed.records.slabs import SlabPool


class Labels(torch_data.Dataset[int]):
    """The labels of a shard, read when they are asked for, and of which only the first twelve are."""

    def __init__(self, source: ShardSet) -> None:
        self._source = source

    def __len__(self) -> int:
        return 12

    def __getitem__(self, k: int) -> int:
        reader = self._source.reader(["cls"])
        try:
            return int(bytes(reader.read(Extents.one(0, k, k + 1), SlabPool().lease()).values["cls"][0]))
        finally:
            reader.close()


def main(url: str) -> None:
    """Print what came of each way."""
    dataset = Labels(ShardSet(url))

    def tell(name: str, loader: Any, data: Any, context: str, workers: int = 2) -> None:
        begun, said = time.monotonic(), ""
        labels: list[int] = []
        try:
            for batch in loader(data, batch_size=4, num_workers=workers, multiprocessing_context=context):
                labels += torch.as_tensor(batch[0] if isinstance(batch, list | tuple) else batch).tolist()
        except Exception as error:  # noqa: BLE001  that is what is looked at
            said = f"{type(error).__name__}: {error}"
        print(json.dumps([name, labels, said, time.monotonic() - begun]), flush=True)  # noqa: T201

    tell("before", torch_data.DataLoader, dataset, "fork")
    dataset[3]
    tell("after", torch_data.DataLoader, dataset, "fork")
    tell("ours, after", dali_feed.DataLoader, dataset, "fork")
    tell("other data", torch_data.DataLoader, torch_data.TensorDataset(torch.arange(12)), "fork")
    tell("spawned", torch_data.DataLoader, dataset, "spawn", 1)
    print(json.dumps(["parent", [dataset[k] for k in range(12)], "", 0.0]), flush=True)  # noqa: T201


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(sys.argv[1])
