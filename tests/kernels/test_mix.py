"""mix: the kernel equals its NumPy reference bit for bit, and finish's mixing; without a GPU too, by cuda_shim.h."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from finish_cases import MEAN, STD, Array, assert_same_bits, at_offset, random_mix
from hypothesis import given
from hypothesis import strategies as st
from in_turn import in_turn
from kernels_both import Kernel, both_ways, moved
from kernels_host import HostKernel, OnDevice, compile_for_host, compile_sanitized, run_sanitized
from kit.kept import Kept, PtxOf

from dali_feed.errors import ConfigError
from dali_feed.kernels._module import Launch
from dali_feed.kernels.finish import finish_reference, normalize_factors
from dali_feed.kernels.mix import Mix, bytes_moved, mix, mix_reference, prepare

KINDS = {"float32": (np.float32, 4), "float16": (np.float16, 8), "bfloat16": (np.uint16, 8)}
VARIANTS = tuple(
    (f"-DOUT_{kind.upper()}", f"-DCHANNELS_LAST={last}", f"-DELEMENTS={count}")
    for kind, last in itertools.product(KINDS, (0, 1))
    for count in (1, KINDS[kind][1])
)


@pytest.fixture(scope="module")
def host(kept: Kept) -> HostKernel:
    """All variants of the kernel, compiled by g++."""
    return compile_for_host(kept, "mix", VARIANTS)


kernel = both_ways(mix, prepare)


def batch(kind: str, shape: tuple[int, ...], seed: int, *, wild: bool = False) -> Array:
    """Pixels as a normalized batch has them, or any bits at all that are numbers."""
    rng = np.random.default_rng(seed)
    if wild:
        bits: Array = rng.integers(0, 1 << 8 * np.dtype(KINDS[kind][0]).itemsize, shape, np.uint64)
        raw = bits.astype(f"u{np.dtype(KINDS[kind][0]).itemsize}").view(KINDS[kind][0])
        wide = np.left_shift(raw, 16, dtype=np.uint32).view(np.float32) if kind == "bfloat16" else raw
        raw[~np.isfinite(wide)] = 0
        return raw
    values = rng.standard_normal(shape).astype(np.float32)
    if kind == "bfloat16":
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(KINDS[kind][0])


def prepared(images: Array, out: Array, mixing: Mix, kind: str, layout: str) -> Launch:
    """The launch for host arrays."""
    return prepare(*moved((images, out, mixing), OnDevice), dtype=kind, layout=layout)


@given(
    kind=st.sampled_from(tuple(KINDS)),
    layout=st.sampled_from(("NCHW", "NHWC")),
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 7), st.integers(1, 9) | st.just(16)),
    left_out=st.sets(st.sampled_from(("weight", "box"))),
    offset=st.sampled_from((0, 0, 1)),
    seed=st.integers(0, 2**32 - 1),
    wild=st.booleans(),
)
def test_kernel_equals_reference_bit_for_bit(
    kernel: Kernel,
    kind: str,
    layout: str,
    sizes: tuple[int, int, int, int],
    left_out: set[str],
    offset: int,
    seed: int,
    *,
    wild: bool,
) -> None:
    """Whatever the shape, the alignment, the numbers, the partners, the weights and the boxes."""
    samples, channels, height, width = sizes
    shape = (samples, channels, height, width) if layout == "NCHW" else (samples, height, width, channels)
    drawn = random_mix(np.random.default_rng(seed), (samples, height, width))
    mixing = Mix(drawn.partner, *(None if n in left_out else getattr(drawn, n) for n in ("weight", "box")))
    images = at_offset(batch(kind, shape, seed, wild=wild), offset)
    out = at_offset(np.zeros_like(images), offset)
    kernel(images, out, mixing, dtype=kind, layout=layout)
    assert_same_bits(out, mix_reference(images, mixing, dtype=kind, layout=layout))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(4, 3, 224, 224), (65600, 1, 1, 8)])
def test_usual_and_many_images(kernel: Kernel, shape: tuple[int, int, int, int], kind: str, layout: str) -> None:
    """Whole vectors at a time, and blocks that walk on over more samples than a grid has rows."""
    n, c, h, w = shape
    images = batch(kind, shape if layout == "NCHW" else (n, h, w, c), 0)
    mixing, out = random_mix(np.random.default_rng(0), (n, h, w)), np.zeros_like(images)
    (job,) = kernel(images, out, mixing, dtype=kind, layout=layout)
    assert job.options[2] != "-DELEMENTS=1"
    assert_same_bits(out, mix_reference(images, mixing, dtype=kind, layout=layout))


def test_channels_last_memory_of_planes(kernel: Kernel) -> None:
    """Torch's channels-last memory format, (N, C, H, W) by strides, is mixed as it lies."""
    images = batch("float32", (3, 5, 8, 3), 0)
    mixing = random_mix(np.random.default_rng(1), (3, 5, 8))
    out = np.zeros_like(images)
    (job,) = kernel(images.transpose(0, 3, 1, 2), out.transpose(0, 3, 1, 2), mixing, dtype="float32", layout="NCHW")
    assert job.options[1] == "-DCHANNELS_LAST=1"
    assert_same_bits(out, mix_reference(images, mixing, layout="NHWC"))


def test_it_is_what_finish_does() -> None:
    """Finished first and mixed then, in float32: the bits of the one launch that does both."""
    rng = np.random.default_rng(3)
    images = rng.integers(0, 256, (4, 6, 7, 3), np.uint8)
    scale, bias = normalize_factors(MEAN, STD)
    mixing = random_mix(rng, (4, 6, 7))
    plain = finish_reference(images, scale=scale, bias=bias)
    assert_same_bits(mix_reference(plain, mixing), finish_reference(images, scale=scale, bias=bias, mix=mixing))


def test_no_byte_beside_the_arrays(kept: Kept) -> None:
    """Under the address and undefined-behaviour sanitizers every variant stays inside arrays of exactly its size."""
    jobs, expected = [], b""
    for (kind, layout), (n, c, h, w) in itertools.product(
        itertools.product(KINDS, ("NCHW", "NHWC")), ((1, 1, 1, 1), (3, 3, 5, 7), (2, 3, 4, 8), (3, 2, 16, 31))
    ):
        images = batch(kind, (n, c, h, w) if layout == "NCHW" else (n, h, w, c), h)
        mixing, out = random_mix(np.random.default_rng(w), (n, h, w)), np.zeros_like(images)
        arrays = (images, out, mixing.partner, mixing.weight, mixing.box)
        jobs.append((prepared(images, out, mixing, kind, layout), {a.ctypes.data: a for a in arrays}))
        expected += mix_reference(images, mixing, dtype=kind, layout=layout).tobytes()
    assert {job.options for job, _ in jobs} == set(VARIANTS)
    assert run_sanitized(compile_sanitized(kept, "mix", VARIANTS), VARIANTS, jobs) == expected


@pytest.mark.parametrize(("options", "arch"), in_turn(VARIANTS, ["sm_75", "sm_80", "sm_90", "sm_100"]))
def test_nvrtc_compiles_every_variant(compiled_ptx: PtxOf, options: tuple[str, ...], arch: str) -> None:
    """Each variant assembles for each architecture, keeps subnormals, stays in registers and moves whole vectors."""
    ptx = compiled_ptx("mix", arch, options).decode()
    assert ".entry mix(" in ptx
    assert ".ftz" not in ptx
    assert ".local" not in ptx
    if options[2] != "-DELEMENTS=1":
        assert "st.global.v4." in ptx
        assert "ld.global.nc.v4." in ptx


IMAGES = np.zeros((2, 3, 4, 6), np.float32)
PAIR = OnDevice(np.zeros(2, np.int32))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"images": IMAGES}, "images must be an array on a GPU .* found ndarray"),
        ({"images": torch.zeros(2, 3, 4, 6)}, "images must be an array on a GPU .* found Tensor"),
        ({"images": OnDevice(IMAGES.astype(np.uint8))}, r"images must have dtype .* found uint8"),
        ({"images": OnDevice(IMAGES.astype(np.uint16))}, "images must be float32, float16 or bfloat16 .* found uint16"),
        ({"images": OnDevice(IMAGES[0])}, "images must have shape"),
        ({"images": OnDevice(IMAGES[:, :, ::2])}, "out must have the shape of images"),
        ({"images": OnDevice(IMAGES[..., ::2]), "out": OnDevice(IMAGES[..., ::2])}, "images and out must be dense"),
        ({"out": OnDevice(IMAGES.astype(np.float16))}, "out must have dtype float32, found float16"),
        ({"out": OnDevice(IMAGES)}, "out must not overlap images"),
        ({"layout": "CHWN"}, "layout must be one of NCHW, NHWC or None, found 'CHWN'"),
        ({"mixing": Mix(None)}, "mix.partner must be an int32 array"),
        ({"mixing": Mix(PAIR, weight=PAIR)}, "mix.weight must have dtype float32"),
        ({"mixing": Mix(PAIR, box=PAIR)}, r"mix.box must have shape \(2, 4\)"),
    ],
)
def test_a_broken_rule_is_named(changes: dict[str, Any], told: str) -> None:
    """What cannot be launched is refused before anything runs: kernel, argument, rule and what was found."""
    out = np.zeros_like(IMAGES)
    arguments: dict[str, Any] = {"images": OnDevice(IMAGES), "out": OnDevice(out), "mixing": Mix(PAIR), **changes}
    with pytest.raises(ConfigError, match=f"^mix: .*{told}"):
        mix(**arguments)


def test_bytes_moved_counts_what_is_read_and_written() -> None:
    """Own and partner's bytes in, own bytes out."""
    assert bytes_moved((2, 3, 4, 5), "float32") == 120 * 12
    assert bytes_moved((2, 3, 4, 5), "bfloat16", mixed=0.5) == 120 * 5
