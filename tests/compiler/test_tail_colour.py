"""Colour before the finish step on a GPU: what the kernel is given, and that it comes to torchvision's pixels.

Without a GPU the kernel's reference stands for it; test_jitter.py holds the two equal.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from kit.engine_runs import engine_of
from kit.images import jpeg
from numpy.typing import NDArray
from torchvision.transforms import v2

from dali_feed import DataLoader
from dali_feed.compiler.dali import DaliProgram, compile_dali
from dali_feed.compiler.host import compile_host
from dali_feed.compiler.program import Program, Step
from dali_feed.engines.engine import Tail, Work
from dali_feed.kernels.finish import finish_reference
from dali_feed.kernels.jitter import jitter_reference
from dali_feed.screen.screen import screen
from dali_feed.testing.scripted import ScriptedSource
from dali_feed.transforms.colour import MAX_STEPS, ColorJitter, Colour, RandomGrayscale
from dali_feed.transforms.convert import Normalize, ToFloat
from dali_feed.transforms.crops import Flip, RandomCrop
from dali_feed.transforms.filters import GaussianBlur
from dali_feed.transforms.keys import Key
from dali_feed.transforms.nest import RandomApply
from dali_feed.transforms.op import Op, Recipe
from dali_feed.transforms.resize import Resize

CROP = RandomCrop((25, 22))
JITTER = ColorJitter((0.6, 1.4), (0.6, 1.4), (0.6, 1.4), (-0.1, 0.1))
FLOAT = (ToFloat(), Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
PAYLOADS = [memoryview(jpeg(n, 30 + 3 * n, 50 - 2 * n)) for n in range(9)]


def program_of(*ops: Op, on_gpu: bool = True) -> DaliProgram:
    """What the dali engine runs."""
    return compile_dali(Recipe(ops), on_gpu=on_gpu)


def left(program: DaliProgram) -> int:
    """How many steps are left to the kernel."""
    assert program.finish is not None
    return program.finish.adjusts


def colours(program: DaliProgram) -> list[Step]:
    """Those that the graph does."""
    return [step for step in program.steps if isinstance(step, Colour)]


def arrays_of(program: Any, seed: int = 0) -> dict[Key, NDArray[Any]]:
    """What PAYLOADS take into it."""
    arrays: dict[Key, NDArray[Any]] = program.parameters(screen(PAYLOADS).sizes, np.arange(9), seed, 0).arrays
    return arrays


def images_of(name: str, program: Program, arrays: dict[Key, NDArray[Any]]) -> NDArray[Any]:
    """The batch of PAYLOADS, on the CPU."""
    engine = engine_of(name, program, 9)
    engine.submit(Work(engine.prepare(PAYLOADS), arrays))
    result = engine.take()
    assert not result.bad
    found = np.array(np.from_dlpack(result.images))
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
    from dali_feed.transforms.lower import lower

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
