"""Insides that contract/torch/test_datasets.py needs not: they go with what they test."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit.images import jpeg, png
from kit.inside import running
from torch.utils.data import (
    ConcatDataset,
    Subset,
    default_collate,
)
from torch.utils.data import DataLoader as TorchLoader
from torchvision import transforms as v1
from torchvision.datasets import DatasetFolder, ImageFolder
from torchvision.transforms import v2

from dali_feed import DataLoader
from dali_feed.errors import FallbackWarning
from dali_feed.feed import Feed
from dali_feed.loader.adapters import Lowered, lower_dataset

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


def tensors(root: Path, **options: Any) -> ImageFolder:
    """An ImageFolder that torch's loader can batch, decoded as tensors, so that pixels can be compared bit for bit."""
    return ImageFolder(str(root), TRANSFORM, **options)


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
    """It has a reason instead, which the warning says."""
    found = lower_dataset(make(str(root)))
    assert isinstance(found, str)
    assert re.search(why, found)
    with pytest.warns(FallbackWarning, match=f"^dataset: .*{why}"):
        DataLoader(make(str(root)), device="cpu")


def test_a_dataset_folder_is_taken_with_torchvisions_loader(root: Path) -> None:
    """DatasetFolder needs a loader named; pil_loader is as good as none."""
    from torchvision.datasets.folder import pil_loader

    found = lower_dataset(DatasetFolder(str(root), pil_loader, extensions=(".jpg",)))
    assert isinstance(found, Lowered)
    assert len(found.source.snapshot()) == len(list(root.glob("*/*.jpg")))


def fast_collate(samples: list[Any]) -> Any:
    """As apex's: of PIL images, whose size is a pair, in whole levels."""
    images, targets = [image for image, _ in samples], torch.tensor([target for _, target in samples])
    width, height = images[0].size[0], images[0].size[1]
    batch = torch.zeros((len(images), 3, height, width), dtype=torch.uint8)
    for n, image in enumerate(images):
        batch[n] += torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)
    return batch, targets


@pytest.mark.parametrize("crop", [v2.CenterCrop(16), v1.Compose([v1.CenterCrop(16), v1.RandomHorizontalFlip(0.0)])])
def test_a_collate_fn_that_wants_pil_images_is_given_them(root: Path, crop: Any) -> None:
    """By torch's own loader, with the reason in its warning; with a transform that makes tensors by ours."""
    data = ImageFolder(str(root), crop)
    with pytest.warns(
        UserWarning,
        match="ImageFolder .*, because its transform gives PIL images, and its collate_fn takes them; torch's own",
    ):
        loader = DataLoader(data, 4, device="cpu", collate_fn=fast_collate)
    with loader:
        for (a, x), (b, y) in zip(loader, TorchLoader(data, 4, collate_fn=fast_collate), strict=True):
            assert torch.equal(a, b)
            assert torch.equal(x, y)
    with pytest.warns(FallbackWarning, match="gives PIL images, and its collate_fn takes them"):
        DataLoader(data, 4, device="cpu", collate_fn=fast_collate)
    with DataLoader(data, 4, device="cpu", collate_fn=default_collate) as ours:
        assert isinstance(running(ours), Feed)
    with DataLoader(tensors(root), 4, device="cpu", collate_fn=default_collate) as ours:
        assert isinstance(running(ours), Feed)


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
