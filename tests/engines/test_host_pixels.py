"""The host engine's pixels are torchvision v2's, bit for bit, in any order of ops and of any size.

Of each recipe of the table that is held by `test_dali_pixels.py`, which has DALI's beside them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kit.images import jpeg, png
from kit.kinds import saved
from kit.photographs import decoded, photographs
from kit.properties import examples
from kit.recipes import ANY, ENDS, FLOAT, MAKERS, simclr
from kit.torchvision_way import assert_equal, ran, theirs, together
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import v2

from dali_feed.transforms.colour import ColorJitter, Grayscale
from dali_feed.transforms.convert import ToFloat
from dali_feed.transforms.crops import CenterCrop, Flip, Pad, RandomCrop
from dali_feed.transforms.erasing import RandomErasing
from dali_feed.transforms.filters import GaussianBlur
from dali_feed.transforms.lower import lower
from dali_feed.transforms.nest import RandomApply, RandomChoice, RandomOrder
from dali_feed.transforms.op import Effect, Key, Op, Recipe
from dali_feed.transforms.pointwise import Pointwise
from dali_feed.transforms.program import compile_host, unfit
from dali_feed.transforms.resize import RandomResizedCrop, Resize
from dali_feed.transforms.warps import RandomAffine, RandomPerspective, Rotation

pytestmark = [pytest.mark.filterwarnings("ignore:The image decoding:DeprecationWarning"), pytest.mark.slow]

CROP = RandomResizedCrop((64, 48))


@pytest.mark.parametrize("name", ENDS)
def test_each_end_equals_torchvision(name: str) -> None:
    """Channels last has the same bits."""
    recipe, ids = Recipe((CROP, *ENDS[name])), range(len(photographs()))
    ours = assert_equal(recipe)
    last = ran(replace(recipe, layout="NHWC"), photographs(), ids)
    for one, other in zip(last, ours, strict=True):
        assert one.is_contiguous()
        assert torch.equal(one.permute(2, 0, 1), other)


EFFECTS: dict[str, Effect] = {  # in 0..1
    "posterize, one bit": Pointwise("RandomPosterize", 1.0, 1),
    "posterize, all bits": Pointwise("RandomPosterize", 1.0, 8),
    "solarize": Pointwise("RandomSolarize", 0.5, 0.6),
    "perspective": RandomPerspective(0.5, 0.7, fill=0.3),
    "perspective, nearest": RandomPerspective(1.0, 1.0, "nearest", (0.9, 0.1, 0.5)),
    "erase with a colour": RandomErasing(1.0, (0.1, 0.5), (0.5, 2.0), (0.1, 0.9, 0.5)),
}


@pytest.mark.parametrize("name", EFFECTS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_each_effect_equals_torchvision(name: str, dtype: Any) -> None:
    """Of every float type, behind a flip and before another op."""
    assert_equal(Recipe((Resize((60, 90)), Flip("x"), ToFloat(dtype), EFFECTS[name], Flip("y"))))


@pytest.mark.parametrize("T", [v1, v2])
def test_a_self_supervised_recipe(T: Any) -> None:
    """As people write it, on sixty draws."""
    assert_equal(lower(simclr(T)), [*photographs()[2:4]] * 30)


@pytest.mark.parametrize("name", MAKERS)
def test_torchvisions_own_class_makes_the_same_of_our_draws(name: str) -> None:
    """Choice, strength, sign and pixels, of three places in a recipe; of edges that no strength divides."""
    (op,) = lower(MAKERS[name]()).ops
    recipe = Recipe((op, Resize((37, 50)), Flip("x"), op, RandomApply((Flip("y"), op))))
    assert_equal(recipe, [png(n % 10, 41, 50) for n in range(40)])


def nests(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A nest of any kind."""
    runs = st.lists(inner, max_size=2).map(tuple)
    branches = st.lists(runs, min_size=1, max_size=3).map(tuple)
    return st.one_of(
        st.builds(RandomApply, st.lists(inner, min_size=1, max_size=3).map(tuple), st.sampled_from([0.0, 0.5, 1.0])),
        st.builds(RandomChoice, branches),
        st.builds(RandomOrder, branches),
    )


SIZED: tuple[Op, ...] = (  # which no nest takes, as they change sizes
    *(CenterCrop((17, 30)), Resize((33, 20)), Resize(25), Pad((1, 0, 3, 2), 1.0), Pad((3, 1, 0, 2), mode="edge")),
    *(
        RandomCrop((24, 20), pad_if_needed=True, fill=1.0),
        Rotation((-180.0, 180.0)),
        Rotation((-90.0, 9.0), "bilinear"),
    ),
    RandomAffine((-90.0, 90.0), (0.2, 0.3), (0.5, 2.0), (-20.0, 20.0, -10.0, 10.0), "bilinear", 1.0),
    ColorJitter((0.5, 1.5), (0.5, 1.5), (0.0, 2.0), (-0.5, 0.5)),
)
GRAYS = re.compile("Gray|ColorJitter|Distort")  # ops that add up the channels
OPS = st.one_of(st.recursive(st.sampled_from(ANY), nests, max_leaves=4), st.sampled_from(SIZED))


@examples(times=2.4)
@given(
    st.lists(OPS, min_size=1, max_size=5),
    st.integers(0, 5),
    st.tuples(st.integers(12, 50), st.integers(12, 50)),
    st.booleans(),
    st.sampled_from([(), (ToFloat(),), (ToFloat("bfloat16"),), (ToFloat("float16"),)]),
    st.integers(0, 2**40),
)
def test_any_chain_equals_torchvision(
    ops: list[Op], at: int, size: tuple[int, int], subsampled: bool, to: tuple[Op, ...], first: int
) -> None:
    """Every op, nests and nests in them, in any order, on levels and then on floats, with the draws of its place."""
    payloads, ids = [(jpeg if subsampled else png)(n, *size) for n in range(3)], range(first, first + 3)
    if to and GRAYS.search(repr(ops[at:])):
        to = (ToFloat(),)  # torch sums the channels of a gray in halves in an order that depends on the strides
    recipe = Recipe((*ops[:at], *to, *ops[at:]))
    for one, other in zip(ran(recipe, payloads, ids), theirs(recipe, payloads, ids), strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other), recipe


SIZES = st.integers(1, 70)


@examples(times=1.2)
@given(
    st.lists(st.tuples(SIZES, SIZES), min_size=1, max_size=4),
    st.tuples(SIZES, SIZES),
    st.sampled_from(["bilinear", "bicubic", "nearest-exact"]),
    st.booleans(),
    st.booleans(),
)
def test_any_size_equals_torchvision(
    sizes: list[tuple[int, int]], size: tuple[int, int], interpolation: Any, antialias: bool, subsampled: bool
) -> None:
    """Windows that begin at odd pixels of small subsampled images, up and down to any size, are exact too."""
    payloads = [(jpeg if subsampled else png)(n, *shape) for n, shape in enumerate(sizes)]
    crop = RandomResizedCrop(size, interpolation=interpolation, antialias=antialias)
    assert_equal(Recipe((crop, Flip("x"), *FLOAT)), payloads)


@pytest.mark.parametrize("make", [*MAKERS.values(), lambda: v2.RandomApply([v2.GaussianBlur(3), v2.RandomErasing()])])
def test_a_batch_of_many_equals_its_images_one_by_one(make: Any) -> None:
    """What a sample chooses does not depend on the batch it is in."""
    recipe, payloads = Recipe((Resize((30, 40)), *lower(make()).ops)), [png(n, 40, 50) for n in range(9)]
    for one, other in zip(together(recipe, payloads), ran(recipe, payloads, range(9)), strict=True):
        assert torch.equal(one, other)


# --- draws, and the sizes that an op takes ----------------------------------------------------------------------------


def rows(recipe: Recipe, name: str, count: int = 400) -> Any:
    """What `count` samples take into one step."""
    sizes = np.full((count, 2), 40, np.int32)
    return compile_host(recipe).parameters(sizes, np.arange(count), 0, 0).arrays[Key(name)]


def test_nests_pick_as_often_as_they_say() -> None:
    """RandomApply by p, RandomChoice by its weights or equally, RandomOrder in every order."""
    gray, blur, flip = (Grayscale(),), (GaussianBlur((3, 3)),), (Flip("x"),)
    assert abs((rows(Recipe((RandomApply(gray, 0.3),)), "pick0") == 0).mean() - 0.3) < 0.06
    assert (rows(Recipe((RandomApply(gray, 0.0),)), "pick0") == -1).all()
    assert (rows(Recipe((RandomApply(gray, 1.0),)), "pick0") == 0).all()
    weighed = rows(Recipe((RandomChoice((gray, blur, flip), (2.0, 0.0, 6.0)),)), "pick0")
    assert set(weighed.ravel().tolist()) == {0, 2}
    assert abs((weighed == 2).mean() - 0.75) < 0.06
    assert set(rows(Recipe((RandomChoice((gray, blur)),)), "pick0").ravel().tolist()) == {0, 1}
    orders = rows(Recipe((RandomOrder((gray, blur, flip)),)), "pick0").tolist()
    assert len({tuple(order) for order in orders}) == 6


def test_inner_ops_draw_from_streams_of_their_own() -> None:
    """Two equal ops of one nest, or of two, draw differently; ops around a nest draw as if it were not there."""
    sharp = RandomErasing(0.5)
    recipe = Recipe((Flip("x"), RandomApply((sharp, sharp, RandomApply((sharp,)))), RandomApply((sharp,)), Flip("y")))
    found = compile_host(recipe).parameters(np.full((50, 2), 40, np.int32), np.arange(50), 0, 0).arrays
    erased = [values.tobytes() for name, values in found.items() if name.startswith("effect")]
    assert len(erased) == len(set(erased)) == 4
    alone = Recipe((Flip("x"), Resize((9, 9)), Resize((9, 9)), Flip("y")))
    for name in ("flip0", "flip3"):
        np.testing.assert_array_equal(found[Key(name)], rows(alone, name, 50))


@examples(times=0.8)
@given(
    st.tuples(st.integers(1, 40), st.integers(1, 40)),
    st.tuples(*[st.integers(0, 12)] * 4),
    st.sampled_from(["constant", "edge", "reflect", "symmetric"]),
    st.booleans(),
    st.integers(0, 2**40),
)
def test_crops_fit_where_torchvision_says_so(
    size: tuple[int, int], padding: tuple[int, int, int, int], mode: Any, needed: bool, sample: int
) -> None:
    """RandomCrop and its padding: torchvision's bits, or, where torchvision fails, a reason beforehand."""
    op = RandomCrop((20, 24), padding, needed, 5.0, mode)
    payload = saved(Image.effect_noise(size[::-1], 80).convert("RGB"), "PNG")
    reason = unfit(Recipe((op,)), np.array([size], np.int32))
    try:
        v2.RandomCrop(op.size, list(padding), needed, 5, mode)(decoded(payload))
    except (ValueError, RuntimeError, IndexError):
        assert reason
    else:
        assert not reason
        one, other = ran(Recipe((op,)), [payload], [sample])[0], theirs(Recipe((op,)), [payload], [sample])[0]
        assert torch.equal(one, other)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("size", [(2, 9), (9, 5), (3, 6), (9, 9)])
def test_images_too_small_for_a_kernel_are_known_by_their_size(size: tuple[int, int], nested: bool) -> None:
    """GaussianBlur mirrors the border: where torchvision fails on an image, there is a reason beforehand."""
    op: Sequence[Op] = (GaussianBlur((11, 5)),)
    reason = unfit(Recipe((RandomApply(tuple(op), 1.0),) if nested else tuple(op)), np.array([size, [0, 0]], np.int32))
    try:
        v2.GaussianBlur((11, 5))(torch.zeros((3, *size), dtype=torch.uint8))
    except RuntimeError:
        rule = "GaussianBlur: a kernel of 11x5 needs an image of 6x3 at least"
        assert reason == {0: f"{rule}; found {size[1]}x{size[0]}"}
    else:
        assert not reason


@pytest.mark.parametrize(
    ("ops", "small"),
    [
        ((RandomCrop((10, 20)),), [3, 4]),
        ((RandomCrop((10, 20), (6, 0, 5, 1)),), []),
        ((RandomCrop((10, 20), pad_if_needed=True),), []),
        ((Resize(20), RandomCrop((10, 20))), []),
        ((CenterCrop((8, 8)), RandomCrop((8, 9))), [0, 1, 3, 4]),
        ((Pad((1, 2, 1, 2)), ColorJitter((1.0, 1.0)), RandomCrop((12, 12))), [4]),
    ],
)
def test_images_that_a_crop_cannot_take_are_known_by_their_size(ops: tuple[Op, ...], small: list[int]) -> None:
    """The sizes that reach it decide, whatever stands before it; absent rows are nobody's."""
    found = unfit(Recipe(ops), np.array([[20, 40], [10, 40], [0, 0], [40, 10], [9, 9]], np.int32))
    assert sorted(found) == small
    if small == [3, 4]:
        assert "RandomCrop: 20x10 must fit into the image; found 10x40; give pad_if_needed=True" in found[3]
