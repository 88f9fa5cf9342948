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
from kit.engine_runs import engine_of, result_of, submit
from kit.engine_runs import images_of as images_in
from kit.finished import finish_reference
from kit.images import jpeg
from kit.properties import examples
from numpy.typing import NDArray
from torchvision.transforms import v2

from dali_feed import DataLoader
from dali_feed.engines.dali.graph import DaliProgram, Step, compile_dali
from dali_feed.engines.engine import Work
from dali_feed.kernels.jitter import jitter_reference
from dali_feed.screen.screen import screen
from dali_feed.testing.scripted import ScriptedSource
from dali_feed.transforms.colour import MAX_STEPS, ColorJitter, RandomGrayscale
from dali_feed.transforms.convert import Normalize, ToFloat
from dali_feed.transforms.crops import Flip, RandomCrop
from dali_feed.transforms.erasing import RandomErasing
from dali_feed.transforms.filters import GaussianBlur
from dali_feed.transforms.host import HostProgram, compile_host
from dali_feed.transforms.keys import Key
from dali_feed.transforms.lower import lower
from dali_feed.transforms.nest import RandomApply
from dali_feed.transforms.op import Op, Recipe
from dali_feed.transforms.program import ImageProgram, Tail
from dali_feed.transforms.resize import RandomResizedCrop, Resize
from dali_feed.transforms.warps import Rotation

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
PAYLOADS = [memoryview(jpeg(n, 30 + 3 * n, 50 - 2 * n)) for n in range(9)]
# Finish rounds once where torchvision rounds three times: 7.2e-7 apart in float32 (kernels/finish.py).
APART = {"float32": 7.2e-7, "float16": 8e-3, "bfloat16": 6e-2}


def batch(program: HostProgram, seed: int) -> tuple[Any, Tail | None]:
    """The images of PAYLOADS, and what is left to do."""
    (pixels,) = result_of("host", program, PAYLOADS, seed).outputs
    return pixels.images, pixels.tail


def on_gpu(program: HostProgram, seed: int) -> torch.Tensor:
    """The bytes that would be copied, finished by the kernel's reference."""
    images, tail = batch(program, seed)
    assert tail is not None
    assert images.dtype == torch.uint8
    whole = tail.finish.dtype == "uint8"
    found = finish_reference(
        images.numpy(),
        dtype=tail.finish.dtype,
        layout=tail.finish.layout,
        flip_x=tail.flip_x,
        flip_y=tail.flip_y,
        erase=tail.erase,
        erase_value=tail.finish.erase,
        scale=None if whole else tail.finish.scale,
        bias=None if whole else tail.finish.bias,
    )
    return torch.from_numpy(found).view(torch.bfloat16) if tail.finish.dtype == "bfloat16" else torch.from_numpy(found)


def apart(found: torch.Tensor, whole: torch.Tensor) -> bool:
    """Whether they are further apart than the roundings of their type allow."""
    return bool((found.double() - whole.double()).abs().max() > APART.get(str(whole.dtype).removeprefix("torch."), 0))


ENDS: dict[str, tuple[Op, ...]] = {
    "as decoded": (),
    "flips": (Flip("x"), Flip("y"), Flip("x")),
    "floats": (ToFloat(),),
    "floats as they are": (ToFloat(scale=False),),
    "normalized": (ToFloat(), Normalize(MEAN, STD)),
    "flipped last": (ToFloat(), Normalize(MEAN, STD), Flip("x")),
    "flipped between": (Flip("y"), ToFloat(), Flip("x"), Normalize(MEAN, STD)),
    "normalized twice": (ToFloat(), Normalize((0.5,), (0.5,)), Normalize((0.1, 0.2, 0.3), (1.0, 2.0, 3.0))),
    "half": (ToFloat("float16"), Normalize(MEAN, STD)),
    "brain": (ToFloat("bfloat16"), Flip("x"), Normalize(MEAN, STD)),
    "erased": (ToFloat(), Normalize(MEAN, STD), RandomErasing(0.8, value=(9.0, -0.1, 0.0))),
    "erased between flips": (Flip("x"), ToFloat(), RandomErasing(1.0, value=0.3), Flip("y"), Flip("x")),
    "erased, then normalized": (Flip("y"), ToFloat(), RandomErasing(1.0, value=0.3), Flip("x"), Normalize(MEAN, STD)),
    "erased bytes": (RandomErasing(1.0, value=(200.9, 7.0, 255.0)), Flip("x")),
    "erased bytes, then normalized": (RandomErasing(1.0, value=77.9), Flip("x"), ToFloat(), Normalize(MEAN, STD)),
    "erased half": (ToFloat("float16"), Normalize(MEAN, STD), RandomErasing(1.0, value=0.1)),
    "erased half that was float": (ToFloat(), RandomErasing(1.0, value=0.1), Flip("x"), ToFloat("float16")),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_the_two_ends_agree(end: str, layout: Any) -> None:
    """The same uint8 pixels go in; what comes out is equal, or apart by the roundings of its type."""
    recipe = Recipe((RandomResizedCrop((24, 20)), ColorJitter(brightness=(0.5, 1.5)), *ENDS[end]), layout=layout)
    whole, _ = batch(compile_host(recipe), 3)
    found = on_gpu(compile_host(recipe, on_gpu=True), 3)
    assert found.dtype == whole.dtype
    assert found.shape == whole.shape
    if whole.dtype == torch.uint8 or end in ("floats", "floats as they are"):
        assert torch.equal(found, whole)
    assert not apart(found, whole)


@given(
    middle=st.lists(
        st.sampled_from(
            (
                *(Flip("x"), Flip("y", 0.3), Rotation((-30, 30)), ColorJitter(hue=(-0.1, 0.1)), Resize((20, 24))),
                RandomErasing(0.7),
            )
        ),
        max_size=4,
    ),
    end=st.sampled_from(list(ENDS.values())),
    seed=st.integers(0, 99),
)
@examples(times=1.2)
def test_only_what_follows_the_last_uint8_op_is_left(middle: list[Op], end: tuple[Op, ...], seed: int) -> None:
    """Whatever stands before, flips too, is done on the CPU in its order, and the samples are the same."""
    recipe = Recipe((RandomCrop((25, 22)), *middle, *end))
    whole, _ = batch(compile_host(recipe), seed)
    program = compile_host(recipe, on_gpu=True)
    left = recipe.ops[program.on_cpu :]
    assert all(isinstance(op, Flip | ToFloat | Normalize | RandomErasing) for op in left)
    found = on_gpu(program, seed)
    assert not apart(found, whole)


@pytest.mark.parametrize("end", ENDS)
def test_both_engines_leave_the_same_to_the_finish(end: str) -> None:
    """Of one recipe the two compilers make one finish step, with the same flips and rectangles for each sample."""
    recipe = Recipe((RandomResizedCrop((24, 20)), *ENDS[end]))
    ours, theirs = compile_dali(recipe, region_decode=False), compile_host(recipe, on_gpu=True)
    sizes, ids = screen(PAYLOADS).sizes, np.arange(9)
    tails = [Tail.of(program.finish, program.parameters(sizes, ids, 5, 0).arrays) for program in (ours, theirs)]
    assert tails[0] is not None
    assert tails[1] is not None
    assert replace(tails[0].finish, layout="NHWC") == replace(tails[1].finish, layout="NHWC")
    for name in ("flip_x", "flip_y", "erase"):
        np.testing.assert_array_equal(getattr(tails[0], name), getattr(tails[1], name))


@pytest.mark.parametrize("value", [0.0, 9.0, (0.1, -7.3, 1e30)])
def test_an_erased_value_is_written_as_it_stands(value: Any) -> None:
    """What RandomErasing writes behind Normalize is the float32 that torchvision writes, also of no pixel's level."""
    recipe = Recipe((Resize((40, 40)), ToFloat(), Normalize(MEAN, STD), RandomErasing(1.0, value=value), Flip("x")))
    whole, _ = batch(compile_host(recipe), 1)
    found = on_gpu(compile_host(recipe, on_gpu=True), 1)
    there = whole == torch.tensor(np.broadcast_to(value, 3), dtype=torch.float32)[:, None, None]
    assert there.any()
    assert torch.equal(found[there], whole[there])


@pytest.mark.parametrize(
    ("ops", "on_cpu"),
    [
        ((*ENDS["normalized"], RandomErasing()), 1),
        ((RandomErasing(), *ENDS["normalized"]), 1),
        ((RandomErasing(), RandomErasing(), *ENDS["normalized"]), 2),  # the finish erases one rectangle of an image
        ((*ENDS["normalized"], RandomErasing(), RandomErasing()), None),
        ((*ENDS["normalized"], RandomApply((RandomErasing(),))), None),
        ((*ENDS["normalized"], RandomErasing(value=float("inf"))), None),
        ((ToFloat(), ColorJitter(brightness=(0.5, 1.5)), Normalize(MEAN, STD)), None),
    ],
)
def test_the_last_erasing_is_left_to_the_finish(ops: tuple[Op, ...], on_cpu: int | None) -> None:
    """One that only flips and floats follow; a recipe that erases floats before it goes over as it came out."""
    program = compile_host(Recipe((Resize((9, 9)), *ops)), on_gpu=True)
    assert (program.on_cpu if program.finish is not None else None) == on_cpu


CROP = RandomCrop((25, 22))
JITTER = ColorJitter((0.6, 1.4), (0.6, 1.4), (0.6, 1.4), (-0.1, 0.1))
FLOAT = (ToFloat(), Normalize(MEAN, STD))


def program_of(*ops: Op, on_gpu: bool = True) -> DaliProgram:
    """What the dali engine runs."""
    return compile_dali(Recipe(ops), on_gpu=on_gpu)


def left(program: DaliProgram) -> int:
    """How many steps are left to the kernel."""
    assert program.finish is not None
    return program.finish.adjusts


def colours(program: DaliProgram) -> list[Step]:
    """Those that the graph does."""
    return [step for step in program.steps if step.colours]


def arrays_of(program: Any, seed: int = 0) -> dict[Key, NDArray[Any]]:
    """What PAYLOADS take into it."""
    arrays: dict[Key, NDArray[Any]] = program.parameters(screen(PAYLOADS).sizes, np.arange(9), seed, 0).arrays
    return arrays


def images_of(name: str, program: ImageProgram, arrays: dict[Key, NDArray[Any]]) -> NDArray[Any]:
    """The batch of PAYLOADS, on the CPU."""
    engine = engine_of(name, program, 9)
    rows = {(0, key): values for key, values in arrays.items()}
    work = engine.take(submit(engine, Work(np.arange(9), {"": PAYLOADS}, rows)))
    found = np.array(np.from_dlpack(images_in(work)))
    engine.close()
    return found


def test_what_something_follows_stays_in_the_graph() -> None:
    """A blur or a resize behind the colour, or the CPU as the device, leaves the graph's own operators."""
    for ops in ((CROP, JITTER, GaussianBlur((3, 3), (0.1, 2.0)), *FLOAT), (CROP, JITTER, Resize((20, 20)), *FLOAT)):
        program = program_of(*ops)
        assert left(program) == 0
        assert len(colours(program)) == 1
        assert "colour2" in arrays_of(program)
    program = program_of(CROP, JITTER, *FLOAT, on_gpu=False)
    assert left(program) == 0
    assert "adjust" not in arrays_of(program)


def test_more_steps_than_the_kernel_takes_begin_in_the_graph() -> None:
    """Twenty jitters are eighty steps: as many of the last as fit go to the kernel."""
    program = program_of(CROP, *[JITTER] * 20)
    assert left(program) == MAX_STEPS
    assert len(colours(program)) == 20 - MAX_STEPS // 4


@pytest.mark.parametrize("seed", range(3))
def test_the_kernels_way_gives_torchvisions_pixels(seed: int) -> None:
    """Crop, flip, jitter, gray: the host engine's pixels, which are torchvision's; its own three roundings apart."""
    ops = (CROP, Flip("x"), RandomApply((JITTER,), 0.8), RandomGrayscale(0.3), *FLOAT)
    theirs = images_of("host", compile_host(Recipe(ops)), arrays_of(compile_host(Recipe(ops)), seed))
    program = program_of(*ops)
    arrays = arrays_of(program, seed)
    tail = Tail.of(program.finish, arrays)
    assert tail is not None
    plain = compile_dali(Recipe((CROP, Flip("x")), "NHWC"), on_gpu=False)
    cropped = images_of("dali", plain, arrays_of(plain, seed) | {Key("flip_x"): np.zeros(9, np.int32)})
    adjusted = jitter_reference(cropped, tail.adjust if tail.adjust is not None else [])
    found = finish_reference(adjusted, flip_x=tail.flip_x, scale=tail.finish.scale, bias=tail.finish.bias)
    assert np.abs(found - theirs).max() <= 7.2e-7


def batches(transform: Any) -> list[Any]:
    """Two batches of eight, on a GPU."""
    source = ScriptedSource([(jpeg(n, 90, 120), n) for n in range(16)])
    with DataLoader(source, 8, transform=transform, device="cuda", seed=1, info=True) as loader:
        return [(images, info.ids) for images, _, info in loader]


@pytest.mark.gpu
def test_the_loader_adjusts_with_the_kernel() -> None:
    """On a GPU the batch is the reference's of the same batch without colour, to the bit."""
    crop, jitter = v2.RandomResizedCrop(48), v2.ColorJitter(0.4, 0.4, 0.4, 0.1)
    program = compile_dali(lower(v2.Compose([crop, jitter])), on_gpu=True)
    for (plain, ids), (found, same) in zip(batches(crop), batches(v2.Compose([crop, jitter])), strict=True):
        assert torch.equal(ids, same)
        steps = program.parameters(np.full((8, 2), 90, np.int32), ids.numpy(), 1, 0).arrays[Key("adjust")]
        expected = jitter_reference(plain.permute(0, 2, 3, 1).cpu().numpy(), steps)
        np.testing.assert_array_equal(found.permute(0, 2, 3, 1).cpu().numpy(), expected)


@pytest.mark.gpu
def test_one_views_colour_is_not_another_ones() -> None:
    """Of two views of the same pixels the plain one stays plain, and the batch without views is the same."""
    crop, jitter = v2.CenterCrop(64), v2.ColorJitter(0.4, 0.4, 0.4, 0.1)
    alone = batches(crop)
    for (views, _), (expected, _) in zip(batches([v2.Compose([crop, jitter]), crop]), alone, strict=True):
        assert not torch.equal(views[0], expected)
        assert torch.equal(views[1], expected)
