"""Objects that hold transforms and hand an image through them are taken apart; those that do more are not."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.images import QUICK, jpeg
from torch.utils.data import DataLoader as TorchLoader
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from dali_feed import DataLoader
from dali_feed.errors import TransformError
from dali_feed.transforms.convert import Normalize, ToFloat
from dali_feed.transforms.crops import CenterCrop
from dali_feed.transforms.lower import lower, unwrap
from dali_feed.transforms.program import as_views
from dali_feed.transforms.resize import Resize

CROP, FLOAT = v1.CenterCrop(12), v1.ToTensor()
SMALL = v1.CenterCrop(8)


class Preset:
    """As torchvision's reference presets are."""

    def __init__(self) -> None:
        self.transforms = v1.Compose([v1.Resize(20), CROP, FLOAT, v1.Normalize([0.5], [0.5])])
        self.mean = (0.5,)

    def __call__(self, img: Any) -> Any:
        """All of them."""
        return self.transforms(img)


class Module(torch.nn.Module):
    """The same as a module, of modules, in two steps."""

    def __init__(self) -> None:
        super().__init__()
        self.shape = v2.Compose([v2.Resize(20), v2.CenterCrop(12)])
        self.floats = torch.nn.ModuleList([v1_tensor(), v2.Normalize([0.5], [0.5])])

    def forward(self, image: Any) -> Any:
        """One after the other."""
        image = self.shape(image)
        for each in self.floats:
            image = each(image)
        return image


def v1_tensor() -> Any:
    """To floats in 0..1."""
    return v2.ToDtype(torch.float32, scale=True)


class TwoCrops:
    """As MoCo's."""

    def __init__(self, base_transform: Any) -> None:
        self.base_transform = base_transform

    def __call__(self, x: Any) -> Any:
        """Two of the same."""
        q = self.base_transform(x)
        k = self.base_transform(x)
        return [q, k]


class ViewGenerator:
    """As SimCLR's."""

    def __init__(self, base_transform: Any, n_views: int = 2) -> None:
        self.base_transform, self.n_views = base_transform, n_views

    def __call__(self, x: Any) -> Any:
        """`n_views` of the same."""
        return [self.base_transform(x) for i in range(self.n_views)]


class Crops:
    """As DINO's."""

    def __init__(self, number: int) -> None:
        self.first = v1.Compose([CROP, FLOAT])
        self.second = v1.Compose([CROP, Inverted(), FLOAT])
        self.number = number
        self.small = v1.Compose([SMALL, FLOAT])

    def __call__(self, image: Any) -> Any:
        """Two large ones and some small ones."""
        crops = []
        crops.append(self.first(image))
        crops.append(self.second(image))
        for _ in range(self.number):
            crops.append(self.small(image))  # noqa: PERF401  as the original does
        return crops


class Inverted:
    """A function of a PIL image, as DINO's Solarization is."""

    def __call__(self, image: Any) -> Any:
        """Dark for light."""
        return image.point(lambda level: 255 - level)


class Pair:
    """As Barlow Twins': a tuple."""

    def __init__(self) -> None:
        self.transform, self.transform_prime = v1.Compose([CROP, FLOAT]), v1.Compose([SMALL, FLOAT])

    def __call__(self, x: Any) -> Any:
        """Both."""
        return self.transform(x), self.transform_prime(x)


@pytest.mark.parametrize("make", [Preset, Module])
def test_what_holds_transforms_lowers_to_theirs(make: Any) -> None:
    """By itself and in a Compose."""
    ops = (Resize(20), CenterCrop((12, 12)), ToFloat(), Normalize((0.5,), (0.5,)))
    assert lower(make()).ops == ops
    assert lower(v1.Compose([v1.RandomHorizontalFlip(), make()])).ops[1:] == ops


@pytest.mark.parametrize(
    ("transform", "count"),
    [
        (TwoCrops(v1.Compose([CROP, FLOAT])), 2),
        (ViewGenerator(v1.Compose([CROP, FLOAT]), 3), 3),
        (Crops(2), 4),
        (Pair(), 2),
        (TwoCrops(Preset()), 2),
    ],
)
def test_view_makers_are_views(transform: Any, count: int, tmp_path: Path) -> None:
    """A folder gives what torch's loader gives for them, with no fallback."""
    for n in range(6):
        path = tmp_path / f"class {n % 2}" / f"{n}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(jpeg(n, 20 + n, 30))
    data = ImageFolder(str(tmp_path), transform)
    with DataLoader(data, 4, device="cpu", tuning=QUICK) as ours:
        for (mine, la), (theirs, lb) in zip(ours, TorchLoader(data, 4), strict=True):
            assert la.tolist() == lb.tolist()
            assert len(mine) == len(theirs) == count
            for a, b in zip(mine, theirs, strict=True):
                assert (a - b).abs().max() <= 2.01 / 255 / 0.5


class Odd:
    """Holds transforms; what it does with them is each subclass's."""

    def __init__(self) -> None:
        self.first, self.second, self.p, self.rng = CROP, SMALL, 0.5, random.Random(1)
        self.seen = 0
        self.every = [CROP, SMALL]


def counts(self: Any, image: Any) -> Any:
    """What it has seen."""
    self.seen += 1
    return self.first(image)


def tries(self: Any, image: Any) -> Any:
    """And tries another."""
    try:
        return self.first(image)
    except ValueError:
        return self.second(image)


def by_a_default(self: Any, image: Any, choose: Any = random.choice) -> Any:
    """That draws."""
    return choose(self.every)(image)


def pick(self: Any, *_: Any) -> Any:
    """One of two."""
    return self.every[random.randrange(2)]


# What else the class has, and its `__call__`.
ODD: dict[str, tuple[dict[str, Any], Any]] = {
    "ByACoin": ({}, lambda self, image: self.first(image) if random.random() < self.p else self.second(image)),
    "ByIndex": ({}, lambda self, image: self.every[self.rng.randrange(2)](image)),
    "Looks": ({}, lambda self, image: self.first(image.convert("RGB"))),
    "Computes": ({}, lambda self, image: self.first(image) * 2),
    "Counts": ({}, counts),
    "GivesADict": ({}, lambda self, image: {"one": self.first(image), "two": self.second(image)}),
    "Tries": ({}, tries),
    "ByAMethod": ({"pick": pick}, lambda self, image: self.pick()(image)),
    "ByAProperty": ({"chosen": property(pick)}, lambda self, image: self.chosen(image)),
    "ByADefault": ({}, by_a_default),
    "BySubscript": ({"__getitem__": pick}, lambda self, image: self[0](image)),
    "NothingHeld": ({"__init__": lambda _: None}, lambda _, image: image),
}


def odd(name: str) -> Any:
    """One of them."""
    members, call = ODD[name]
    return type(name, (Odd,), {**members, "__call__": call})()


@pytest.mark.parametrize("name", ODD)
def test_what_does_more_is_left_as_it_is(name: str) -> None:
    """A branch, a draw, a look at the image, arithmetic, a count, a dict: none of them is handing an image through."""
    assert unwrap(odd(name)) is None
    assert as_views(odd(name)) is None
    with pytest.raises(TransformError, match=f"{name} is not supported"):
        lower(odd(name))


def test_it_stays_as_it_was() -> None:
    """Nothing of the object is changed or called."""
    maker = Crops(1)
    before = dict(vars(maker))
    assert isinstance(unwrap(maker), list)
    assert vars(maker) == before


def test_a_module_with_hooks_is_left_as_it_is() -> None:
    """They would be run by torch."""
    module = Module()
    module.register_forward_hook(lambda *_: None)
    assert unwrap(module) is None
