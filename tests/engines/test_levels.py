"""Steps that look at one value at a time, as a table: the bits of the steps one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dali_feed.compiler.host import compile_host
from dali_feed.engines.host.image import ImageSteps
from dali_feed.engines.host.tail import split_tail
from dali_feed.transforms.base import Op
from dali_feed.transforms.erasing import RandomErasing
from dali_feed.transforms.flip import Flip
from dali_feed.transforms.normalize import Normalize
from dali_feed.transforms.recipe import Recipe
from dali_feed.transforms.rules import DType, Layout
from dali_feed.transforms.to_float import ToFloat

SCALED, UNSCALED = ToFloat("float32"), ToFloat("float32", scale=False)
THREE = Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
ODD = Normalize((0.1, 7.0, -3.0), (1e-3, 3.0, 77.7))
ONE = Normalize((0.5,), (0.3,))
CHAINS: dict[str, tuple[Op, ...]] = {
    "scaled": (SCALED,),
    "not scaled": (UNSCALED, ODD),
    "normalized": (SCALED, THREE),
    "one number": (SCALED, ONE),
    "twice": (SCALED, THREE, ODD),
}
HEIGHT, WIDTH = 16, 48  # 768 values a plane: each level three times


def levels() -> Any:
    """(3, HEIGHT, WIDTH) with every level in each plane, in the memory of a decoded image: channels last."""
    rng = np.random.default_rng(0)
    planes = [rng.permutation(np.repeat(np.arange(256, dtype=np.uint8), 3)) for _ in range(3)]
    return torch.from_numpy(np.stack(planes, axis=-1).reshape(HEIGHT, WIDTH, 3)).permute(2, 0, 1)


def in_turn(image: Any, ops: tuple[Op, ...]) -> Any:
    """The image after each op's own steps, as torchvision takes them."""
    for n, op in enumerate(ops):
        for apply in op.host_steps(n):
            image = apply(image, {}, 0)
    return image


@pytest.mark.parametrize("mirrored", [None, False, True])
@pytest.mark.parametrize("name", CHAINS)
def test_the_table_has_the_bits_of_the_steps(name: str, mirrored: bool | None) -> None:
    """Of all 256 levels in each plane, as they are or mirrored by the draw of a flip before them."""
    before = () if mirrored is None else (Flip("x"),)
    program = compile_host(Recipe((*before, *CHAINS[name])))
    out = torch.empty(3, HEIGHT, WIDTH)
    arrays = {key: np.array([mirrored]) for key in program.parameters(np.array([[8, 8]]), np.arange(1), 0, 0).arrays}
    ImageSteps(program).run_on(levels(), arrays, 0, out)
    image = levels().flip(-1) if mirrored else levels()
    assert torch.equal(out, in_turn(image, CHAINS[name]))


def test_one_channel_becomes_three_through_the_table() -> None:
    """A plane of gray that stands for three has each plane's own numbers."""
    out = torch.empty(3, HEIGHT, WIDTH)
    ImageSteps(compile_host(Recipe((SCALED, THREE)))).run_on(levels()[:1], {}, 0, out)
    assert torch.equal(out, in_turn(levels()[:1].expand(3, -1, -1), (SCALED, THREE)))


def test_floats_of_the_users_own_go_by_the_steps() -> None:
    """What a user's function has made of an image need not be bytes, and is mirrored all the same."""
    program = compile_host(Recipe((Flip("x", 1.0), UNSCALED, ODD)))
    arrays, image = program.parameters(np.array([[8, 8]]), np.arange(1), 0, 0).arrays, levels() / 3
    out = torch.empty(3, HEIGHT, WIDTH)
    ImageSteps(program).run_on(image, arrays, 0, out)
    assert torch.equal(out, in_turn(image.flip(-1), (UNSCALED, ODD)))


@pytest.mark.parametrize(
    ("ops", "dtype", "layout", "left"),
    [
        ((Flip("x"), SCALED, THREE, RandomErasing(1.0)), "float32", "NCHW", 0),
        ((Flip("y"), SCALED, THREE), "float32", "NCHW", 1),
        ((Flip("x"), SCALED, THREE), "float32", "NHWC", 1),
        ((Flip("x"), ToFloat("float16"), THREE), "float16", "NCHW", 1),
    ],
)
def test_a_flip_is_part_of_the_table_where_there_is_one(
    ops: tuple[Op, ...], dtype: DType, layout: Layout, left: int
) -> None:
    """A mirror image left to right before planes of float32 is no step of its own, any other flip is one."""
    program = compile_host(Recipe(ops, layout=layout))
    assert program.dtype == dtype
    steps, tail = split_tail(program)
    assert tail is not None
    assert len(steps) == left
