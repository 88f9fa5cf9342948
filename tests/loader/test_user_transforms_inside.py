"""Insides that contract/torch/test_user_transforms.py needs not: they go with what they test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from kit.images import jpeg
from torch.utils.data import ConcatDataset
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from dali_feed import DataLoader
from dali_feed.errors import FallbackWarning
from dali_feed.loader.functions import split

pytestmark = pytest.mark.usefixtures("each_engine")


def images(found: DataLoader) -> list[Any]:
    """Those of an epoch, batch by batch."""
    with found:
        return [batch for batch, _ in found]


def flatten(image: torch.Tensor) -> torch.Tensor:
    """One image as a vector: of a whole batch it would be another thing."""
    assert image.shape == (3, 16, 16)
    return image.flatten() - image.mean()


class Scale(torch.nn.Module):
    """A module of the user's."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """The image times three."""
        return image * 3


def test_folders_are_joined_where_their_functions_are_the_same(tmp_path: Path) -> None:
    """Equal transforms, made twice, are one with the same function behind them, and two with two functions."""
    path = tmp_path / "class" / "0.jpg"
    path.parent.mkdir()
    path.write_bytes(jpeg(0))

    def folder(function: Any) -> ImageFolder:
        return ImageFolder(str(tmp_path), v2.Compose([v1.ToTensor(), function]))

    with DataLoader(ConcatDataset([folder(flatten), folder(flatten)]), 2, device="cpu") as found:
        assert [images.shape for images, _ in found] == [(2, 768)]
    with pytest.warns(FallbackWarning, match="different transforms"):
        DataLoader(ConcatDataset([folder(flatten), folder(Scale())]), device="cpu")


def test_nothing_is_split_off_what_has_none() -> None:
    """A transform without functions of the user's goes on as it is."""
    for transform in (None, v2.Resize(3), v2.Compose([v2.Resize(3), v1.ToTensor()]), v1.Compose([]), "Resize"):
        assert split(transform) == (transform, (None,))
