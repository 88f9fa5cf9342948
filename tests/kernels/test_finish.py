"""finish: the kernel equals what torch makes bit for bit, and the reference is what torchvision means.

The .cu itself runs here without a GPU: g++ compiles it through cuda_shim.h. On a GPU the launcher runs it too.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import itertools
import mmap
import sys
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from finish_cases import (
    DTYPES,
    LAYOUTS,
    MEAN,
    STD,
    VARIANTS,
    Array,
    assert_same_bits,
    at_offset,
    boxes,
    edge_cases,
    out_for,
    prepared,
    random_case,
    random_mix,
)
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from kernels_host import HostKernel, Kernel, both_ways, compile_sanitized, run_sanitized
from kit.finished import finish_reference
from kit.kept import Kept
from kit.recorded import Recorded
from torchvision.transforms import v2

from dali_feed.engines.dali.graph import compile_dali
from dali_feed.engines.finish import by_torch, finished, mixed_up
from dali_feed.kernels._numbers import fma
from dali_feed.kernels.finish import MixArrays, finish, normalize_factors, prepare
from dali_feed.kernels.launch import compiles
from dali_feed.transforms.colour import ColorJitter
from dali_feed.transforms.convert import ToFloat
from dali_feed.transforms.op import Recipe
from dali_feed.transforms.program import Tail
from dali_feed.transforms.resize import Resize

pytestmark = pytest.mark.slow


class Plain(Recorded):
    """A device that does what it is given, and keeps its name."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: list[Any] = []

    def launch(self, kernel: Any, *arrays: Any, **settings: Any) -> None:
        """See `Device`."""
        self.kernels.append(kernel)
        kernel(*arrays, **settings)


MAP_NORESERVE = 0x4000  # of Linux; Python's mmap has no name for it


host, kernel = both_ways(finish, prepare, VARIANTS)


# --- the kernel, both ways --------------------------------------------------------------------------------------------


@st.composite
def cases(draw: st.DrawFn) -> tuple[dict[str, Any], str, str, int, int]:
    """Odd and even shapes, memory offsets, every kind of flag, factors of any size."""
    dtype, layout = draw(st.sampled_from(DTYPES)), draw(st.sampled_from(LAYOUTS))
    samples, height = draw(st.integers(1, 4)), draw(st.integers(1, 7))
    width = draw(st.integers(1, 9) | st.sampled_from((12, 31, 64, 224)))
    seed = draw(st.integers(0, 2**32 - 1))
    case: dict[str, Any] = {
        "images": np.random.default_rng(seed).integers(0, 256, (samples, height, width, 3), np.uint8)
    }
    for name in ("flip_x", "flip_y"):
        if draw(st.booleans()):
            kind = draw(st.sampled_from((np.int32, np.uint8, np.bool_)))
            case[name] = draw(hnp.arrays(np.int32, samples, elements=st.sampled_from((0, 1, 256, -1)))).astype(kind)
    if dtype != "uint8":
        finite = st.floats(width=32, allow_nan=False, allow_infinity=False) | st.floats(-4, 4, width=32)
        for name in draw(st.sampled_from(((), ("scale",), ("bias",), ("scale", "bias")))):
            case[name] = draw(finite | st.tuples(finite, finite, finite))
    rng, shape = np.random.default_rng(seed), (samples, height, width)
    if draw(st.booleans()):
        case["erase"] = boxes(rng, shape)
        case["erase_value"] = draw(st.sampled_from((None, 7, (0, 255, 3))))
    if draw(st.booleans()) and not {"scale", "bias"} & set(case):  # infinite values would meet in a NaN
        mix = random_mix(rng, shape)
        case["mix"] = replace(mix, **dict.fromkeys(draw(st.sets(st.sampled_from(("weight", "box")))), None))
    return case, dtype, layout, draw(st.sampled_from((0, 0, 1, 2, 3, 4))), draw(st.sampled_from((0, 0, 1, 2, 4)))


@given(drawn=cases())
def test_kernel_equals_reference_bit_for_bit(kernel: Kernel, drawn: tuple[dict[str, Any], str, str, int, int]) -> None:
    """Whatever the shape, the alignment, the flips and the factors, both agree exactly."""
    case, dtype, layout, offset_in, offset_out = drawn
    case["images"] = at_offset(case["images"], offset_in)
    out = at_offset(out_for(case["images"], dtype, layout), offset_out)
    kernel(out=out, **case, dtype=dtype, layout=layout)
    assert_same_bits(out, finish_reference(**case, dtype=dtype, layout=layout))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("size", "mix", "pixels"),
    [((224, 224), False, 4), ((224, 224), True, 4), ((98, 98), True, 2), ((37, 518), True, 2)],
)
def test_a_usual_batch(kernel: Kernel, dtype: str, layout: str, size: tuple[int, int], mix: bool, pixels: int) -> None:
    """With everything on it is done exactly, a partner too, four pixels at a time or two, as the width allows."""
    case = random_case(dtype, (3, *size), mix=mix)
    out = out_for(case["images"], dtype, layout)
    (job,) = kernel(out=out, **case, dtype=dtype, layout=layout)
    assert job.options[2] == f"-DPIXELS={pixels}"
    assert_same_bits(out, finish_reference(**case, dtype=dtype, layout=layout))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_edges_of_floats(kernel: Kernel, dtype: str) -> None:
    """Subnormals, overflow, ties and -0 come out as in the reference, in spite of CuPy's -ftz=true."""
    for case in edge_cases(dtype):
        out = out_for(case["images"], dtype, "NCHW")
        kernel(out=out, **case, dtype=dtype)
        assert_same_bits(out, finish_reference(**case, dtype=dtype))


MANY = [("bfloat16", "NCHW", False), ("float32", "NHWC", True)]


@pytest.mark.parametrize(("dtype", "layout", "mix"), MANY)
def test_more_samples_than_a_grid_has_rows(host: HostKernel, dtype: str, layout: str, mix: bool) -> None:
    """Blocks walk on over the samples where there are more of them than rows of a grid, at most 65535."""
    case = random_case(dtype, (200, 1, 4), mix=mix)
    out = out_for(case["images"], dtype, layout)
    job = prepared(out, case, dtype, layout)
    assert job.grid[1] == 200
    host.run(replace(job, grid=(job.grid[0], 7, job.grid[2])))
    assert_same_bits(out, finish_reference(**case, dtype=dtype, layout=layout))
    more = random_case(dtype, (65535 + 40, 1, 4), mix=mix)
    assert prepared(out_for(more["images"], dtype, layout), more, dtype, layout).grid[1] == 65535


@pytest.mark.parametrize("kernel", [pytest.param("gpu", marks=pytest.mark.gpu)], indirect=True)
@pytest.mark.parametrize(("dtype", "layout", "mix"), MANY)
def test_more_samples_than_any_grid_has_rows(kernel: Kernel, dtype: str, layout: str, mix: bool) -> None:
    """The same with as many as the largest grid leaves over, where that takes no seconds."""
    case = random_case(dtype, (65535 + 40, 1, 4), mix=mix)
    out = out_for(case["images"], dtype, layout)
    (job,) = kernel(out=out, **case, dtype=dtype, layout=layout)
    assert job.grid[1] == 65535
    assert_same_bits(out, finish_reference(**case, dtype=dtype, layout=layout))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_positions_beyond_32_bits(host: HostKernel, layout: str) -> None:
    """The last sample of a batch of more than 2^32 bytes is read from and written to where it belongs."""
    shape = (1500, 1000, 1000, 3)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    images, out = (
        np.frombuffer(mmap.mmap(-1, 4_500_000_000, flags=flags), np.uint8).reshape(size)
        for size in (shape, shape if layout == "NHWC" else (1500, 3, 1000, 1000))
    )  # only the pages of the last sample are ever touched
    images[-1] = np.random.default_rng(0).integers(0, 256, shape[1:], np.uint8)
    case = {"images": images, "flip_x": np.ones(1500, np.uint8)}
    host.run(prepared(out, case, "uint8", layout), begin=(0, 1499, 0))
    expected = finish_reference(images[-1:], dtype="uint8", layout=layout, flip_x=[1])
    np.testing.assert_array_equal(out[-1:], expected)


def test_no_byte_beside_the_arrays(kept: Kept) -> None:
    """Under the address and undefined-behaviour sanitizers every variant stays inside arrays of exactly its size."""
    jobs, expected = [], b""
    shapes = ((1, 1, 1), (2, 3, 1), (1, 2, 7), (3, 5, 8), (2, 1, 4), (1, 16, 68), (2, 33, 31), (2, 1, 2), (1, 8, 6))
    for (dtype, layout), shape in itertools.product(itertools.product(DTYPES, LAYOUTS), shapes):
        for given_flips, mix in itertools.product((True, False), repeat=2):
            case = random_case(dtype, shape, mix=mix)
            case = case if given_flips else {key: case[key] for key in case if not key.startswith("flip")}
            out = out_for(case["images"], dtype, layout)
            jobs.append((prepared(out, case, dtype, layout), {a.ctypes.data: a for a in arrays_of(case, out)}))
            expected += finish_reference(**case, dtype=dtype, layout=layout).tobytes()
    assert {job.options for job, _ in jobs} == set(VARIANTS)
    program = compile_sanitized(kept, "finish", VARIANTS)
    assert run_sanitized(program, VARIANTS, jobs) == expected


def arrays_of(case: dict[str, Any], out: Array) -> list[Array]:
    """The arrays that the kernel gets."""
    mix = case.get("mix")
    mixed = [] if mix is None else [mix.partner, mix.weight, mix.box]
    return [value for value in (*case.values(), *mixed, out) if isinstance(value, np.ndarray)]


# --- the reference ----------------------------------------------------------------------------------------------------


@given(values=hnp.arrays(np.float32, (3, 20), elements=st.floats(width=32, allow_nan=False)))
@example(values=np.array([[1 + 2**-12] * 2, [1 + 2**-12] * 2, [2**-60, -(2**-60)]], np.float32))  # ties but for c
@example(values=np.array([[2**-75, 2**-75], [3 * 2**-75, 2**-75], [2**-148, -(2**-149)]], np.float32))  # subnormal
def test_fma_of_the_reference_is_libms(values: Array) -> None:
    """The one-rounding multiply-add in NumPy is fmaf, also at ties, for subnormals and beyond the largest float."""
    fmaf = ctypes.CDLL(ctypes.util.find_library("m")).fmaf
    fmaf.restype, fmaf.argtypes = ctypes.c_float, [ctypes.c_float] * 3
    expected = np.array([fmaf(*column) for column in values.T.tolist()], np.float32)
    np.testing.assert_array_equal(fma(*values), expected)
    assert (np.signbit(fma(*values)) == np.signbit(expected))[~np.isnan(expected)].all()


@pytest.mark.parametrize(("mean", "std"), [(MEAN, STD), ((0.5,) * 3, (0.5,) * 3), ((0, 0, 0), (1, 1, 1))])
def test_reference_beside_torchvision(mean: tuple[float, ...], std: tuple[float, ...]) -> None:
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
        assert_same_bits(ours, theirs)


def test_reference_casts_as_torch() -> None:
    """Float16 and bfloat16 round to nearest, ties to even, overflow to infinity: torch's cast of the same float32."""
    images = np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1).repeat(3, 3)
    factors: dict[str, Any] = {"scale": (257.3, 1e-7, 1.0078125), "bias": (0.0, 3e-8, 0.00390625)}
    plain = torch.from_numpy(finish_reference(images, **factors))
    half = finish_reference(images, dtype="float16", **factors)
    brain = finish_reference(images, dtype="bfloat16", **factors)
    assert_same_bits(half, plain.to(torch.float16).numpy())
    np.testing.assert_array_equal(brain, plain.to(torch.bfloat16).view(torch.uint16).numpy())
    assert np.isinf(half).any()


@given(lam=st.floats(0, 1, width=32), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_reference_mixes_as_torchvision(lam: float, seed: int) -> None:
    """One weight and each image's neighbour: bit for bit the tensor arithmetic of v2.MixUp; a box: v2.CutMix."""
    images = np.random.default_rng(seed).integers(0, 256, (4, 6, 5, 3), np.uint8)
    scale, bias = normalize_factors(MEAN, STD)
    plain = torch.from_numpy(finish_reference(images, scale=scale, bias=bias))
    before = np.array([3, 0, 1, 2], np.int32)
    rest = float(np.float32(1) - np.float32(lam))
    up = MixArrays(before, weight=np.full(4, lam, np.float32))
    assert_same_bits(
        finish_reference(images, scale=scale, bias=bias, mix=up),
        plain.roll(1, 0).mul_(rest).add_(plain.mul(lam)).numpy(),
    )
    cut = MixArrays(before, box=np.tile(np.array([1, 2, 3, 2], np.int32), (4, 1)))
    expected = plain.clone()
    expected[..., 1:4, 2:4] = plain.roll(1, 0)[..., 1:4, 2:4]
    assert_same_bits(finish_reference(images, scale=scale, bias=bias, mix=cut), expected.numpy())


def test_where_no_kernel_can_be_compiled_the_log_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And torch finishes batches, after a graph that does its colour itself."""
    monkeypatch.setitem(sys.modules, "cupy_backends.cuda.libs", None)
    compiles.cache_clear()
    try:
        program = compile_dali(Recipe((Resize((8, 8)), ColorJitter((0.5, 1.5)), ToFloat())), on_gpu=True)
        assert program.finish is not None
        assert program.finish.adjusts == 0
        images, gpu = torch.arange(2 * 8 * 8 * 3, dtype=torch.uint8).view(2, 8, 8, 3), Plain()
        with gpu.hold():
            found = finished(images, Tail(program.finish, None, None), gpu)
        assert gpu.kernels == [by_torch]
        assert torch.equal(found, v2.functional.to_dtype(images.permute(0, 3, 1, 2), torch.float32, scale=True))
        assert ["kernels: cannot be compiled" in line for line in caplog.messages] == [True]
    finally:
        compiles.cache_clear()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_mixed_halves_are_rounded_once(dtype: torch.dtype) -> None:
    """The sum is of float32, and what comes out has the type that came in."""
    images = torch.linspace(-3, 3, 4 * 3 * 5 * 6).reshape(4, 3, 5, 6).to(dtype)
    mixing = MixArrays(np.array([3, 0, 1, 2], np.int32), np.full(4, 0.3, np.float32))
    found = mixed_up(images, mixing)
    weight = torch.tensor(np.float32(0.3))
    assert torch.equal(found, (images.float() * weight + images.float().roll(1, 0) * (1 - weight)).to(dtype))
