"""jitter: the kernel equals its NumPy reference bit for bit, and the reference is torchvision's own arithmetic.

The .cu itself runs here without a GPU: g++ compiles it through cuda_shim.h. On a GPU the launcher runs it too.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from finish_cases import JITTER_VARIANTS as VARIANTS
from finish_cases import Array, at_offset
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from kernels_host import Kernel, OnDevice, both_ways, compile_sanitized, run_sanitized
from kit.kept import Kept
from torchvision.transforms.v2 import functional as F

from dali_feed.kernels.jitter import jitter, jitter_reference, prepare
from dali_feed.transforms.colour import KINDS, MAX_STEPS

ADJUSTMENTS = ("brightness", "contrast", "saturation", "hue")
FACTORS = {"hue": (-0.5, -0.25, -0.1, 0.0, 0.02, 0.31, 0.5), "gray": (0.0,)}


host, kernel = both_ways(jitter, prepare, VARIANTS)


def some_steps(rng: np.random.Generator, samples: int, count: int) -> Array:
    """Steps of every kind, in any order."""
    kinds = rng.integers(0, len(KINDS), (samples, count))
    factors = np.where(kinds == KINDS["hue"], rng.uniform(-0.5, 0.5, kinds.shape), rng.uniform(0, 2, kinds.shape))
    return np.stack([kinds, factors], axis=-1).astype(np.float32)


def batch(shape: tuple[int, int, int], seed: int = 0) -> Array:
    """Images of all levels, the later ones darker."""
    images = np.random.default_rng(seed).integers(0, 256, (*shape, 3), np.uint8)
    return images // (1 + np.arange(shape[0], dtype=np.uint8) % 3)[:, None, None, None]


def as_torchvision(image: Array, steps: Sequence[tuple[str, float]]) -> Array:
    """What its own functions make of an image (height, width, 3)."""
    pixels = torch.from_numpy(image).permute(2, 0, 1)
    for name, factor in steps:
        pixels = (
            F.rgb_to_grayscale_image(pixels, 3)
            if name == "gray"
            else getattr(F, f"adjust_{name}_image")(pixels, factor)
        )
    return pixels.permute(1, 2, 0).contiguous().numpy()


def apart(ours: Array, theirs: Array) -> tuple[int, float]:
    """The largest difference of a value, and the share of values that differ."""
    distance = np.abs(ours.astype(int) - theirs)
    return int(distance.max()), float(np.mean(distance > 0))


# --- the kernel, both ways --------------------------------------------------------------------------------------------


@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 9) | st.sampled_from((12, 16, 40))),
    count=st.integers(1, 6),
    seed=st.integers(0, 2**32 - 1),
    wild=st.booleans(),
    offsets=st.tuples(*[st.sampled_from((0, 0, 1, 4))] * 2),
    data=st.data(),
)
def test_kernel_equals_reference_bit_for_bit(
    kernel: Kernel,
    shape: tuple[int, int, int],
    count: int,
    seed: int,
    wild: bool,
    offsets: tuple[int, int],
    data: st.DataObject,
) -> None:
    """Whatever the shape, the alignment, the steps and their order; factors may be NaN, kinds may be none."""
    images = at_offset(batch(shape, seed), offsets[0])
    steps = some_steps(np.random.default_rng(seed), shape[0], count)
    if wild:
        numbers = st.floats(width=32) | st.sampled_from((1.0, 2.0, 4.0, 6.0, 6.5, 7.0))
        steps = data.draw(hnp.arrays(np.float32, steps.shape, elements=numbers))
    out = at_offset(np.full_like(images, 0xA5), offsets[1])
    kernel(images, out, steps)
    np.testing.assert_array_equal(out, jitter_reference(images, steps))


@pytest.mark.parametrize(("size", "options"), [((224, 224), 0), ((98, 98), 1), ((75, 75), 2), ((4, 8), 0)])
def test_usual_images(kernel: Kernel, size: tuple[int, int], options: int) -> None:
    """Four pixels at a time and stores of 16 bytes where the size allows, and blocks as large as the image wants."""
    images = batch((3, *size))
    steps, out = some_steps(np.random.default_rng(1), 3, 4), np.zeros_like(images)
    steps[:, 1] = KINDS["contrast"], 0.3
    (job,) = kernel(images, out, steps)
    assert job.options == VARIANTS[options]
    assert job.block[0] == min(1024, -(-size[0] * size[1] // (1 if options == 2 else 4) // 32) * 32)
    np.testing.assert_array_equal(out, jitter_reference(images, steps))


def test_every_order(kernel: Kernel) -> None:
    """All 24 orders of the four adjustments in one batch, each as torchvision does them one after the other."""
    orders = list(itertools.permutations(ADJUSTMENTS))
    images = batch((len(orders), 32, 48))
    rng = np.random.default_rng(2)
    drawn = [[(n, float(np.float32(rng.uniform(-0.5, 0.5) + (n != "hue")))) for n in order] for order in orders]
    steps = np.array([[(KINDS[name], factor) for name, factor in each] for each in drawn], np.float32)
    out = np.zeros_like(images)
    kernel(images, out, steps)
    theirs = np.stack([as_torchvision(image, each) for image, each in zip(images, drawn, strict=True)])
    worst, share = apart(out, theirs)
    assert worst <= 1
    assert share <= 1e-4


def test_several_contrasts_and_the_most_steps(kernel: Kernel) -> None:
    """Each contrast step gets the mean of the image as it enters it, however many there are."""
    images = batch((2, 20, 24))
    steps = np.zeros((2, MAX_STEPS, 2), np.float32)
    steps[:, ::3, 0], steps[:, 1::3, 0] = KINDS["contrast"], KINDS["brightness"]
    steps[:, :, 1] = np.random.default_rng(3).uniform(0.8, 1.25, (2, MAX_STEPS))
    out = np.zeros_like(images)
    kernel(images, out, steps)
    np.testing.assert_array_equal(out, jitter_reference(images, steps))


def test_no_byte_beside_the_arrays(kept: Kept) -> None:
    """Under the address and undefined-behaviour sanitizers every variant stays inside arrays of exactly its size."""
    jobs, expected = [], b""
    for shape in ((1, 1, 1), (2, 3, 5), (2, 2, 2), (1, 12, 33), (2, 4, 4), (1, 40, 60)):
        images, steps = batch(shape), some_steps(np.random.default_rng(shape[2]), shape[0], 4)
        steps[:, 2] = KINDS["contrast"], np.nan
        out = np.zeros_like(images)
        arrays = (images, out, steps)
        jobs.append((prepare(*map(OnDevice, arrays)), {array.ctypes.data: array for array in arrays}))
        expected += jitter_reference(images, steps).tobytes()
    assert {job.options for job, _ in jobs} == set(VARIANTS)
    assert run_sanitized(compile_sanitized(kept, "jitter", VARIANTS), VARIANTS, jobs) == expected


# --- the reference ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*ADJUSTMENTS, "gray"])
def test_reference_is_torchvision(name: str) -> None:
    """Each adjustment of 328,509 colours: at most one level apart, and here no value is (0 of 1e6 measured)."""
    levels = np.arange(0, 256, 3.75).astype(np.uint8)
    colours = np.stack(np.meshgrid(levels, levels, levels, indexing="ij"), axis=-1).reshape(-1, len(levels), 3)
    for image in np.array_split(colours, 16):  # small enough for torch's sum to be exact
        for factor in FACTORS.get(name, (0.0, 0.37, 1.0, 1.2, 1.9)):
            ours = jitter_reference(image[None], [[[KINDS[name], factor]]])[0]
            worst, share = apart(ours, as_torchvision(image, [(name, float(np.float32(factor)))]))
            assert worst <= 1
            assert share <= 1e-4


def test_reference_rounds_the_gray_of_floats() -> None:
    """What the graph's gray step does behind a conversion to floats: to the nearest level and not down."""
    images = batch((1, 8, 8))
    exact = images @ np.array([0.2989, 0.587, 0.114])
    found = jitter_reference(images, [[[KINDS["gray_rounded"], 0]]])
    np.testing.assert_array_equal(found[..., 1], np.rint(exact))


def test_mean_of_a_large_image_is_exact() -> None:
    """Beyond 2^24 torch's float32 sum is not exact and ours is: one level apart at the most."""
    image = np.random.default_rng(0).integers(200, 256, (1100, 1300, 3), np.uint8)
    for factor in (0.1, 0.77, 1.9):
        ours = jitter_reference(image[None], [[[KINDS["contrast"], factor]]])[0]
        assert apart(ours, as_torchvision(image, [("contrast", float(np.float32(factor)))]))[0] <= 1
