"""A loader whose batches are mixed."""

from __future__ import annotations

from typing import Any

import torch
from kit.images import QUICK, labelled
from torchvision.transforms import v2

from dali_feed import DataLoader, Mixing, Shuffle
from dali_feed.testing import ScriptedSource

FLOAT = v2.Compose([v2.RandomResizedCrop((12, 10)), v2.ToDtype(torch.float32, scale=True)])
BOTH = Mixing(mixup=0.4, cutmix=1.0, p=0.8, classes=30, smoothing=0.1)


def loader(mixing: Any, size: int = 6, transform: Any = FLOAT, **options: Any) -> DataLoader:
    """Twenty images in batches."""
    source = ScriptedSource(labelled(20), extent=4)
    how = {"shuffle": Shuffle(4, 2), "seed": 3, "device": "cpu", "tuning": QUICK, **options}
    return DataLoader(source, size, transform=transform, collate_fn=mixing, **how)
