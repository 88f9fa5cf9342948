"""What only the CPU can do of a transform, for a loader on a GPU: the host engine runs it, with the CPU's pixels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kit.images import QUICK, png
from kit.later import Later
from torchvision.transforms import v2

from dali_feed import DataLoader, Decode
from dali_feed.testing import ScriptedSource

pytestmark = pytest.mark.device
timm = Later("timm.data")
SOURCE = ScriptedSource([(png(n, 40, 50), n) for n in range(8)], extent=4)
FLOAT = v2.ToDtype(torch.float32, scale=True)


def mirrored(image: Any) -> Any:
    """A function of a PIL image."""
    return image.rotate(180)


@pytest.mark.parametrize(
    "settings",
    [
        {"auto_augment": "rand-m9-mstd0.5-inc1", "re_prob": 0.5, "re_mode": "pixel"},
        {"train_crop_mode": "rkrc"},
        None,
    ],
)
def test_batches_are_the_cpus(settings: dict[str, Any] | None) -> None:
    """Where no engine was asked for, on the device, within what the finish step rounds: timm's, and a function."""
    if settings is None:
        transform: Any = v2.Compose([v2.CenterCrop(20), mirrored, FLOAT, v2.Normalize([0.5], [0.5])])
    else:
        transform = timm.create_transform(24, is_training=True, **settings)
    with (
        DataLoader(SOURCE, 4, transform=transform, device="cuda", tuning=QUICK) as there,
        DataLoader(SOURCE, 4, transform=transform, device="cpu", decode=Decode(engine="host"), tuning=QUICK) as here,
    ):
        for (a, _), (b, _) in zip(there, here, strict=True):
            assert a.is_cuda
            assert (a.cpu() - b).abs().max() < 1e-5


@pytest.mark.parametrize("engine", ["host", "dali"])
def test_gray_of_one_channel(engine: str) -> None:
    """One, in one block of memory."""
    transform = v2.Compose([v2.CenterCrop(20), v2.Grayscale(1), FLOAT, v2.Normalize([0.4], [0.2])])
    with (
        DataLoader(SOURCE, 4, transform=transform, device="cuda", decode=Decode(engine=engine), tuning=QUICK) as there,
        DataLoader(SOURCE, 4, transform=transform, device="cpu", decode=Decode(engine="host"), tuning=QUICK) as here,
    ):
        for (a, _), (b, _) in zip(there, here, strict=True):
            assert a.shape == b.shape == (4, 1, 20, 20)
            assert a.is_contiguous()
            assert (a.cpu() - b).abs().max() <= 1.01 / 255 / 0.2


def test_noise_is_the_same_on_every_device() -> None:
    """Of a PNG, which is decoded alike."""
    transform = v2.Compose([v2.CenterCrop(20), FLOAT, v2.GaussianNoise(0.0, 0.3)])
    found = []
    for device in ("cuda", "cpu"):
        with DataLoader(
            SOURCE, 8, transform=transform, device=device, decode=Decode(engine="host"), tuning=QUICK
        ) as loader:
            found.append(next(iter(loader))[0].cpu())
    assert (found[0] - found[1]).abs().max() < 1e-5


def test_an_interpolation_is_drawn_on_a_gpu_too() -> None:
    """By the dali engine, as the host engine draws it."""
    transform = timm.create_transform(24, is_training=True, interpolation="random", color_jitter=None)
    found = []
    for device, engine in (("cuda", "dali"), ("cpu", "host")):
        with DataLoader(
            SOURCE, 8, transform=transform, device=device, decode=Decode(engine=engine), tuning=QUICK
        ) as loader:
            found.append(next(iter(loader))[0].cpu())
    assert (found[0] - found[1]).abs().mean() < 0.05
