"""Both ends agree: what kernels do behind a batch on a GPU, and what the host engine does to the end on the CPU.

Without a GPU the kernels' references stand for them; tests/kernels holds the two equal.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kit.engine_runs import engine_of, images_of, result_of, submit
from kit.finished import finish_reference
from kit.images import jpeg
from kit.properties import examples
from kit.recipes import ENDS, FLOAT, JITTER, MAKERS
from torchvision.transforms import v2

from dali_feed import DataLoader, Decode
from dali_feed.engines.choose import compiled
from dali_feed.engines.dali.graph import compile_dali
from dali_feed.engines.engine import Work
from dali_feed.kernels.jitter import jitter_reference
from dali_feed.screen.screen import screen
from dali_feed.testing.scripted import ScriptedSource
from dali_feed.transforms.colour import MAX_STEPS, ColorJitter, Grayscale, RandomGrayscale
from dali_feed.transforms.convert import Normalize
from dali_feed.transforms.crops import Flip, RandomCrop
from dali_feed.transforms.erasing import RandomErasing
from dali_feed.transforms.filters import GaussianBlur
from dali_feed.transforms.lower import lower
from dali_feed.transforms.nest import RandomApply
from dali_feed.transforms.op import Key, Op, Recipe
from dali_feed.transforms.program import ImageProgram, Tail, compile_host
from dali_feed.transforms.resize import RandomResizedCrop, Resize
from dali_feed.transforms.warps import Rotation

PAYLOADS = [memoryview(jpeg(n, 30 + 3 * n, 50 - 2 * n)) for n in range(9)]
SIZES = screen(PAYLOADS).sizes
# Finish rounds once where torchvision rounds three times: 7.2e-7 apart in float32 (kernels/finish.py).
APART = {torch.float32: 7.2e-7, torch.float16: 8e-3, torch.bfloat16: 6e-2, torch.uint8: 0}


def on_gpu(recipe: Recipe, seed: int) -> torch.Tensor:
    """The bytes that would be copied, finished by the kernel's reference where something is left to it."""
    (pixels,) = result_of("host", compile_host(recipe, on_gpu=True), PAYLOADS, seed).outputs
    images, tail = pixels.images, pixels.tail
    if tail is None:
        return torch.as_tensor(images)
    assert images.dtype == torch.uint8
    rows: dict[str, Any] = {name: getattr(tail, name) for name in ("flip_x", "flip_y", "erase")}
    if tail.finish.dtype != "uint8":
        rows |= {"scale": tail.finish.scale, "bias": tail.finish.bias}
    how: dict[str, Any] = {"dtype": tail.finish.dtype, "layout": tail.finish.layout, "erase_value": tail.finish.erase}
    found = torch.from_numpy(finish_reference(images.numpy(), **rows, **how))
    return found.view(torch.bfloat16) if tail.finish.dtype == "bfloat16" else found


def agree(recipe: Recipe, seed: int) -> None:
    """The same uint8 pixels go in; what comes out is equal, or apart by the roundings of its type."""
    whole, found = images_of(result_of("host", compile_host(recipe), PAYLOADS, seed)), on_gpu(recipe, seed)
    assert (found.dtype, found.shape) == (whole.dtype, whole.shape)
    apart = found.double() - whole.double()
    apart[found == whole] = 0  # infinities too
    exact = whole.dtype == torch.float32 and not any(isinstance(op, Normalize) for op in recipe.ops)
    assert apart.abs().max() <= (0 if exact else APART[whole.dtype])


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_the_two_ends_agree(end: str, layout: Any) -> None:
    """Whatever is left to the kernel, also where that is nothing, since it can not do it."""
    agree(Recipe((RandomResizedCrop((24, 20)), ColorJitter(brightness=(0.5, 1.5)), *ENDS[end]), layout=layout), 3)


MIDDLE: list[Op] = [
    *(Flip("x"), Flip("y", 0.3), Rotation((-30, 30)), ColorJitter(hue=(-0.1, 0.1)), Resize((20, 24))),
    RandomErasing(0.7),
]


@given(st.lists(st.sampled_from(MIDDLE), max_size=4), st.sampled_from(list(ENDS.values())), st.integers(0, 99))
@examples(times=1.2)
def test_what_stands_before_is_done_on_the_cpu(middle: list[Op], end: tuple[Op, ...], seed: int) -> None:
    """Flips too, in their order, and the samples are the same."""
    agree(Recipe((RandomCrop((25, 22)), *middle, *end)), seed)


ON_CPU = {"erased by what no kernel writes", "erased twice", "erased, sometimes"}


@pytest.mark.parametrize("end", ENDS)
def test_both_engines_leave_the_same_to_the_finish(end: str) -> None:
    """Of one recipe the two compilers make one finish step, with the same flips and rectangles for each sample."""
    recipe = Recipe((RandomResizedCrop((24, 20)), *ENDS[end]))
    theirs = compile_host(recipe, on_gpu=True)
    assert (theirs.finish is None) == (end in ON_CPU)
    if end in ON_CPU:
        return
    programs: list[ImageProgram] = [compile_dali(recipe, region_decode=False), theirs]
    one, other = (Tail.of(each.finish, each.parameters(SIZES, np.arange(9), 5, 0).arrays) for each in programs)
    assert one is not None
    assert other is not None
    assert replace(one.finish, layout="NHWC") == replace(other.finish, layout="NHWC")
    for name in ("flip_x", "flip_y", "erase"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


CROP = RandomCrop((25, 22))


@pytest.mark.parametrize(
    ("ops", "on_gpu", "left", "steps"),
    [
        ((JITTER, GaussianBlur((3, 3), (0.1, 2.0)), *FLOAT), True, 0, 1),
        ((JITTER, Resize((20, 20)), *FLOAT), True, 0, 1),
        ((JITTER, *FLOAT), False, 0, 1),
        ((JITTER, *FLOAT), True, 4, 0),
        ([JITTER] * 20, True, MAX_STEPS, 20 - MAX_STEPS // 4),
    ],
)
def test_how_many_colour_steps_are_left_to_the_kernel(ops: Any, on_gpu: bool, left: int, steps: int) -> None:
    """The last, as many as it takes; none that something else follows, or on the CPU."""
    program = compile_dali(Recipe((CROP, *ops)), on_gpu=on_gpu)
    assert program.finish is not None
    assert program.finish.adjusts == left
    assert sum(step.colours > 0 for step in program.steps) == steps


@pytest.mark.parametrize("seed", range(3))
def test_the_kernels_way_gives_torchvisions_pixels(seed: int) -> None:
    """Crop, flip, jitter, gray: the host engine's pixels, which are torchvision's; its own three roundings apart."""
    recipe = Recipe((CROP, Flip("x"), RandomApply((JITTER,), 0.8), RandomGrayscale(0.3), *FLOAT))
    theirs = images_of(result_of("host", compile_host(recipe), PAYLOADS, seed))
    program = compile_dali(recipe, on_gpu=True)
    tail = Tail.of(program.finish, program.parameters(SIZES, np.arange(9), seed, 0).arrays)
    assert tail is not None
    plain = compile_dali(Recipe((CROP, Flip("x")), "NHWC"), on_gpu=False)
    drawn = plain.parameters(SIZES, np.arange(9), seed, 0).arrays
    rows = {(0, key): values for key, values in drawn.items()} | {(0, Key("flip_x")): np.zeros(9, np.int32)}
    engine = engine_of("dali", plain, 9)
    cropped = np.array(images_of(engine.take(submit(engine, Work(np.arange(9), {"": PAYLOADS}, rows)))))
    engine.close()
    adjusted = jitter_reference(cropped, tail.adjust if tail.adjust is not None else [])
    found = finish_reference(adjusted, flip_x=tail.flip_x, scale=tail.finish.scale, bias=tail.finish.bias)
    assert np.abs(found - theirs.numpy()).max() <= 7.2e-7


def batches(transform: Any) -> list[Any]:
    """Two batches of eight, on a GPU."""
    source = ScriptedSource([(jpeg(n, 90, 120), n) for n in range(16)])
    with DataLoader(source, 8, transform=transform, device="cuda", seed=1, info=True) as loader:
        return [(images, info.ids) for images, _, info in loader]


BEFORE, RAND, MIX = v2.RandomResizedCrop(16), v2.RandAugment(), v2.AugMix()


@pytest.mark.parametrize(
    ("transforms", "device", "engine"),
    [
        *(((BEFORE, make()), 0, "dali") for make in MAKERS.values()),
        ((BEFORE, RAND), None, "host"),
        ((BEFORE, v2.RandomApply([RAND], 0.5), v2.ColorJitter(0.4), v2.RandomHorizontalFlip()), 0, "dali"),
        ((BEFORE, v2.GaussianBlur(3), v2.ColorJitter(0.4), RAND, v2.TrivialAugmentWide()), 0, "dali"),
        ((BEFORE, RAND, v2.GaussianBlur(3)), 0, "host"),
        ((RAND, BEFORE), 0, "host"),
        ((BEFORE, RAND, MIX), 0, "host"),
        ((BEFORE, MIX, RAND), 0, "host"),
        ((BEFORE, v2.RandAugment(fill=[300])), 0, "host"),
        ((BEFORE, v2.AugMix(mixture_width=8)), 0, "dali"),
        ((BEFORE, v2.AugMix(mixture_width=9)), 0, "host"),
    ],
)
def test_which_engine_runs_operations(transforms: Any, device: int | None, engine: str) -> None:
    """On a GPU the dali engine, where the kernel can do them, and else the host engine, as on the CPU."""
    assert compiled(v2.Compose(transforms), Decode(), device).engine == engine


def test_operations_of_one_channel_are_run_by_host() -> None:
    """Which the kernel has not."""
    ops = lower(v2.Compose([BEFORE, RAND])).ops
    assert compiled(Recipe((*ops, Grayscale())), Decode(), 0).engine == "dali"
    assert compiled(Recipe((Grayscale(1), *ops)), Decode(), 0).engine == "host"


@pytest.mark.device
def test_the_loader_adjusts_with_the_kernel() -> None:
    """On a GPU the batch is the reference's of the same batch without colour, to the bit."""
    crop, jitter = v2.RandomResizedCrop(48), v2.ColorJitter(0.4, 0.4, 0.4, 0.1)
    program = compile_dali(lower(v2.Compose([crop, jitter])), on_gpu=True)
    for (plain, ids), (found, same) in zip(batches(crop), batches(v2.Compose([crop, jitter])), strict=True):
        assert torch.equal(ids, same)
        steps = program.parameters(np.full((8, 2), 90, np.int32), ids.numpy(), 1, 0).arrays[Key("adjust")]
        expected = jitter_reference(plain.permute(0, 2, 3, 1).cpu().numpy(), steps)
        np.testing.assert_array_equal(found.permute(0, 2, 3, 1).cpu().numpy(), expected)


@pytest.mark.device
def test_one_views_colour_is_not_another_ones() -> None:
    """Of two views of the same pixels the plain one stays plain, and the batch without views is the same."""
    crop, jitter = v2.CenterCrop(64), v2.ColorJitter(0.4, 0.4, 0.4, 0.1)
    alone = batches(crop)
    for (views, _), (expected, _) in zip(batches([v2.Compose([crop, jitter]), crop]), alone, strict=True):
        assert not torch.equal(views[0], expected)
        assert torch.equal(views[1], expected)
