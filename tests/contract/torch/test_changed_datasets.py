"""A dataset that is changed behind the back of its loader: torch's loader sees it, so ours says that it does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit.images import QUICK, jpeg
from torch.utils.data import ConcatDataset, Subset
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from dali_feed import DataLoader
from dali_feed.errors import ConfigError

STEPS = (v2.ToImage(), v2.Resize((12, 10)))


@pytest.fixture
def folder(tmp_path: Path) -> ImageFolder:
    """Six images of two classes."""
    for n in range(6):
        path = tmp_path / f"class {n % 2}" / f"{n}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(jpeg(n, 20, 24))
    return ImageFolder(str(tmp_path), v2.Compose(list(STEPS)))


def larger(data: Any) -> None:
    """Another transform."""
    data.transform = v2.Compose([v2.ToImage(), v2.Resize((24, 20))])


def fewer(data: Any) -> None:
    """A list of samples that was cut in place."""
    del data.samples[3:]


def others(data: Any) -> None:
    """Other samples, as many."""
    data.samples = data.samples[::-1]


def numbered(data: Any) -> None:
    """Labels of another kind."""
    data.target_transform = lambda label: label + 1


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (larger, "transform"),
        (fewer, "number of (samples|imgs)"),
        (others, "samples"),
        (numbered, "target_transform"),
    ],
)
@pytest.mark.parametrize("whole", [lambda d: d, lambda d: Subset(d, range(4)), lambda d: ConcatDataset([d, d])])
def test_a_change_behind_the_loader_is_an_error(
    folder: ImageFolder, change: Callable[[Any], None], name: str, whole: Callable[[Any], Any]
) -> None:
    """At the next pass, by the attribute's name; a loader that is made then has it."""
    data = whole(folder)
    with DataLoader(data, 2, device="cpu", tuning=QUICK) as loader:
        list(loader)
        change(folder)
        with pytest.raises(ConfigError, match=rf"^dataset: the {name} of ImageFolder was changed .* make a new"):
            iter(loader)
    if change is not fewer:  # of a Subset that leaves indices without a sample
        list(DataLoader(data, 2, device="cpu", tuning=QUICK))


def test_what_says_the_same_is_no_change(folder: ImageFolder) -> None:
    """A copy of the same samples, and attributes that we do not read."""
    with DataLoader(folder, 2, device="cpu", tuning=QUICK) as loader:
        list(loader)
        folder.samples = list(folder.samples)
        folder.note = "mine"
        assert len(list(loader)) == 3
