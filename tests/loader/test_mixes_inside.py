"""Insides that contract/torch/test_mixes.py needs not: they go with what they test."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from kit.images import QUICK, labelled
from numpy.typing import NDArray
from torchvision.transforms import v2

from dali_feed import DataLoader, Decode, Mixing, Shuffle
from dali_feed.engines.gpu.device import Uploaded, size_of
from dali_feed.kernels.finish import MixArrays, mixed_values
from dali_feed.testing.scripted import ScriptedSource
from dali_feed.transforms.mixing import Mixed, mixed, soft_labels

FLOAT = v2.Compose([v2.RandomResizedCrop((12, 10)), v2.ToDtype(torch.float32, scale=True)])
BOTH = Mixing(mixup=0.4, cutmix=1.0, p=0.8, classes=30, smoothing=0.1)


def loader(mixing: Any, size: int = 6, transform: Any = FLOAT, **options: Any) -> DataLoader:
    """Twenty images in batches."""
    source = ScriptedSource(labelled(20), extent=4)
    how = {"shuffle": Shuffle(4, 2), "seed": 3, "device": "cpu", "tuning": QUICK, **options}
    return DataLoader(source, size, transform=transform, collate_fn=mixing, **how)


def drawn_for(info: Any, mixing: Mixing, epoch: int = 0) -> Mixed:
    """The draws of a batch of the loader."""
    return mixed(mixing, info.ids.numpy(), 3, epoch, (12, 10))


def reference(images: torch.Tensor, drawn: Mixed) -> NDArray[np.float32]:
    """The images mixed as the reference of `finish` mixes them."""
    found = mixed_values(images.permute(0, 2, 3, 1).numpy(), MixArrays(drawn.partner, drawn.weight, drawn.box))
    return np.ascontiguousarray(found.transpose(0, 3, 1, 2))


@pytest.mark.parametrize("engine", ["host", "dali"])
def test_images_and_labels_are_mixed_by_the_same_draws(engine: str) -> None:
    """The pixels are the kernel's reference of the plain batch's, bit for bit; the labels its shares."""
    with (
        loader(None, info=True, decode=Decode(engine=engine)) as plain,
        loader(BOTH, info=True, decode=Decode(engine=engine)) as mixing,
    ):
        for epoch in range(2):
            for (images, labels, info), (given, soft, same) in zip(plain, mixing, strict=True):
                assert torch.equal(info.ids, same.ids)
                drawn = drawn_for(info, BOTH, epoch)
                wanted = reference(images, drawn)
                assert np.array_equal(given.numpy(), wanted)
                assert not np.array_equal(given.numpy(), images.numpy())
                assert np.array_equal(soft.numpy(), soft_labels(labels.numpy(), drawn, 30, 0.1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_are_mixed_in_float32(dtype: torch.dtype) -> None:
    """And rounded once; channels last stay so."""
    transform = v2.Compose([v2.RandomResizedCrop((12, 10)), v2.ToDtype(dtype, scale=True)])
    options: dict[str, Any] = {
        "transform": transform,
        "decode": Decode(memory_format=torch.channels_last),
        "info": True,
    }
    with loader(None, **options) as plain, loader(BOTH, **options) as mixing:
        for (images, _, info), (given, _, _) in zip(plain, mixing, strict=True):
            drawn = drawn_for(info, BOTH)
            wide = reference(images.float(), drawn)
            assert given.dtype == dtype
            assert given.is_contiguous(memory_format=torch.channels_last)
            assert torch.equal(given, torch.from_numpy(wide).to(dtype))


class _OfDali:
    """Memory as DALI shows it: its `shape` is a method."""

    __cuda_array_interface__: ClassVar[dict[str, Any]] = {"shape": (4, 12, 10, 3)}

    def shape(self) -> list[int]:
        """As DALI has it."""
        return [4, 12, 10, 3]


def test_the_size_of_unfinished_images_is_known_on_a_gpu() -> None:
    """Of DALI's memory, and of what the host engine has sent there: boxes are drawn for it."""
    assert size_of(_OfDali()) == (12, 10)
    assert size_of(Uploaded(torch.zeros(4, 12, 10, 3), None)) == (12, 10)  # type: ignore[arg-type]
