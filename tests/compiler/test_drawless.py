"""What of a program can be kept: the part that no random number changes, of the programs that a GPU would run too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from dali_feed.compiler.drawless import Drawless, drawless
from dali_feed.engines.choose import compiled
from dali_feed.errors import ConfigError
from dali_feed.options import Decode

FLOATS = (v2.ToDtype(torch.float32, scale=True), v2.Normalize((0.5,), (0.2,)))
RESIZED = (v2.Resize((20, 24)), v2.RandomHorizontalFlip(), *FLOATS, v2.RandomErasing(0.5))
SIZES = np.array([(40, 51), (33, 60), (20, 20)], np.int32)
IDS = np.array([3, 9, 1 << 40])

GPU = pytest.mark.parametrize("engine", ["host", "dali"])


def parts(engine: str, *ops: Any, device: int | None = 0) -> tuple[Drawless, Any]:
    """Of the program for a GPU, which is made without one."""
    name, program = compiled(v2.Compose(ops), Decode(engine=engine), device)
    return drawless(name, program, device), program


@GPU
def test_a_gpu_keeps_what_its_finish_step_is_given(engine: str) -> None:
    """The program is the engine's own, and the rows that decide about an image are the same in every epoch."""
    made, program = parts(engine, *RESIZED)
    assert made.finish is not None
    assert made.finish is program.finish
    assert made.head is program
    assert made.rest is None
    rows = [made.rows(program.parameters(SIZES, IDS, seed, epoch).arrays, 3) for seed, epoch in ((0, 0), (7, 5))]
    assert np.array_equal(rows[0], rows[1])
    assert len(rows[0]) == 3


@GPU
def test_rows_tell_one_crop_from_another(engine: str) -> None:
    """An image of another size, whose middle lies elsewhere, has other rows."""
    made, program = parts(engine, v2.Resize(20), v2.CenterCrop(16), *FLOATS)
    rows = made.rows(program.parameters(SIZES, IDS, 0, 0).arrays, 3)
    assert len({row.tobytes() for row in rows}) == 3


def test_a_crop_of_images_of_one_size_comes_behind_what_is_kept() -> None:
    """Before a GPU the host engine gives whole images, and the crop's rows decide about none of them."""
    padded = v2.RandomCrop(18, padding=4, fill=7)
    made, program = parts("host", v2.Resize((20, 24)), v2.Pad(1), padded, *RESIZED[1:])
    assert made.head.size == (22, 26)
    assert made.crop is not None
    assert made.crop.size == (18, 18)
    assert made.finish is program.finish
    arrays = [program.parameters(SIZES, IDS, 0, epoch).arrays for epoch in (0, 1)]
    assert made.crop.key in arrays[0]
    assert np.array_equal(made.rows(arrays[0], 3), made.rows(arrays[1], 3))
    flipped, _ = parts("host", v2.Resize((20, 24)), padded, v2.RandomVerticalFlip())
    assert flipped.crop is not None
    with pytest.raises(ConfigError, match="found RandomHorizontalFlip"):
        parts("host", v2.Resize((20, 24)), v2.RandomHorizontalFlip(), padded)
    with pytest.raises(ConfigError, match="found RandomCrop"):
        parts("dali", v2.Resize((20, 24)), padded, *FLOATS)


def test_colours_at_the_end_of_a_graph_are_the_kernels() -> None:
    """On the dali engine they come behind what is kept; the host engine does them before."""
    made, _ = parts("dali", v2.Resize((20, 24)), v2.ColorJitter(0.4, 0.4), *FLOATS)
    assert made.finish is not None
    assert made.finish.adjusts > 0
    with pytest.raises(ConfigError, match="found ColorJitter"):
        parts("host", v2.Resize((20, 24)), v2.ColorJitter(0.4, 0.4), *FLOATS)


@GPU
def test_random_crops_are_refused_on_a_gpu(engine: str) -> None:
    """By the name of what is random, also where a flip that is allowed stands before it."""
    for ops, found in (
        ((v2.RandomResizedCrop(16),), "RandomResizedCrop"),
        ((v2.Resize(20), v2.RandomCrop(16)), "RandomCrop"),
        ((v2.Resize((20, 24)), v2.RandomRotation(30)), "RandomRotation"),
    ):
        with pytest.raises(ConfigError, match=f"found {found}"):
            parts(engine, *ops, v2.RandomHorizontalFlip(), *FLOATS)
    if engine == "dali":
        with pytest.raises(ConfigError, match="found RandomResizedCrop"):
            parts(engine, v2.RandomHorizontalFlip(), v2.RandomResizedCrop(16), *FLOATS)


@pytest.mark.parametrize("ops", [RESIZED, RESIZED[:1], RESIZED[2:], (*RESIZED[:1], *FLOATS[:1], v2.Pad(2))])
def test_the_cpu_keeps_what_a_gpu_would(ops: tuple[Any, ...]) -> None:
    """It is cut at the same place: what is kept is uint8 where the recipe's end allows it."""
    there, program = parts("host", *ops)
    here, _ = parts("host", *ops, device=None)
    assert (here.rest is None) == (there.finish is None or program.on_cpu == len(program.recipe.ops))
    assert here.head.size == there.head.size
    if here.rest is not None:
        assert here.head.dtype == there.head.dtype == "uint8"
        assert len(here.head.recipe.ops) == program.on_cpu
        assert len(here.rest.steps) == len(ops) - program.on_cpu
