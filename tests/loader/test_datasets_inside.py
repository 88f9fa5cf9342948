"""Insides that contract/torch/test_datasets.py needs not: they go with what they test."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.images import jpeg, png
from torch.utils.data import (
    ConcatDataset,
    Subset,
)
from torchvision import transforms as v1
from torchvision.datasets import DatasetFolder, ImageFolder
from torchvision.transforms import v2

from dali_feed import DataLoader
from dali_feed.errors import ConfigError
from dali_feed.loader.datasets import Lowered, lower_dataset

TRANSFORM = v2.Compose([v2.ToImage(), v2.Resize((12, 10)), v2.ToDtype(torch.float32, scale=True)])


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes of five images, JPEG and PNG, of several sizes."""
    folder = tmp_path_factory.mktemp("folder")
    for n in range(15):
        path = folder / f"class {n % 3}" / f"{n:02d}.{'png' if n % 4 == 3 else 'jpg'}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(png(n, 20 + n, 30) if n % 4 == 3 else jpeg(n, 20 + n, 30))
    return folder


class Own(ImageFolder):  # type: ignore[misc]
    """Gives its samples in a way of its own."""

    def __getitem__(self, index: int) -> Any:
        return torch.zeros(3), index


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (Own, "Own has a __getitem__ of its own"),
        (lambda root: ImageFolder(root, loader=lambda path: path), r"its loader='<lambda>' is not torchvision's own"),
        (lambda root: ImageFolder(root, target_transform=str), "its target_transform gives '0' for class 0"),
        (lambda root: ConcatDataset([ImageFolder(root), ImageFolder(root, TRANSFORM)]), "different transforms"),
        (lambda root: Subset(Own(root), [0]), "Own has a __getitem__ of its own"),
        (lambda _: [1, 2], "a list must hold paths"),
        (lambda _: range(3), "builtins.range has a __getitem__ of its own"),
    ],
)
def test_what_is_not_certain_to_be_the_same_is_not_taken(root: Path, make: Any, why: str) -> None:
    """It has a reason instead, and fallback='error' refuses it with that reason."""
    found = lower_dataset(make(str(root)))
    assert isinstance(found, str)
    assert re.search(why, found)
    with pytest.raises(ConfigError, match=f"^dataset: .*{why}.*fallback='error'"):
        DataLoader(make(str(root)), device="cpu", fallback="error")


def test_a_dataset_folder_is_taken_with_torchvisions_loader(root: Path) -> None:
    """DatasetFolder needs a loader named; pil_loader is as good as none."""
    from torchvision.datasets.folder import pil_loader

    found = lower_dataset(DatasetFolder(str(root), pil_loader, extensions=(".jpg",)))
    assert isinstance(found, Lowered)
    assert len(found.source.snapshot()) == len(list(root.glob("*/*.jpg")))


def test_parts_are_compared_by_what_their_transforms_do(root: Path) -> None:
    """Texts leave things out: two crops that print alike and fill differently are not the same."""
    crops = [v1.Compose([v1.RandomCrop(40, padding=9, fill=fill), v1.ToTensor()]) for fill in (0, 0, 255)]
    folders = [ImageFolder(str(root), crop) for crop in crops]
    assert repr(crops[0]) == repr(crops[2])
    assert isinstance(lower_dataset(ConcatDataset(folders[:2])), Lowered)
    assert "different transforms" in str(lower_dataset(ConcatDataset(folders)))


@pytest.mark.parametrize(
    "make",
    [
        lambda root: ["hello world", "another sentence"],
        lambda root: [("hello world", 1)],
        lambda root: [(str(next(root.glob("*/*.jpg"))), [1])],
        lambda root: Subset(ImageFolder(str(root)), []),
        lambda root: Subset(ImageFolder(str(root)), [99]),
        lambda root: Subset(ImageFolder(str(root)), [1.7]),  # type: ignore[list-item]
    ],
)
def test_what_is_no_list_of_images_goes_to_torch(root: Path, make: Any) -> None:
    """Texts, labels that are no ints, and indices that leave the dataset: a reason each."""
    assert isinstance(lower_dataset(make(root)), str)
