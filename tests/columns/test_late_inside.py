"""Insides that contract/columns/test_late.py needs not: they go with what they test."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import torch
from kit.member_shards import shards
from torchvision.transforms import v2

from dali_feed import DataLoader, Decode, Tuning
from dali_feed.columns import Bytes, Image
from dali_feed.columns.column import Follower

TWO = Tuning(threads=2, readers=1, next_epoch=False)  # calls are counted


class TorchThreads(Follower):
    """A kind that follows an image, and gives how many threads torch's operations have where it does so."""

    member, of = "txt", "image"

    def read(self, values: Any, faults: Any) -> Any:
        """As they are."""
        return values

    def followed(self, value: Any, size: tuple[int, int], moved: Any) -> int:
        """The number."""
        return torch.get_num_threads()


def test_torchs_operations_have_one_thread_in_each_of_ours(tmp_path: Path) -> None:
    """Else threads times threads wait in loops for each other; elsewhere in the process torch has what it had."""
    columns = {
        "image": Image("jpg", v2.Resize((8, 8))),
        "own": Bytes("txt", decode=lambda _: torch.get_num_threads()),
        "follows": TorchThreads(),
    }
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with DataLoader(shards(tmp_path), 6, columns=columns, decode=Decode(engine="dali"), tuning=TWO) as loader:
            for batch in loader:
                assert batch["own"] == batch["follows"] == [1] * len(batch["own"])
        found = []
        thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert [torch.get_num_threads(), *found] == [3, 3]
    finally:
        torch.set_num_threads(before)
