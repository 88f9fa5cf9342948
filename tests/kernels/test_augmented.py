"""The kernel `augment`, run on the host, has torchvision's pixels: of every operation, and of chains that are drawn.

torch's own bits are not the same on every processor: MKL multiplies the matrix that says where pixels come from in its
own order, and without vectors that fuse products torch rounds them apart. There hardly a pixel is another one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from kernel_cases import KERNELS, Array, augment_case, pictures
from kernels_host import OnDevice, compile_for_host, moved
from kit.augmented import fused_here
from kit.kept import Kept
from kit.recipes import MAKERS

from dali_feed.engines.dali.graph import compile_dali
from dali_feed.kernels.augment import augment
from dali_feed.transforms.auto_augment import (
    MOVES,
    SIGNED,
    AutoAugment,
    RandAugment,
    TrivialAugmentWide,
    stage_table,
)
from dali_feed.transforms.crops import Flip
from dali_feed.transforms.lower import lower
from dali_feed.transforms.nest import RandomApply, RandomChoice
from dali_feed.transforms.op import AUGMENT, SHARES, Recipe
from dali_feed.transforms.program import compile_host

pytestmark = pytest.mark.slow

Run = Callable[..., Array]  # of images and rows, and weights


@pytest.fixture(scope="module")
def run(kept: Kept) -> Run:
    """The kernel on the host."""
    host = compile_for_host(kept, "augment", KERNELS["augment"].variants)

    def on_host(images: Array, rows: Array, weights: Array | None = None) -> Array:
        case = augment_case(images, rows, weights)
        host.run(augment.prepare(**moved(case, OnDevice)))
        out: Array = case["out"]
        return out

    return on_host


def assert_theirs(ours: Array, theirs: Array, *, moved: bool) -> None:
    """The same bits; where torch's depend on the processor a level apart, or hardly a pixel where they are `moved`."""
    apart = np.abs(ours.astype(int) - theirs)
    if fused_here():
        assert not apart.any()
    else:
        assert apart.max() <= 1 or (moved and np.mean(apart > 0) <= 1e-2)


WAYS: dict[str, dict[str, Any]] = {
    "nearest": {},
    "nearest, filled": {"fill": (1.5, 200.0, 3.0)},
    "bilinear": {"interpolation": "bilinear"},
    "bilinear, black": {"interpolation": "bilinear", "fill": 0.0},
    "bilinear, filled": {"interpolation": "bilinear", "fill": (1.5, 200.0, 3.0)},
}


SIZES = {(33, 47): 1, (32, 32): 1, (192, 256): 29, (224, 224): 29}


def choices() -> Iterator[Any]:
    """Each way with images of each size and one of so many choices; all of them are long.

    Every choice meets every way, and both small sizes. Of a large one some do, most by one way.
    """
    for way, (size, every) in itertools.product(WAYS, SIZES.items()):
        some = every if way == "nearest" or size == (33, 47) else {1: 7, 29: 97}[every]
        yield pytest.param(way, size, some)
        if some > 1:
            yield pytest.param(way, size, 1, marks=pytest.mark.long)


@pytest.mark.parametrize(("way", "size", "every"), [*choices()])
def test_every_operation_of_every_strength_and_sign(run: Run, way: str, size: tuple[int, int], every: int) -> None:
    """AutoAugment's and TrivialAugmentWide's; what moves no pixel by one way alone."""
    image = pictures((2, *size), 3)[1]
    planes = torch.from_numpy(image).permute(2, 0, 1).contiguous()
    for op in (AutoAugment((), **WAYS[way]), TrivialAugmentWide(**WAYS[way])):
        table, names = stage_table(op, *size), op.space.names
        some = [
            (n, strong, sign)
            for n, name in enumerate(names)
            for strong in range(op.grades)
            for sign in ((0, 1) if name in SIGNED else (0,))
            if way == "nearest" or name in MOVES
        ][::every]
        ours = run(np.repeat(image[None], len(some), 0), np.stack([table[each] for each in some])[:, None, None])
        for (n, strong, sign), one in zip(some, ours, strict=True):
            theirs = op.run(planes, [[n, strong, 1 - 2 * sign]]).permute(1, 2, 0).numpy()
            assert_theirs(one, theirs, moved=names[n] in MOVES)


def of_host(recipe: Recipe, images: Array) -> Array:
    """What torchvision's functions make of decoded images, with the draws of samples 0 on."""
    sizes = np.tile(np.array(images.shape[1:3], np.int32), (len(images), 1))
    program = compile_host(recipe)
    arrays, out = program.parameters(sizes, np.arange(len(images)), 5, 0).arrays, []
    for slot, image in enumerate(images):
        planes = torch.from_numpy(image).permute(2, 0, 1).contiguous()
        for n, op in enumerate(recipe.ops):
            planes = op.step(n)(planes, arrays, slot)
        out.append(planes.permute(1, 2, 0).numpy())
    return np.stack(out)


def of_kernel(run: Run, recipe: Recipe, images: Array) -> Array:
    """What the kernel makes of them, with what the graph's program says."""
    program = compile_dali(recipe, on_gpu=True)
    assert program.finish is not None
    assert program.finish.augments
    assert not program.steps
    sizes = np.tile(np.array(images.shape[1:3], np.int32), (len(images), 1))
    arrays = program.parameters(sizes, np.arange(len(images)), 5, 0).arrays
    return run(images, arrays[AUGMENT], arrays.get(SHARES))


FLIPS = (Flip("x"), Flip("y"))


def op_of(name: str) -> Any:
    """The op of one of the recipes."""
    (op,) = lower(MAKERS[name]()).ops
    return op


@pytest.mark.parametrize("count", [1, 3, 17, pytest.param(64, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", MAKERS)
def test_chains_as_they_are_drawn(run: Run, name: str, count: int) -> None:
    """Behind flips, which are done before the operations; also of what is not applied to all, or chosen from."""
    op = op_of(name)
    recipes = [Recipe((*FLIPS, op)), Recipe((FLIPS[0], RandomApply((op,), 0.5)))]
    if not op.inner():
        recipes.append(Recipe((FLIPS[1], RandomChoice(((op,), (op_of("trivial"),))), op_of("rand"))))
    for recipe in recipes:
        images = pictures((count, 33, 47), count)
        assert_theirs(of_kernel(run, recipe, images), of_host(recipe, images), moved=True)


def test_rows_are_of_each_images_size() -> None:
    """How far an operation moves pixels depends on it."""
    program = compile_dali(Recipe((FLIPS[0], op_of("rand"))), on_gpu=True)
    ids, sizes = np.arange(40), np.array([(33, 47), (20, 30), (33, 46), (34, 47)] * 10, np.int32)
    rows = program.parameters(sizes, ids, 5, 0).arrays[AUGMENT]
    for slot in ids:
        alone = program.parameters(sizes[slot : slot + 1], ids[slot : slot + 1], 5, 0).arrays[AUGMENT]
        np.testing.assert_array_equal(rows[slot], alone[0])
    assert not np.array_equal(rows, program.parameters(np.roll(sizes, 1, 0), ids, 5, 0).arrays[AUGMENT])


def test_no_operation_at_all_flips_alone(run: Run) -> None:
    """As in a sweep over num_ops that begins at 0."""
    recipe, images = Recipe((*FLIPS, RandAugment(num_ops=0))), pictures((9, 8, 12), 1)
    assert np.array_equal(of_kernel(run, recipe, images), of_host(recipe, images))
