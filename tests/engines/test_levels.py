"""The end of a program in one pass of C: the bits of its steps one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kit.recipes import ENDS, X, Y

from dali_feed.engines.host import images as levels
from dali_feed.engines.host.images import ImageSteps, levels_of
from dali_feed.native import library as native
from dali_feed.native.library import library
from dali_feed.transforms.convert import Normalize, ToFloat
from dali_feed.transforms.crops import Flip, Pad
from dali_feed.transforms.erasing import RandomErasing
from dali_feed.transforms.op import Op, Recipe
from dali_feed.transforms.program import compile_host
from dali_feed.transforms.resize import Resize
from dali_feed.transforms.settings import DType, Layout

pytestmark = pytest.mark.skipif(library() is None, reason="the library was not compiled")

INF, NAN = float("inf"), float("nan")
MEANS = st.sampled_from([0.0, 0.485, 127.5, -3.0, 1e30, 1e-40, INF, NAN])
STDS = st.sampled_from([0.229, 1.0, 77.7, 1e-3, 1e-40, 1e30])
NORMALIZE = st.one_of(
    st.builds(Normalize, st.tuples(MEANS), st.tuples(STDS)),
    st.builds(Normalize, st.tuples(MEANS, MEANS, MEANS), st.tuples(STDS, STDS, STDS)),
)
WIDTHS = st.one_of(st.integers(1, 99), st.integers(1, 6).map(lambda blocks: 16 * blocks))
FLOAT: Any = st.sampled_from(["float32", "float16", "bfloat16"])


@contextmanager
def without() -> Iterator[None]:
    """Programs that begin here have no pass in C."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(levels, "writer", lambda *_, **__: None)
        yield


def both(recipe: Recipe, image: torch.Tensor, sample: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """What the steps make of an image (3 or 1, height, width), with the pass in C and without."""
    program = compile_host(recipe)
    made = program.parameters(np.array([image.shape[1:]]), np.array([sample]), 0, 0)
    arrays, (height, width) = made.arrays, made.sizes[0].tolist()
    shape = (3, height, width) if recipe.layout == "NCHW" else (height, width, 3)
    dtype = getattr(torch, program.dtype)
    ours, theirs = torch.empty(shape, dtype=dtype), torch.empty(shape, dtype=dtype)
    ImageSteps(program).run_on(image, arrays, 0, ours)
    with without():
        ImageSteps(program).run_on(image, arrays, 0, theirs)
    return ours, theirs


def same(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Whether all bits are; of NaN there are several, and torch's own vectors and single values make different ones."""
    kind = {2: torch.int16, 4: torch.int32}[ours.itemsize]
    return bool(((ours.view(kind) == theirs.view(kind)) | (ours.isnan() & theirs.isnan())).all())


def image_of(height: int, width: int, *, gray: bool = False) -> torch.Tensor:
    """An image with all levels, as far as there is room, in the memory of a decoded one."""
    levels = np.random.default_rng(width).integers(0, 256, (height, width, 1 if gray else 3), np.uint8)
    return torch.from_numpy(levels).permute(2, 0, 1)


@given(
    FLOAT,
    st.booleans(),
    st.lists(NORMALIZE, max_size=2),
    st.sampled_from(["NCHW", "NHWC"]),
    st.lists(st.sampled_from("xy"), max_size=3),
    st.tuples(st.integers(1, 30), WIDTHS, st.booleans(), st.integers(0, 2**40)),
    st.booleans(),
)
def test_the_pass_has_the_bits_of_the_steps(
    dtype: DType,
    scale: bool,
    normalized: list[Normalize],
    layout: Layout,
    flips: list[Any],
    of: tuple[int, int, bool, int],
    far: bool,
) -> None:
    """Whatever is added and divided by, infinities and what is no number too, behind any mirrors."""
    height, width, gray, sample = of
    recipe = Recipe((*map(Flip, flips), ToFloat(dtype, scale), *normalized), layout=layout)
    with pytest.MonkeyPatch.context() as patch:
        if far:  # as images are that fill more than a cache
            patch.setattr(native, "FAR", 0)
        ours, theirs = both(recipe, image_of(height, width, gray=gray), sample)
    assert same(ours, theirs)


BYTES = X, Y, RandomErasing(1.0, value=7.0)
BY_STEPS = {"flipped last", "flipped between", "brain", "erased between flips", "erased, then normalized"}


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("name", [*ENDS, "mirrored bytes"])
def test_each_end_has_the_bits_of_its_steps(name: str, layout: Layout) -> None:
    """What stands before, in and behind the pass is done once and in its order, over all 256 levels."""
    recipe = Recipe(ENDS.get(name, BYTES), layout=layout)
    assert (levels_of(compile_host(recipe)) is None) == (name in BY_STEPS | {"erased, sometimes"})
    ours, theirs = both(recipe, image_of(40, 56))
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    "before", [(), (Flip("x", 1.0), Flip("y", 1.0)), (Flip("x", 1.0), Pad((0, 0, 1, 0)), Flip("y", 1.0))]
)
def test_floats_of_the_users_own_go_by_the_steps(before: tuple[Op, ...]) -> None:
    """What a user's function has made of an image need not be bytes, and each step is done once all the same."""
    image = image_of(20, 30) / 3
    ours, theirs = both(Recipe((*before, ToFloat(scale=False), Normalize((0.1, 7.0, -3.0), (1e-3, 3.0, 7.0)))), image)
    assert torch.equal(ours, theirs)
    assert not torch.equal(ours, torch.zeros_like(ours))


def test_floats_that_become_other_floats_are_not_scaled_again() -> None:
    """A conversion behind another and a resize has no bytes before it: the pass leaves it to the steps, all of them."""
    ops, image = (Resize((30, 20)), ToFloat(), Resize((9, 8))), image_of(40, 56)
    floats, _ = both(Recipe(ops), image)
    for found in both(Recipe((*ops, ToFloat("float16"))), image):
        assert torch.equal(found, floats.to(torch.float16))
