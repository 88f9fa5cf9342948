"""Distortion, permutation, noise and noisy erasing: torchvision's draws, and its pixels to the bit."""

from __future__ import annotations

import itertools
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from kit.images import pixels, png
from kit.photographs import decoded
from kit.recipes import SMALL
from kit.torchvision_way import both, distance, ran
from torchvision.transforms import v2
from torchvision.transforms.v2 import _color

from dali_feed import Decode
from dali_feed.draws import uniforms
from dali_feed.engines.choose import compiled
from dali_feed.errors import TransformError
from dali_feed.transforms.colour import Grayscale, RandomChannelPermutation, RandomPhotometricDistort
from dali_feed.transforms.convert import ToFloat
from dali_feed.transforms.crops import Flip
from dali_feed.transforms.erasing import NoisyErasing
from dali_feed.transforms.filters import GaussianNoise
from dali_feed.transforms.host import compile_host
from dali_feed.transforms.keys import Key
from dali_feed.transforms.lower import lower
from dali_feed.transforms.nest import RandomApply
from dali_feed.transforms.op import Op, Recipe
from dali_feed.transforms.settings import DType

pytestmark = pytest.mark.filterwarnings("ignore:The image decoding:DeprecationWarning")

DISTORT, PERMUTE = RandomPhotometricDistort(), RandomChannelPermutation()
NAMES = ("brightness", "contrast", "saturation", "hue")
PAYLOADS = [png(n, 20, 30) for n in range(32)]


def arrays(op: Op, ids: Any, seed: int = 0, epoch: int = 0) -> Any:
    """What samples `ids` take into a recipe of `op` alone, by the array's name."""
    return compile_host(Recipe((op,))).parameters(np.full((len(ids), 2), 9), np.array(ids), seed, epoch).arrays


def params(factors: Any, turns: Any, channels: Any) -> dict[str, Any]:
    """Our rows as torchvision's `make_params` would say them; its order of channels, where it has none, is ours."""
    told: dict[str, Any] = {f"{name}_factor": factors[k] if k in turns else None for k, name in enumerate(NAMES)}
    return told | {"contrast_before": turns[1] == 1, "channel_permutation": torch.tensor(channels)}


def by_torchvision(op: Op, image: Any, rows: Any) -> Any:
    """What torchvision's class of that name makes of the image with a sample's rows: by "", "_turns", "_channels"."""
    if op == PERMUTE:
        return v2.RandomChannelPermutation().transform(image, {"permutation": torch.tensor(rows[""])})
    return v2.RandomPhotometricDistort().transform(image, params(rows[""], rows["_turns"], rows["_channels"]))


@pytest.mark.parametrize("op", [DISTORT, PERMUTE], ids=["distort", "permute"])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("dtype", ["uint8", "float32", "float16", "bfloat16"])
def test_given_our_draws_torchvisions_class_makes_the_same_pixels(dtype: DType, nested: bool, op: Op) -> None:
    """To the bit on the host engine, in every dtype; within RandomApply, of the images that pick it."""
    to = () if dtype == "uint8" else (ToFloat(dtype),)
    recipe = Recipe((*to, RandomApply((op,), 0.7) if nested else op))
    found = ran(recipe, PAYLOADS, range(32))
    made: Any = compile_host(recipe).parameters(np.full((32, 2), 9), np.arange(32), 0, 0).arrays
    key = min((name for name in made if name.startswith("effect")), key=len)
    picked = made[f"pick{len(to)}"][:, 0] == 0 if nested else np.ones(32, bool)
    changed = 0
    for n, (one, payload) in enumerate(zip(found, PAYLOADS, strict=True)):
        image: Any = decoded(payload)
        image = image if dtype == "uint8" else v2.ToDtype(getattr(torch, dtype), scale=True)(image)
        rows = {name.removeprefix(key): values[n].tolist() for name, values in made.items() if name.startswith(key)}
        theirs = by_torchvision(op, image, rows) if picked[n] else image
        assert one.dtype == theirs.dtype
        assert torch.equal(one, theirs)
        changed += not torch.equal(one, image)
    assert changed > 12
    assert nested == (not picked.all())


class Scripted:
    """What `_color` sees as torch: the real one, but numbers are the twelve of `drawn`, three rows of four."""

    def __init__(self, drawn: Any) -> None:
        self._drawn, self._asked = drawn, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def rand(self, _: Any) -> Any:
        """Whether each factor comes, where contrast does, whether channels move."""
        self._asked += 1
        return torch.tensor(self._drawn[[0, 1, 2, 3, 8, 9][self._asked - 1]])

    def empty(self, _: int) -> Any:
        """Only `uniform_` is asked of it, for the factor that was just said to come; in double precision."""
        u = float(self._drawn[4 + self._asked - 1])
        return SimpleNamespace(uniform_=lambda low, high: torch.tensor(low + (high - low) * u, dtype=torch.float32))

    def randperm(self, count: int) -> Any:
        """The orders in the order of a dictionary."""
        orders = list(itertools.permutations(range(count)))
        return torch.tensor(orders[int(float(self._drawn[10]) * len(orders))])


@pytest.mark.parametrize("p", [0.0, 0.5, 0.8, 1.0])
def test_it_is_drawn_as_torchvision_draws_it(p: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """`make_params` of v2, given our uniforms, finds our factors, the place of contrast and the order of channels."""
    settings = {"brightness": (0.5, 2.0), "contrast": (0.0, 1.0), "saturation": (1.0, 1.0), "hue": (-0.5, 0.5)}
    ids = np.arange(1 << 40, (1 << 40) + 200)
    ours = arrays(lower(v2.RandomPhotometricDistort(**settings, p=p)).ops[0], ids, 3, 4)
    drawn = uniforms(3, 4, ids, [0, 1, 2])
    for n in range(len(ids)):
        monkeypatch.setattr(_color, "torch", Scripted(drawn[:, n]))
        theirs = v2.RandomPhotometricDistort(**settings, p=p).make_params([torch.zeros(3, 4, 5)])
        told = params(*(ours[f"effect0{name}"][n].tolist() for name in ("", "_turns", "_channels")))
        if theirs["contrast_factor"] is None:
            theirs["contrast_before"] = told["contrast_before"]
        if theirs["channel_permutation"] is None:
            theirs["channel_permutation"] = torch.arange(3)
        assert torch.equal(theirs.pop("channel_permutation"), told.pop("channel_permutation"))
        assert theirs == told


def test_each_order_comes_equally_often() -> None:
    """All six, as torchvision's randperm: none is further from a sixth than chance allows (99.99 % of chi square)."""
    counts = Counter(map(tuple, arrays(PERMUTE, range(12000))["effect0"].tolist()))
    assert set(counts) == set(itertools.permutations(range(3)))
    assert sum((count - 2000) ** 2 / 2000 for count in counts.values()) < 25.7


def test_one_channel_has_no_order() -> None:
    """Behind Grayscale(1), as in torchvision: brightness and contrast are what is left, and one channel stays."""
    for op in (DISTORT, PERMUTE):
        recipe = Recipe((Grayscale(1), op))
        made: Any = compile_host(recipe).parameters(np.full((32, 2), 9), np.arange(32), 0, 0).arrays
        for n, one in enumerate(ran(recipe, PAYLOADS, range(32))):
            theirs: Any = v2.Grayscale(1)(decoded(PAYLOADS[n]))
            if op == DISTORT:
                factors, turns = (made[f"effect1{name}"][n].tolist() for name in ("", "_turns"))
                theirs = v2.RandomPhotometricDistort().transform(theirs, params(factors, turns, [0]))
            assert torch.equal(one, theirs.expand_as(one))


def test_the_dali_engine_permutes_and_has_no_operator_for_the_other() -> None:
    """In a nest and behind flips to the bit; for RandomPhotometricDistort it says so, and names the engine that has."""
    nest = (SMALL, RandomApply((Flip("x"), PERMUTE)), Flip("y"), PERMUTE)
    assert distance(*both(Recipe(nest))) == (0, 0)
    (plain, _), (nested, _) = both(Recipe((SMALL,))), both(Recipe((SMALL, RandomApply((PERMUTE,), 0.0))))
    assert distance(plain, nested) == (0, 0)
    with pytest.raises(TransformError, match="^RandomPhotometricDistort: the dali engine has no operator for it.*host"):
        compiled(v2.RandomPhotometricDistort(), Decode(engine="dali"), 0)
    assert compiled(v2.RandomPhotometricDistort(), Decode(), 0).engine == "host"  # before a GPU too


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


def test_random_erasing_is_torchvisions() -> None:
    """The rectangle that the sample drew, filled with its numbers, by torchvision's own function; behind Normalize."""
    floats = [v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5], [0.5])]
    recipe = lower(v2.Compose([*floats, v2.RandomErasing(0.8, value="random")]))
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
