"""GaussianNoise and RandomErasing(value="random"): torchvision's arithmetic, on numbers that are the sample's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from kit.images import QUICK, pixels, png
from kit.torchvision_way import ran
from torchvision.transforms import v2

from dali_feed import DataLoader
from dali_feed.compiler.host import compile_host
from dali_feed.testing.scripted import ScriptedSource
from dali_feed.transforms.convert import ToFloat
from dali_feed.transforms.erasing import NoisyErasing
from dali_feed.transforms.filters import GaussianNoise
from dali_feed.transforms.keys import Key
from dali_feed.transforms.lower import lower
from dali_feed.transforms.op import Recipe

SOURCE = ScriptedSource([(png(n), n) for n in range(6)], extent=3)
FLOAT = v2.ToDtype(torch.float32, scale=True)


def rows_of(recipe: Recipe, key: str, count: int, size: int = 16) -> Any:
    """What those samples draw."""
    return compile_host(recipe).parameters(np.array([[size, size]] * count), np.arange(count), 0, 0).arrays[Key(key)]


@pytest.mark.parametrize("clip", [True, False])
@pytest.mark.parametrize("before", [(), (ToFloat(),)])
def test_noise_is_torchvisions(before: tuple[Any, ...], clip: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In whole levels and in floats: with our normal numbers torchvision's own function gives the same bits."""
    recipe = Recipe((*before, GaussianNoise(0.05, 0.2, clip=clip)))
    seeds = rows_of(recipe, f"effect{len(before)}_seed", 5)
    assert len(set(seeds.tolist())) == 5
    for n, ours in enumerate(ran(recipe, [png(3)] * 5, range(5))):
        image: Any = torch.from_numpy(pixels(3)).permute(2, 0, 1)
        image = v2.functional.to_dtype(image, torch.float32, scale=True) if before else image
        drawn = torch.randn(image.shape, generator=torch.Generator().manual_seed(int(seeds[n])))
        with monkeypatch.context() as patch:
            patch.setattr(torch, "randn_like", lambda *_, drawn=drawn, **__: drawn)
            assert torch.equal(ours, v2.functional.gaussian_noise(image, 0.05, 0.2, clip))


def test_noise_has_its_mean_and_sigma_and_resumes() -> None:
    """A pass that goes on draws what it would have."""
    transform = v2.Compose([v2.CenterCrop(16), FLOAT, v2.GaussianNoise(0.1, 0.05, clip=False)])
    plain = v2.Compose([v2.CenterCrop(16), FLOAT])
    options: dict[str, Any] = {"device": "cpu", "tuning": QUICK}
    with (
        DataLoader(SOURCE, 2, transform=transform, **options) as noisy,
        DataLoader(SOURCE, 2, transform=plain, **options) as clean,
    ):
        run, found = iter(noisy), []
        found.append(next(run)[0])
        state = noisy.state_dict()
        found += [images for images, _ in run]
        noise = torch.cat(found) - torch.cat([images for images, _ in clean])
    assert noise.mean().item() == pytest.approx(0.1, abs=0.01)
    assert noise.std().item() == pytest.approx(0.05, abs=0.005)
    with DataLoader(SOURCE, 2, transform=transform, **options) as again:
        again.load_state_dict(state)
        for images, expected in zip([images for images, _ in again], found[1:], strict=True):
            assert torch.equal(images, expected)


def test_random_erasing_is_torchvisions() -> None:
    """The rectangle that the sample drew, filled with its numbers, by torchvision's own function; behind Normalize."""
    recipe = lower(v2.Compose([FLOAT, v2.Normalize([0.5], [0.5]), v2.RandomErasing(0.8, value="random")]))
    assert recipe.ops[-1] == NoisyErasing(0.8)
    rectangles, seeds = rows_of(recipe, "effect2", 12), rows_of(recipe, "effect2_seed", 12)
    for n, ours in enumerate(ran(recipe, [png(3)] * 12, range(12))):
        image: Any = torch.from_numpy(pixels(3)).permute(2, 0, 1)
        image = v2.functional.normalize(v2.functional.to_dtype(image, torch.float32, scale=True), [0.5], [0.5])
        y, x, h, w = rectangles[n, 0].tolist()
        if h:
            value = torch.randn((3, h, w), generator=torch.Generator().manual_seed(int(seeds[n])))
            image = v2.functional.erase(image, y, x, h, w, value)
        assert torch.equal(ours, image)
    assert 5 < (rectangles[:, 0, 2] > 0).sum() < 12
