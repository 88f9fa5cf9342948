"""RandomPhotometricDistort: torchvision's pixels to the bit on both engines, and its chances."""

from __future__ import annotations

import itertools
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from kit.images import QUICK, labelled, png
from kit.photographs import decoded
from kit.recipes import FLOAT, SMALL
from kit.torchvision_way import ran
from torchvision.transforms import v2
from torchvision.transforms.v2 import _color

from dali_feed import DataLoader, Decode
from dali_feed.compiler.dali import compile_dali
from dali_feed.compiler.host import compile_host
from dali_feed.compiler.program import outline
from dali_feed.draws import uniforms
from dali_feed.engines.choose import compiled
from dali_feed.errors import TransformError
from dali_feed.testing.scripted import ScriptedSource
from dali_feed.transforms.colour import Grayscale, RandomPhotometricDistort
from dali_feed.transforms.convert import ToFloat
from dali_feed.transforms.lower import lower
from dali_feed.transforms.nest import RandomApply
from dali_feed.transforms.op import Op, Recipe
from dali_feed.transforms.settings import DType

pytestmark = pytest.mark.filterwarnings("ignore:The image decoding:DeprecationWarning")

OP = RandomPhotometricDistort()
NAMES = ("brightness", "contrast", "saturation", "hue")
PAYLOADS = [png(n, 20, 30) for n in range(32)]


def arrays(op: Op, ids: Any, seed: int = 0, epoch: int = 0) -> Any:
    """What samples `ids` take into a recipe of `op` alone, by the array's name."""
    return compile_host(Recipe((op,))).parameters(np.full((len(ids), 2), 9), np.array(ids), seed, epoch).arrays


def params(factors: Any, turns: Any, channels: Any) -> dict[str, Any]:
    """Our rows as torchvision's `make_params` would say them; its order of channels, where it has none, is ours."""
    told: dict[str, Any] = {f"{name}_factor": factors[k] if k in turns else None for k, name in enumerate(NAMES)}
    return told | {"contrast_before": turns[1] == 1, "channel_permutation": torch.tensor(channels)}


def test_it_is_lowered_from_v2() -> None:
    """With all its settings, which torchvision keeps as they are given; in a nest too."""
    assert lower(v2.RandomPhotometricDistort()) == Recipe((OP,))
    own = v2.RandomPhotometricDistort([0, 1], (0.1, 0.2), torch.tensor([0.5, 3.0]), (0.25, 0.5), p=1)
    op = RandomPhotometricDistort((0.0, 1.0), (0.1, 0.2), (0.5, 3.0), (0.25, 0.5), 1.0)
    assert lower(v2.RandomApply([own])) == Recipe((RandomApply((op,)),))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"brightness": 0.5}, "brightness must be (low, high); found 0.5"),
        ({"saturation": (1, 2, 3)}, "saturation must be (low, high); found (1, 2, 3)"),
        ({"contrast": (-0.5, 1.5)}, "contrast must be (low, high) with 0.0 <= low <= high <= inf; found (-0.5, 1.5)"),
        ({"contrast": (1.5, 0.5)}, "contrast must be (low, high) with 0.0 <= low <= high"),
        ({"brightness": (0.0, float("inf"))}, "brightness must be two finite numbers; found (0.0, inf)"),
        ({"saturation": (0.0, float("nan"))}, "saturation must be (low, high) with"),
        ({"hue": (-0.6, 0.0)}, "hue must be (low, high) with -0.5 <= low <= high <= 0.5; found (-0.6, 0.0)"),
        ({"p": 1.5}, "p must lie in 0..1; found 1.5"),
    ],
)
def test_settings_refused(given: dict[str, Any], told: str) -> None:
    """Torchvision looks at none of them before it draws; here the error has name, rule and value."""
    with pytest.raises(TransformError, match=f"^RandomPhotometricDistort: {re.escape(told)}"):
        lower(v2.RandomPhotometricDistort(**given))


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("dtype", ["uint8", "float32", "float16", "bfloat16"])
def test_given_our_draws_torchvisions_class_makes_the_same_pixels(dtype: DType, nested: bool) -> None:
    """To the bit on the host engine, in every dtype; within RandomApply, of the images that pick it."""
    to = () if dtype == "uint8" else (ToFloat(dtype),)
    recipe = Recipe((*to, RandomApply((OP,), 0.7) if nested else OP))
    found = ran(recipe, PAYLOADS, range(32))
    made: Any = compile_host(recipe).parameters(np.full((32, 2), 9), np.arange(32), 0, 0).arrays
    (key,) = (name.removesuffix("_turns") for name in made if name.endswith("_turns"))
    picked = made[f"pick{len(to)}"][:, 0] == 0 if nested else np.ones(32, bool)
    changed = 0
    for n, (one, payload) in enumerate(zip(found, PAYLOADS, strict=True)):
        image = (
            decoded(payload) if dtype == "uint8" else v2.ToDtype(getattr(torch, dtype), scale=True)(decoded(payload))
        )
        drawn = params(*(made[f"{key}{name}"][n].tolist() for name in ("", "_turns", "_channels")))
        theirs = v2.RandomPhotometricDistort().transform(image, drawn) if picked[n] else image
        assert one.dtype == theirs.dtype
        assert torch.equal(one, theirs)
        changed += not torch.equal(one, image)
    assert changed > 15
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


@pytest.mark.parametrize("p", [0.3, 0.5])
def test_its_chances_are_torchvisions(p: float) -> None:
    """Each factor and the channels by p, contrast early or late by a half, factors evenly in their ranges."""
    count = 8000
    found = arrays(RandomPhotometricDistort(p=p), range(count))
    factors, turns, channels = (found[f"effect0{name}"] for name in ("", "_turns", "_channels"))
    comes = np.stack([(turns == k).any(axis=1) for k in range(4)] + [(channels != np.arange(3)).any(axis=1)], axis=1)
    np.testing.assert_allclose(comes.mean(axis=0), [p, p, p, p, p * 5 / 6], atol=0.025)
    np.testing.assert_allclose(np.corrcoef(comes.T), np.eye(5), atol=0.05)  # none has to do with another
    assert not ((turns[:, 1] == 1) & (turns[:, 4] == 1)).any()
    np.testing.assert_allclose((turns[:, 1] == 1).sum() / comes[:, 1].sum(), 0.5, atol=0.04)
    for k, name in enumerate(NAMES):
        low, high = (float(np.float32(end)) for end in getattr(OP, name))
        shares = np.histogram(factors[comes[:, k], k], 5, (low, high))[0] / comes[:, k].sum()
        np.testing.assert_allclose(shares, 0.2, atol=0.04)
        assert low <= factors[:, k].min() <= factors[:, k].max() <= high
    moved = channels[comes[:, 4]]
    shares = np.unique(moved, axis=0, return_counts=True)[1] / len(moved)
    np.testing.assert_allclose(shares, [0.2] * 5, atol=0.04)


def test_draws_depend_on_seed_epoch_and_sample_alone() -> None:
    """Whatever batch a sample stands in; another seed or epoch draws anew. Three streams of the sixteen are used."""
    whole, again = arrays(OP, range(60), 3, 1), arrays(OP, [41, 7], 3, 1)
    later, other = arrays(OP, range(60), 3, 2), arrays(OP, range(60), 4, 1)
    for name in ("effect0", "effect0_turns", "effect0_channels"):
        rows = whole[name]
        np.testing.assert_array_equal(again[name], rows[[41, 7]])
        assert (later[name] != rows).any()
        assert (other[name] != rows).any()
    assert list(OP.drawn()) == [0, 1, 2]


def test_one_channel_has_no_order() -> None:
    """Behind Grayscale(1), as in torchvision: brightness and contrast are what is left."""
    recipe = Recipe((Grayscale(1), OP))
    made: Any = compile_host(recipe).parameters(np.full((32, 2), 9), np.arange(32), 0, 0).arrays
    for n, one in enumerate(ran(recipe, PAYLOADS, range(32))):
        factors, turns, _ = (made[f"effect1{name}"][n].tolist() for name in ("", "_turns", "_channels"))
        gray = v2.Grayscale(1)(decoded(PAYLOADS[n]))
        theirs = v2.RandomPhotometricDistort().transform(gray, params(factors, turns, [0]))
        assert torch.equal(one, theirs.expand_as(one))


def test_the_dali_engine_has_no_operator_for_it() -> None:
    """It says so, and names the engine that has."""
    with pytest.raises(TransformError, match="^RandomPhotometricDistort: the dali engine has no operator for it.*host"):
        compile_dali(Recipe((SMALL, OP)), on_gpu=False)
    assert compiled(v2.RandomPhotometricDistort(), Decode(), 0)[0] == "host"  # before a GPU too
    with pytest.raises(TransformError, match="has no operator for it"):
        compiled(v2.RandomPhotometricDistort(), Decode(engine="dali"), 0)


def test_behind_normalize_it_is_refused() -> None:
    """There a factor has no meaning."""
    with pytest.raises(TransformError, match="^RandomPhotometricDistort: .* before Normalize"):
        outline(Recipe((*FLOAT, OP)))


def test_a_loader_resumes() -> None:
    """In the middle of an epoch, bit for bit, whatever the batches' size."""
    whole = v2.Compose([v2.CenterCrop(12), v2.RandomPhotometricDistort()])
    options: dict[str, Any] = {"transform": whole, "device": "cpu", "tuning": QUICK, "seed": 3}
    source = ScriptedSource(labelled(16))
    with DataLoader(source, 4, shuffle=True, **options) as one:
        batches = iter(one)
        next(batches)
        state = one.state_dict()
        rest = torch.cat([images.clone() for images, _ in batches])
    with DataLoader(source, 2, shuffle=True, **options) as two:
        two.load_state_dict(state)
        again = torch.cat([images.clone() for images, _ in two])
    assert torch.equal(again, rest)
