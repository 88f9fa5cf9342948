"""What judges the kernels is what torchvision means, libm's arithmetic, and Python's own integers."""

from __future__ import annotations

import ctypes
import ctypes.util
import itertools
import sys
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from kernel_cases import CHANNELS, MEAN, ORDERS, STD, STREAMS, Array, packed, pictures
from kit.finished import finish_reference
from kit.recorded import Recorded
from kit.unpacked import unpack_reference
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from dali_feed.engines.dali.graph import compile_dali
from dali_feed.engines.finish import by_torch, finished, mixed_up
from dali_feed.kernels.finish import MixArrays, normalize_factors
from dali_feed.kernels.jitter import fma, jitter_reference
from dali_feed.kernels.launch import compiles, load_cupy
from dali_feed.transforms.colour import KINDS, ColorJitter
from dali_feed.transforms.convert import ToFloat
from dali_feed.transforms.op import Recipe
from dali_feed.transforms.program import Tail
from dali_feed.transforms.resize import Resize


def equal_bits(ours: Array, theirs: Array) -> None:
    """Float32 with the same bits: -0 is not 0 here."""
    np.testing.assert_array_equal(ours.view(np.uint32), theirs.view(np.uint32))


@given(values=hnp.arrays(np.float32, (3, 20), elements=st.floats(width=32, allow_nan=False)))
@example(values=np.array([[1 + 2**-12] * 2, [1 + 2**-12] * 2, [2**-60, -(2**-60)]], np.float32))  # ties but for c
@example(values=np.array([[2**-75, 2**-75], [3 * 2**-75, 2**-75], [2**-148, -(2**-149)]], np.float32))  # subnormal
def test_fma_of_the_references_is_libms(values: Array) -> None:
    """The one-rounding multiply-add in NumPy is fmaf, also at ties, for subnormals and beyond the largest float."""
    fmaf = ctypes.CDLL(ctypes.util.find_library("m")).fmaf
    fmaf.restype, fmaf.argtypes = ctypes.c_float, [ctypes.c_float] * 3
    expected = np.array([fmaf(*column) for column in values.T.tolist()], np.float32)
    np.testing.assert_array_equal(fma(*values), expected)
    assert (np.signbit(fma(*values)) == np.signbit(expected))[~np.isnan(expected)].all()


# finish


@pytest.mark.parametrize(("mean", "std"), [(MEAN, STD), ((0.5,) * 3, (0.5,) * 3), ((0, 0, 0), (1, 1, 1))])
def test_normalized_as_torchvision(mean: tuple[float, ...], std: tuple[float, ...]) -> None:
    """All 256 values: within 7.2e-7 and 8 ulps of v2.Normalize, and never further from the exact value than it is."""
    images = np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1).repeat(3, 3)
    scale, bias = normalize_factors(mean, std)
    ours = finish_reference(images, scale=scale, bias=bias)[0]
    planes = torch.from_numpy(images[0]).permute(2, 0, 1)
    theirs = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(mean, std)])(planes).numpy()
    exact = np.array(
        [
            [float((Fraction(v, 255) - Fraction(str(m))) / Fraction(str(s))) for v in range(256)]
            for m, s in zip(mean, std, strict=True)
        ]
    ).reshape(3, 16, 16)
    apart = np.abs(ours.astype(np.float64) - theirs)
    assert apart.max() <= 7.2e-7
    large = np.abs(exact) >= 0.25
    assert (apart / np.spacing(np.maximum(np.abs(ours), np.abs(theirs))))[large].max() <= 8
    assert np.abs(ours - exact).max() <= np.abs(theirs - exact).max()
    if mean == (0, 0, 0):
        equal_bits(ours, theirs)


@given(lam=st.floats(0, 1, width=32), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_mixed_as_torchvision(lam: float, seed: int) -> None:
    """One weight and each image's neighbour: bit for bit the tensor arithmetic of v2.MixUp; a box: v2.CutMix."""
    images = np.random.default_rng(seed).integers(0, 256, (4, 6, 5, 3), np.uint8)
    scale, bias = normalize_factors(MEAN, STD)
    plain = torch.from_numpy(finish_reference(images, scale=scale, bias=bias))
    before = np.array([3, 0, 1, 2], np.int32)
    up = MixArrays(before, weight=np.full(4, lam, np.float32))
    wanted = plain.roll(1, 0).mul_(float(np.float32(1) - np.float32(lam))).add_(plain.mul(lam))
    equal_bits(finish_reference(images, scale=scale, bias=bias, mix=up), wanted.numpy())
    cut = MixArrays(before, box=np.tile(np.array([1, 2, 3, 2], np.int32), (4, 1)))
    wanted = plain.clone()
    wanted[..., 1:4, 2:4] = plain.roll(1, 0)[..., 1:4, 2:4]
    equal_bits(finish_reference(images, scale=scale, bias=bias, mix=cut), wanted.numpy())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_mixed_halves_are_rounded_once(dtype: torch.dtype) -> None:
    """The sum is of float32, and what comes out has the type that came in."""
    images = torch.linspace(-3, 3, 4 * 3 * 5 * 6).reshape(4, 3, 5, 6).to(dtype)
    mixed = mixed_up(images, MixArrays(np.array([3, 0, 1, 2], np.int32), np.full(4, 0.3, np.float32)))
    weight = torch.tensor(np.float32(0.3))
    assert torch.equal(mixed, (images.float() * weight + images.float().roll(1, 0) * (1 - weight)).to(dtype))


class Plain(Recorded):
    """A device that does what it is given, and keeps its name."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: list[Any] = []

    def launch(self, kernel: Any, *arrays: Any, **settings: Any) -> None:
        """See `Device`."""
        self.kernels.append(kernel)
        kernel(*arrays, **settings)


def test_where_no_kernel_can_be_compiled_the_log_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And torch finishes batches, after a graph that does its colour itself."""
    load_cupy()  # whole: an import that fails half way leaves what no later one can use
    monkeypatch.setitem(sys.modules, "cupy_backends.cuda.libs", None)
    compiles.cache_clear()
    try:
        program = compile_dali(Recipe((Resize((8, 8)), ColorJitter((0.5, 1.5)), ToFloat())), on_gpu=True)
        assert program.finish is not None
        assert program.finish.adjusts == 0
        images, gpu = torch.arange(2 * 8 * 8 * 3, dtype=torch.uint8).view(2, 8, 8, 3), Plain()
        with gpu.hold():
            floats = finished(images, Tail(program.finish, None, None), gpu)
        assert gpu.kernels == [by_torch]
        assert torch.equal(floats, v2.functional.to_dtype(images.permute(0, 3, 1, 2), torch.float32, scale=True))
        assert ["kernels: cannot be compiled" in line for line in caplog.messages] == [True]
    finally:
        compiles.cache_clear()


# jitter


ADJUSTMENTS = ("brightness", "contrast", "saturation", "hue")
FACTORS = {"hue": (-0.5, -0.25, -0.1, 0.0, 0.02, 0.31, 0.5), "gray": (0.0,)}


def assert_as_torchvision(ours: Array, image: Array, steps: Sequence[tuple[str, float]]) -> None:
    """Its own functions make an image (height, width, 3) of it that is one level apart at most, and hardly anywhere."""
    pixels = torch.from_numpy(image).permute(2, 0, 1)
    for name, factor in steps:
        gray = name == "gray"
        pixels = F.rgb_to_grayscale_image(pixels, 3) if gray else getattr(F, f"adjust_{name}_image")(pixels, factor)
    distance = np.abs(ours.astype(int) - pixels.permute(1, 2, 0).numpy())
    assert distance.max() <= 1
    assert np.mean(distance > 0) <= 1e-4


@pytest.mark.parametrize("step", [7.5, pytest.param(3.75, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", [*ADJUSTMENTS, "gray"])
def test_each_adjustment_is_torchvisions(name: str, step: float) -> None:
    """Of 42,875 colours, or of 328,509."""
    levels = np.arange(0, 256, step).astype(np.uint8)
    colours = np.stack(np.meshgrid(levels, levels, levels, indexing="ij"), axis=-1).reshape(-1, len(levels), 3)
    for image in np.array_split(colours, len(levels) ** 3 // 20_000):  # small enough for torch's sum to be exact
        for factor in FACTORS.get(name, (0.0, 0.37, 1.0, 1.2, 1.9)):
            ours = jitter_reference(image[None], [[[KINDS[name], factor]]])[0]
            assert_as_torchvision(ours, image, [(name, float(np.float32(factor)))])


def test_every_order_is_torchvisions() -> None:
    """All 24 orders of the four adjustments, each as torchvision does them one after the other."""
    rng = np.random.default_rng(2)
    for image, order in zip(pictures((24, 32, 48)), itertools.permutations(ADJUSTMENTS), strict=True):
        drawn = [(name, float(np.float32(rng.uniform(-0.5, 0.5) + (name != "hue")))) for name in order]
        ours = jitter_reference(image[None], [[(KINDS[name], factor) for name, factor in drawn]])[0]
        assert_as_torchvision(ours, image, drawn)


def test_gray_of_floats_is_rounded() -> None:
    """What the graph's gray step does behind a conversion to floats: to the nearest level and not down."""
    images = pictures((1, 8, 8))
    gray = jitter_reference(images, [[[KINDS["gray_rounded"], 0]]])
    np.testing.assert_array_equal(gray[..., 1], np.rint(images @ np.array([0.2989, 0.587, 0.114])))


def test_mean_of_a_large_image_is_exact() -> None:
    """Beyond 2^24 torch's float32 sum is not exact and ours is: one level apart at the most."""
    image = np.random.default_rng(0).integers(200, 256, (400, 500, 3), np.uint8)
    for factor in (0.1, 0.77, 1.9):
        ours = jitter_reference(image[None], [[[KINDS["contrast"], factor]]])[0]
        theirs = F.adjust_contrast_image(torch.from_numpy(image).permute(2, 0, 1), float(np.float32(factor)))
        assert np.abs(ours.astype(int) - theirs.permute(1, 2, 0).numpy()).max() <= 1


# unpack


@given(
    stream=st.sampled_from(STREAMS), channels=st.sampled_from(CHANNELS), order=st.sampled_from(ORDERS), data=st.data()
)
def test_unpacked_is_what_was_packed(stream: tuple[int, str], channels: int, order: str, data: st.DataObject) -> None:
    """Numbers packed as one long integer come out where they were, in either order and layout, behind a header."""
    (bits, endian), (height, width) = stream, data.draw(st.tuples(st.integers(1, 6), st.integers(1, 6)))
    values = data.draw(hnp.arrays(np.uint16, (2, height, width, channels), elements=st.integers(0, 2**bits - 1)))
    lying = values if order == "interleaved" else values.transpose(0, 3, 1, 2)
    records = np.stack([packed(record.ravel().tolist(), bits, endian) for record in lying])
    records = np.concatenate([np.full((2, 5), 0xFF, np.uint8), records, np.full((2, 1), 0xFF, np.uint8)], axis=1)
    case: dict[str, Any] = {"shape": (height, width, channels), "bits": bits, "order": order, "endian": endian}
    last = unpack_reference(records, offset=5, layout="NHWC", **case)
    equal_bits(last, values.astype(np.float32))
    equal_bits(unpack_reference(records, offset=5, **case), last.transpose(0, 3, 1, 2).copy())
    scale, bias = (1 / 65535, 1 / 3, -7.7, 1e-8)[:channels], (-0.485, 1e3, 2.0**-30, 3e-8)[:channels]
    factors = np.array(scale, np.float32), np.array(bias, np.float32)
    scaled = unpack_reference(records, offset=5, layout="NHWC", scale=scale, bias=bias, **case)
    equal_bits(scaled, last * factors[0] + factors[1])


@pytest.mark.parametrize(
    ("bits", "endian", "record", "expected"),
    [
        (16, "little", "01 02 fe ff", [0x0201, 0xFFFE]),
        (16, "big", "01 02 fe ff", [0x0102, 0xFEFF]),
        (12, "little", "ab cd ef", [0xDAB, 0xEFC]),  # Mono12p
        (12, "big", "ab cd ef", [0xABC, 0xDEF]),  # TIFF, BitsPerSample 12
        (10, "little", "ff 03 00 00 ff", [0x3FF, 0x000, 0x000, 0x3FC]),  # Mono10p
        (10, "big", "ff c0 00 03 ff", [0x3FF, 0x000, 0x000, 0x3FF]),
        (8, "big", "01 02", [1, 2]),
    ],
)
def test_unpacked_by_hand(bits: int, endian: str, record: str, expected: list[int]) -> None:
    """A few bytes, written out."""
    records = np.frombuffer(bytes.fromhex(record), np.uint8)[None]
    values = unpack_reference(records, shape=(1, len(expected), 1), bits=bits, endian=endian)
    assert values.ravel().tolist() == expected
