"""The host engine's effects and nests: torchvision v2's pixels, bit for bit, in uint8 and in floats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kit.images import png
from kit.photographs import photographs
from kit.properties import examples
from kit.torchvision_way import assert_equal, ran, theirs, together
from recipes import ANY, FLOAT, simclr
from torchvision import transforms as v1
from torchvision.transforms import v2

from dali_feed.compiler.host import compile_host
from dali_feed.compiler.program import unfit
from dali_feed.transforms.colour import Grayscale, RandomGrayscale
from dali_feed.transforms.convert import ToFloat
from dali_feed.transforms.crops import Flip
from dali_feed.transforms.erasing import RandomErasing
from dali_feed.transforms.filters import GaussianBlur
from dali_feed.transforms.keys import Key
from dali_feed.transforms.lower import lower
from dali_feed.transforms.nest import RandomApply, RandomChoice, RandomOrder
from dali_feed.transforms.op import Effect, Op, Recipe
from dali_feed.transforms.pointwise import (
    RandomAdjustSharpness,
    RandomAutocontrast,
    RandomEqualize,
    RandomInvert,
    RandomPosterize,
    RandomSolarize,
)
from dali_feed.transforms.resize import RandomResizedCrop, Resize
from dali_feed.transforms.warps import RandomPerspective

pytestmark = pytest.mark.filterwarnings("ignore:The image decoding:DeprecationWarning")

EFFECTS: dict[str, Effect] = {
    "gray": Grayscale(),
    "gray, sometimes": RandomGrayscale(0.5),
    "blur": GaussianBlur((5, 9), (0.1, 3.0)),
    "invert": RandomInvert(0.5),
    "posterize": RandomPosterize(3, 0.5),
    "posterize, one bit": RandomPosterize(1, 1.0),
    "posterize, all bits": RandomPosterize(8, 1.0),
    "solarize": RandomSolarize(0.6, 0.5),
    "sharpen": RandomAdjustSharpness(2.5, 0.5),
    "blunt": RandomAdjustSharpness(0.0, 1.0),
    "autocontrast": RandomAutocontrast(0.5),
    "equalize": RandomEqualize(0.5),
    "perspective": RandomPerspective(0.5, 0.7, fill=0.3),
    "perspective, nearest": RandomPerspective(1.0, 1.0, "nearest", (0.9, 0.1, 0.5)),
    "erase": RandomErasing(0.7, value=0.3),
    "erase with a colour": RandomErasing(1.0, (0.1, 0.5), (0.5, 2.0), (0.1, 0.9, 0.5)),
}


@pytest.mark.parametrize("name", EFFECTS)
@pytest.mark.parametrize("dtype", ["uint8", "float32", "float16", "bfloat16"])
def test_each_effect_equals_torchvision(name: str, dtype: Any) -> None:
    """Of uint8 and of every float type, behind a flip and before another op."""
    op = EFFECTS[name]
    if dtype == "uint8" and isinstance(op, RandomSolarize):
        op = replace(op, threshold=150.5)
    if dtype == "uint8" and isinstance(op, RandomErasing):
        op = replace(op, value=77.9 if isinstance(op.value, float) else (10.0, 255.0, 99.5))
    to = () if dtype == "uint8" else (ToFloat(dtype),)
    assert_equal(Recipe((Resize((60, 90)), Flip("x"), *to, op, Flip("y"))))


ENDS: dict[str, tuple[Op, ...]] = {
    "erased behind normalize": (*FLOAT, RandomErasing(1.0)),
    "erased twice, in channels": (*FLOAT, RandomErasing(0.9, value=(9.0, -9.0, 0.5)), RandomErasing(0.9)),
    "erased before normalize": (ToFloat(), RandomErasing(1.0), FLOAT[1]),
    "erased bytes": (RandomErasing(1.0, value=255.0), *FLOAT),
    "erased between two normalizes": (*FLOAT, RandomErasing(1.0), FLOAT[1]),
    "erased, then mirrored": (*FLOAT, RandomErasing(1.0), Flip("x", 1.0)),
    "erased half": (ToFloat("float16"), FLOAT[1], RandomErasing(1.0, value=0.1)),
    "erased half that was float": (*FLOAT, RandomErasing(1.0, value=0.1), ToFloat("float16")),
    "sometimes erased behind normalize": (*FLOAT, RandomApply((RandomErasing(1.0), Flip("x")))),
}


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_erasing_around_normalize_equals_torchvision(name: str, layout: Any) -> None:
    """Before or behind it, in the units that pixels have there, whatever the batch's layout."""
    recipe = Recipe((RandomResizedCrop((64, 48)), *ENDS[name]))
    assert_equal(recipe)
    ids = range(len(photographs()))
    if layout == "NHWC":
        last = ran(replace(recipe, layout="NHWC"), photographs(), ids)
        for one, other in zip(last, ran(recipe, photographs(), ids), strict=True):
            assert torch.equal(one.permute(2, 0, 1), other)


@pytest.mark.parametrize("T", [v1, v2], ids=["v1", "v2"])
def test_a_recipe_of_self_supervised_training(T: Any) -> None:
    """Whole, as people write it, on sixty draws."""
    assert_equal(lower(simclr(T)), [*photographs()[2:4]] * 30)


LEAVES = st.sampled_from(ANY)


def nests(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A nest of any kind."""
    runs = st.lists(inner, max_size=2).map(tuple)
    branches = st.lists(runs, min_size=1, max_size=3).map(tuple)
    return st.one_of(
        st.builds(RandomApply, st.lists(inner, min_size=1, max_size=3).map(tuple), st.sampled_from([0.0, 0.5, 1.0])),
        st.builds(RandomChoice, branches),
        st.builds(RandomOrder, branches),
    )


@examples(times=1.6)
@given(
    st.lists(st.recursive(LEAVES, nests, max_leaves=4), min_size=1, max_size=4),
    st.tuples(st.integers(12, 40), st.integers(12, 40)),
    st.sampled_from([(), (ToFloat(),), (ToFloat("bfloat16"),)]),
    st.integers(0, 2**40),
)
def test_any_chain_equals_torchvision(ops: list[Op], size: tuple[int, int], to: tuple[Op, ...], first: int) -> None:
    """Effects, geometry and nests of them, in nests too, in any order, for any samples."""
    payloads, ids = [png(n, *size) for n in range(3)], range(first, first + 3)
    recipe = Recipe((*to, *ops))
    for one, other in zip(ran(recipe, payloads, ids), theirs(recipe, payloads, ids), strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other), recipe


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
    alone = compile_host(Recipe((Flip("x"), Resize((9, 9)), Resize((9, 9)), Flip("y"))))
    there = alone.parameters(np.full((50, 2), 40, np.int32), np.arange(50), 0, 0).arrays
    for name in (Key("flip0"), Key("flip3")):
        np.testing.assert_array_equal(found[name], there[name])


def test_a_batch_of_many_equals_its_images_one_by_one() -> None:
    """What a sample picks does not depend on the batch it is in."""
    recipe = Recipe(
        (Resize((30, 40)), RandomApply((GaussianBlur((3, 3)), RandomErasing(0.5))), RandomChoice(((Grayscale(),), ())))
    )
    payloads = [png(n, 40, 50) for n in range(9)]
    for one, other in zip(together(recipe, payloads), ran(recipe, payloads, range(9)), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("ops", "on_cpu"),
    [
        ((*FLOAT, RandomErasing()), 1),
        ((RandomErasing(), *FLOAT), 1),
        ((RandomErasing(), RandomErasing(), *FLOAT), 2),  # the finish erases one rectangle of an image
        ((*FLOAT, RandomErasing(), RandomErasing()), None),
        ((*FLOAT, RandomApply((RandomErasing(),))), None),
        ((*FLOAT, RandomErasing(value=float("inf"))), None),
    ],
)
def test_before_a_gpu_the_last_erasing_is_left_to_the_finish(ops: tuple[Op, ...], on_cpu: int | None) -> None:
    """One that only flips and floats follow; a recipe that erases floats before it goes over as it came out."""
    program = compile_host(Recipe((Resize((9, 9)), *ops)), on_gpu=True)
    assert (program.on_cpu if program.finish is not None else None) == on_cpu


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("size", [(2, 9), (9, 5), (3, 6), (9, 9)])
def test_images_too_small_for_a_kernel_are_known_by_their_size(size: tuple[int, int], nested: bool) -> None:
    """GaussianBlur mirrors the border: where torchvision fails on an image, there is a reason beforehand."""
    op: Sequence[Op] = (GaussianBlur((11, 5)),)
    reason = unfit(Recipe((RandomApply(tuple(op), 1.0),) if nested else tuple(op)), np.array([size, [0, 0]], np.int32))
    try:
        v2.GaussianBlur((11, 5))(torch.zeros((3, *size), dtype=torch.uint8))
    except RuntimeError:
        told = "GaussianBlur: a kernel of 11x5 needs an image of 6x3 at least"
        assert reason == {0: f"{told}; found {size[1]}x{size[0]}"}
    else:
        assert not reason
