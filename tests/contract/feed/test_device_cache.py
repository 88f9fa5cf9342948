"""A cache on a GPU: what it refuses, before anything is read. test_device_cache_gpu.py holds its batches on a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from kit.cached_feeds import feed, scripted
from kit.member_shards import shards
from torchvision.transforms import v2

from dali_feed import Cache, DataLoader, Decode, Tuning
from dali_feed.columns import Text
from dali_feed.errors import ConfigError

FLOATS = (v2.ToDtype(torch.float32, scale=True), v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
CUT = (v2.Resize(20), v2.CenterCrop(16))
TRAIN = v2.Compose([*CUT, v2.RandomHorizontalFlip(), *FLOATS, v2.RandomErasing(0.5)])
CACHE = Cache(device="1MB")
HOST = {"decode": Decode(engine="host")}


@pytest.mark.parametrize(
    ("transform", "options", "found"),
    [
        (v2.Compose([v2.RandomResizedCrop(16), *FLOATS]), {}, "found RandomResizedCrop"),
        (v2.Compose([v2.RandomHorizontalFlip(), v2.RandomResizedCrop(16)]), {}, "found RandomResizedCrop"),
        (
            v2.Compose([v2.Resize((20, 20)), v2.RandomHorizontalFlip(), v2.CenterCrop(16)]),
            HOST,
            "found RandomHorizontalFlip",
        ),
        (v2.Compose([v2.Resize(20), v2.RandomCrop(16), *FLOATS]), HOST, "found RandomCrop"),
        (v2.Compose([v2.Resize((20, 20)), v2.RandomCrop(16, padding=4), *FLOATS]), {}, "found RandomCrop"),
        (v2.Compose([v2.Resize(20), v2.RandomCrop(16, 2, padding_mode="edge"), *FLOATS]), HOST, "found RandomCrop"),
        (v2.Compose([v2.RandomCrop(16), *FLOATS]), HOST, "found RandomCrop"),
        (v2.Compose([v2.Resize((20, 24)), v2.RandomRotation(30), *FLOATS]), {}, "found RandomRotation"),
        (v2.Compose([v2.Resize((20, 20)), v2.ColorJitter(0.4), *FLOATS]), HOST, "found ColorJitter"),
        (v2.Compose([v2.CenterCrop(16), v2.RandomApply([v2.GaussianBlur(3)], 0.5)]), HOST, "found RandomApply"),
        ([TRAIN, TRAIN], {}, "found 2 views"),
        (v2.Compose(CUT), {"decode": Decode(hardware=0.5)}, r"with Decode\(hardware=0.5\)"),
        (None, {"columns": {"text": Text("txt")}}, "no column that is an Image"),
        (lambda images, draws: images, {"decode": Decode(engine="dali")}, "found a DALI graph"),
        (TRAIN, {"device": None}, r"found a loader on the CPU.*Cache\(memory, pixels=True\)"),
    ],
)
def test_what_is_another_image_in_each_epoch_is_refused(
    tmp_path: Path, transform: Any, options: dict[str, Any], found: str
) -> None:
    """By the name of what is random, or whatever else it cannot keep, and with the cure."""
    with pytest.raises(ConfigError, match=rf"Cache\(device=.*{found}"):
        feed(shards(tmp_path), CACHE, transform=transform, **{"device": 0, **options})


def test_a_loader_on_the_cpu_is_refused() -> None:
    """There is no GPU to keep images on; the error names the cache that keeps them in memory."""
    with pytest.raises(ConfigError, match=r"Cache\(device=.*found a loader on the CPU"):
        DataLoader(scripted(), 8, transform=TRAIN, device="cpu", tuning=Tuning(cache=CACHE))


@pytest.mark.parametrize(
    "options", [{"device": "much"}, {"device": -1}, {"device": 0}, {"device": "1GB", "pixels": True}]
)
def test_values_that_are_none_are_refused(options: dict[str, Any]) -> None:
    """A size is a size; pixels are kept in memory or on a disk."""
    with pytest.raises(ConfigError, match=r"Cache\("):
        Cache(**options)
