"""RandomChannelPermutation: torchvision's pixels to the bit on both engines, and its chances."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from kit.dali_way import both, distance
from kit.images import QUICK, labelled, pixels, png
from kit.photographs import decoded
from kit.recipes import FLOAT, SMALL
from kit.torchvision_way import ran
from torchvision.transforms import v2

from dali_feed import DataLoader, Decode
from dali_feed.compiler.host import compile_host
from dali_feed.compiler.program import outline
from dali_feed.errors import TransformError
from dali_feed.testing.scripted import ScriptedSource
from dali_feed.transforms.colour import Grayscale, RandomChannelPermutation
from dali_feed.transforms.convert import ToFloat
from dali_feed.transforms.crops import Flip
from dali_feed.transforms.lower import lower
from dali_feed.transforms.nest import RandomApply
from dali_feed.transforms.op import Op, Recipe
from dali_feed.transforms.settings import DType

pytestmark = pytest.mark.filterwarnings("ignore:The image decoding:DeprecationWarning")

OP = RandomChannelPermutation()
PAYLOADS = [png(n, 20, 30) for n in range(24)]


def arrays(op: Op, ids: Any, seed: int = 0, epoch: int = 0) -> Any:
    """What samples `ids` take into a recipe of `op` alone, by the array's name."""
    return compile_host(Recipe((op,))).parameters(np.full((len(ids), 2), 9), np.array(ids), seed, epoch).arrays


def test_it_is_lowered_from_v2() -> None:
    """It has no settings; in a nest too."""
    assert lower(v2.RandomChannelPermutation()) == Recipe((OP,))
    assert lower(v2.RandomApply([v2.RandomChannelPermutation()], 0.25)) == Recipe((RandomApply((OP,), 0.25),))


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("dtype", ["uint8", "float32", "float16", "bfloat16"])
def test_given_our_draws_torchvisions_class_makes_the_same_pixels(dtype: DType, nested: bool) -> None:
    """To the bit on the host engine, in every dtype; within RandomApply, of the images that pick it."""
    to = () if dtype == "uint8" else (ToFloat(dtype),)
    recipe = Recipe((*to, RandomApply((OP,)) if nested else OP))
    found = ran(recipe, PAYLOADS, range(24))
    made: Any = compile_host(recipe).parameters(np.full((24, 2), 9), np.arange(24), 0, 0).arrays
    (orders,) = (rows for name, rows in made.items() if name.startswith("effect"))
    picked = made[f"pick{len(to)}"][:, 0] == 0 if nested else np.ones(24, bool)
    assert len({tuple(order) for order in orders[picked].tolist()}) > 3
    for one, payload, order, on in zip(found, PAYLOADS, orders, picked, strict=True):
        image = (
            decoded(payload) if dtype == "uint8" else v2.ToDtype(getattr(torch, dtype), scale=True)(decoded(payload))
        )
        theirs = v2.RandomChannelPermutation().transform(image, {"permutation": torch.tensor(order)}) if on else image
        assert one.dtype == theirs.dtype
        assert torch.equal(one, theirs)
    assert nested == (not picked.all())


def test_each_order_comes_equally_often() -> None:
    """All six, as torchvision's randperm: none is further from a sixth than chance allows (99.99 % of chi square)."""
    counts = Counter(map(tuple, arrays(OP, range(12000))["effect0"].tolist()))
    assert set(counts) == set(itertools.permutations(range(3)))
    assert sum((count - 2000) ** 2 / 2000 for count in counts.values()) < 25.7


def test_the_order_depends_on_seed_epoch_and_sample_alone() -> None:
    """Whatever batch a sample stands in; another seed or epoch draws anew. One stream of the sixteen is used."""
    whole = arrays(OP, range(60), 3, 1)["effect0"]
    np.testing.assert_array_equal(arrays(OP, [41, 7], 3, 1)["effect0"], whole[[41, 7]])
    assert (arrays(OP, range(60), 3, 2)["effect0"] != whole).any()
    assert (arrays(OP, range(60), 4, 1)["effect0"] != whole).any()
    assert list(OP.drawn()) == [0]


def test_one_channel_stays() -> None:
    """Behind Grayscale(1), as in torchvision, where there is one order of one channel."""
    whole = v2.Compose([v2.Grayscale(1), v2.RandomChannelPermutation()])
    source = ScriptedSource([(png(n), n) for n in range(6)])
    with DataLoader(source, 6, transform=whole, device="cpu", decode=Decode(engine="host"), tuning=QUICK) as loader:
        found = next(iter(loader))[0]
    theirs = torch.stack([v2.Compose([v2.ToImage(), whole])(pixels(n)) for n in range(6)])
    assert torch.equal(found, theirs)


BY_DALI: dict[str, tuple[tuple[Op, ...], float]] = {
    "alone": ((OP,), 0),
    "in a nest": ((RandomApply((Flip("x"), OP)), Flip("y")), 0),
    "twice": ((OP, Flip("x"), OP, RandomApply((OP,))), 0),
    "of floats": ((ToFloat(), OP), 2e-7),  # 1.2e-7, as without it
}


@pytest.mark.parametrize("name", BY_DALI)
def test_the_dali_engine_has_the_same_pixels(name: str) -> None:
    """By an operator of its own, to the bit where pixels are whole levels."""
    ops, most = BY_DALI[name]
    ours, theirs = both(Recipe((SMALL, *ops)))
    assert distance(ours, theirs)[1] <= most


def test_dali_leaves_alone_what_did_not_pick_it() -> None:
    """The images of a nest that none takes are those without it."""
    (plain, _), (nested, _) = both(Recipe((SMALL,))), both(Recipe((SMALL, RandomApply((OP,), 0.0))))
    assert distance(plain, nested) == (0, 0)


def test_behind_normalize_it_is_refused() -> None:
    """There channels have units of their own."""
    with pytest.raises(TransformError, match="^RandomChannelPermutation: .* before Normalize"):
        outline(Recipe((*FLOAT, OP)))
    assert outline(Recipe((Grayscale(), OP, *FLOAT))).dtype == "float32"


@pytest.mark.parametrize("engine", ["host", "dali"])
def test_a_loader_resumes(engine: str) -> None:
    """In the middle of an epoch, bit for bit, whatever the batches' size."""
    whole = v2.Compose([v2.CenterCrop(12), v2.RandomChannelPermutation()])
    options: dict[str, Any] = {
        "transform": whole,
        "decode": Decode(engine=engine),
        "device": "cpu",
        "tuning": QUICK,
        "seed": 3,
    }
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
