"""unpack: the kernel equals its NumPy reference bit for bit, and the reference takes records apart as integers do.

The .cu itself runs here without a GPU: g++ compiles it through cuda_shim.h. On a GPU the launcher runs it too.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from finish_cases import Array, assert_same_bits
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from kernels_host import HostKernel, Kernel, OnDevice, both_ways, compile_sanitized, run_sanitized
from kit.kept import Kept
from unpack_cases import (
    CHANNELS,
    FLOATS,
    KINDS,
    LAYOUTS,
    ORDERS,
    STREAMS,
    VARIANTS,
    Kind,
    cases,
    name_of,
    out_for,
    packed,
    payload_of,
    prepared,
    random_factors,
    random_records,
    untouched,
)

from dali_feed.errors import ConfigError
from dali_feed.kernels.unpack import prepare, unpack, unpack_reference

pytestmark = pytest.mark.slow


host, kernel = both_ways(unpack, prepare, VARIANTS)


def test_every_way_to_read_and_to_write_is_selected() -> None:
    """The variants under test hold each option, and each stream with each number of channels."""
    assert {(k.bits, k.endian, k.channels) for k in KINDS if k.order == "interleaved"} == {
        (*stream, channels) for stream, channels in itertools.product(STREAMS, CHANNELS)
    }
    assert {(k.bits, k.endian) for k in KINDS if k.order == "planar"} == set(STREAMS)
    assert {(k.order, k.channels) for k in KINDS} == {*itertools.product(ORDERS, CHANNELS)} - {("planar", 1)}
    assert {(k.dtype, k.layout, k.channels) for k in KINDS if k.channels > 1} == {
        *itertools.product((*FLOATS, "uint8"), LAYOUTS, CHANNELS[1:])
    }
    assert {k.dtype for k in KINDS if k.channels == 1} == {*FLOATS, "uint8"}
    assert {kind.options for kind in KINDS} == set(VARIANTS)


# --- the kernel, both ways --------------------------------------------------------------------------------------------


@given(drawn=cases())
def test_kernel_equals_reference_bit_for_bit(kernel: Kernel, drawn: tuple[Array, Array, dict[str, Any]]) -> None:
    """Whatever the shape, the header, the pitch, the alignment and the factors, both agree exactly."""
    records, out, case = drawn
    kernel(records, out, **case)
    assert_same_bits(out, unpack_reference(records, **case))


@pytest.mark.parametrize("kind", KINDS, ids=name_of)
@pytest.mark.parametrize("size", [(3, 32, 40), (40, 28, 28), (700, 2, 4), (2, 224, 224)])
def test_a_usual_batch(kernel: Kernel, kind: Kind, size: tuple[int, int, int]) -> None:
    """Few large images and many small ones behind a header of 64 bytes."""
    samples, height, width = size
    case = kind.arguments(height, width, offset=64, **random_factors(kind))
    records, out = random_records(samples, case, gap=-payload_of(case) % 16), out_for(samples, case)
    (job,) = kernel(records, out, **case)
    assert job.options == kind.options
    assert_same_bits(out, unpack_reference(records, **case))


def test_one_record_again_and_again(kernel: Kernel) -> None:
    """A pitch of 0, as broadcasting makes it, gives the same image in every slot."""
    case = KINDS[0].arguments(4, 8)
    record, out = random_records(1, case), out_for(5, case)
    kernel(np.broadcast_to(record, (5, record.shape[1])), out, **case)
    assert_same_bits(out, unpack_reference(record, **case).repeat(5, 0))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.channels == 1], ids=name_of)
def test_every_value_at_the_edges_of_floats(kernel: Kernel, kind: Kind) -> None:
    """Each value of an element through factors that make subnormals, overflow, ties and -0, in spite of -ftz=true."""
    side, tiny = 2 ** (kind.bits // 2), 2.0**-140
    records = packed(range(2**kind.bits), kind.bits, kind.endian)[None]
    edges = ({"bias": -0.0}, {"scale": -1, "bias": -0.0}, {"scale": tiny, "bias": 3 * tiny}, {"scale": 3e38})
    for factors in ({}, *edges) if kind.dtype != "uint8" else ({},):
        case = kind.arguments(side, side, **factors)
        out = out_for(1, case)
        kernel(records, out, **case)
        assert_same_bits(out, unpack_reference(records, **case))


def test_more_records_than_a_grid_has_rows(host: HostKernel) -> None:
    """Blocks walk on over the records where there are more of them than a grid of 65535 rows reaches."""
    kind = KINDS[0]
    case = kind.arguments(5, 8)
    records, out = random_records(200, case), out_for(200, case)
    job = prepared(records, out, case)
    assert (job.grid[0], job.block[0] * job.block[1]) == (1, 256)
    host.run(dataclasses.replace(job, grid=(1, 2, 1)))
    assert_same_bits(out, unpack_reference(records, **case))
    many = 10**8  # of which nothing is touched
    far = OnDevice(out, shape=(many, 1, 5, 8), strides=None, data=(2**40, False))
    job = prepare(OnDevice(records, shape=(many, 40), strides=None), far, **case)
    assert job.grid == (1, 65535, 1)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.dtype == "uint8" and kind.channels == 3], ids=name_of)
@pytest.mark.parametrize("width", [1000, 1001])
def test_positions_beyond_32_bits(host: HostKernel, kind: Kind, width: int) -> None:
    """The last of so many records that both sides pass 2^32 bytes is read from and written to where it belongs."""
    case = kind.arguments(999, width)
    payload = payload_of(case)
    samples = -(-(2**32 + 2**28) // payload)
    records = untouched(samples * payload).reshape(samples, payload)
    out = untouched(samples * payload).reshape(samples, *out_for(1, case).shape[1:])
    records[-1] = np.random.default_rng(0).integers(0, 256, payload, np.uint8)
    job = prepared(records, out, case)
    assert job.options == kind.options
    host.run(job, begin=(0, job.grid[1] - 1, 0))
    np.testing.assert_array_equal(out[-1:], unpack_reference(records[-1:], **case))


def test_records_far_apart(host: HostKernel) -> None:
    """At a pitch just below 2 GiB the fourth record lies beyond 2^32 bytes."""
    case, pitch = KINDS[0].arguments(4, 8), 2**31 - 8
    records = np.lib.stride_tricks.as_strided(untouched(3 * pitch + 32), (4, 32), (pitch, 1))
    records[...] = np.arange(128).reshape(4, 32)
    out = out_for(4, case)
    host.run(prepared(records, out, case))
    assert_same_bits(out, unpack_reference(records, **case))


def test_bits_beyond_32_bits_of_one_record(host: HostKernel) -> None:
    """The last elements of a record of 900 MB, more than 2^32 bits, are read from where they are."""
    pixels = 600_000_002
    kind = next(kind for kind in KINDS if (kind.bits, kind.endian, kind.channels) == (12, "big", 1))
    case = kind.arguments(1, pixels)
    records, out = untouched(payload_of(case))[None], untouched(2 * pixels).view(np.uint16).reshape(1, 1, 1, pixels)
    records[:, -3:] = (0x12, 0x3A, 0xBC)
    job = prepared(records, out, case)
    host.run(job, begin=(job.grid[0] - 1, 0, 0))
    assert_same_bits(out[..., -2:], unpack_reference(records[:, -3:], **{**case, "shape": (1, 2, 1)}))


def test_no_byte_beside_the_arrays(kept: Kept) -> None:
    """Under the address and undefined-behaviour sanitizers every variant stays inside arrays of exactly its size."""
    jobs, expected = [], b""
    for kind, (height, width) in itertools.product(KINDS, ((1, 1), (1, 3), (5, 7), (2, 4), (8, 33))):
        payload = payload_of(kind.arguments(height, width))
        for offset, gap in ((0, 0), (16, 16 - payload % 16), (3, 0)):
            case = kind.arguments(height, width, offset=offset, **random_factors(kind))
            records = random_records(3, case, gap=gap)
            out = out_for(3, case)
            job = prepared(records, out, case)
            start = records.ctypes.data + offset
            span = np.lib.stride_tricks.as_strided(records[0, offset:], (2 * records.strides[0] + payload,), (1,))
            assert int(job.arguments[0]) == start
            jobs.append((job, {start: span, out.ctypes.data: out}))
            expected += unpack_reference(records, **case).tobytes()
    assert {job.options for job, _ in jobs} == set(VARIANTS)
    program = compile_sanitized(kept, "unpack", VARIANTS)
    assert run_sanitized(program, VARIANTS, jobs) == expected


# --- the reference ----------------------------------------------------------------------------------------------------


@given(
    stream=st.sampled_from(STREAMS), channels=st.sampled_from(CHANNELS), order=st.sampled_from(ORDERS), data=st.data()
)
def test_reference_gives_back_what_was_packed(
    stream: tuple[int, str], channels: int, order: str, data: st.DataObject
) -> None:
    """Numbers packed as one long integer come out where they were, in either order and layout, behind a header."""
    (bits, endian), (height, width) = stream, data.draw(st.tuples(st.integers(1, 6), st.integers(1, 6)))
    values = data.draw(hnp.arrays(np.uint16, (2, height, width, channels), elements=st.integers(0, 2**bits - 1)))
    lying = values if order == "interleaved" else values.transpose(0, 3, 1, 2)
    records = np.stack([packed(record.ravel().tolist(), bits, endian) for record in lying])
    records = np.concatenate([np.full((2, 5), 0xFF, np.uint8), records, np.full((2, 1), 0xFF, np.uint8)], axis=1)
    case: dict[str, Any] = {"shape": (height, width, channels), "bits": bits, "order": order, "endian": endian}
    last = unpack_reference(records, offset=5, layout="NHWC", **case)
    assert_same_bits(last, values.astype(np.float32))
    assert_same_bits(unpack_reference(records, offset=5, **case), np.ascontiguousarray(last.transpose(0, 3, 1, 2)))


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
def test_reference_by_hand(bits: int, endian: str, record: str, expected: list[int]) -> None:
    """A few bytes, written out."""
    records = np.frombuffer(bytes.fromhex(record), np.uint8)[None]
    found = unpack_reference(records, shape=(1, len(expected), 1), bits=bits, endian=endian)
    assert found.ravel().tolist() == expected


@pytest.mark.parametrize("channels", CHANNELS)
def test_reference_scales_each_channel_with_one_rounding(channels: int) -> None:
    """Each channel has its factors, libm's fmaf is the float32 and torch's casts are the 16-bit types."""
    fmaf = ctypes.CDLL(ctypes.util.find_library("m")).fmaf
    fmaf.restype, fmaf.argtypes = ctypes.c_float, [ctypes.c_float] * 3
    values = np.arange(1, 65536, 31)[: 500 * channels].reshape(500, channels)
    scale, bias = (1 / 65535, 1 / 3, -7.7, 1e-8)[:channels], (-0.485, 1e3, 2.0**-30, 3e-8)[:channels]
    case: dict[str, Any] = {"shape": (20, 25, channels), "bits": 16, "scale": scale, "bias": bias, "layout": "NHWC"}
    records = values.astype("<u2").view(np.uint8).reshape(1, -1)
    exact = [[fmaf(*terms) for terms in zip(map(float, row), scale, bias, strict=True)] for row in values]
    plain = unpack_reference(records, **case)
    assert_same_bits(plain, np.array(exact, np.float32).reshape(plain.shape))
    half, brain = (unpack_reference(records, dtype=dtype, **case) for dtype in ("float16", "bfloat16"))
    assert_same_bits(half, torch.from_numpy(plain).to(torch.float16).numpy())
    assert_same_bits(brain, torch.from_numpy(plain).to(torch.bfloat16).view(torch.uint16).numpy())
    one = unpack_reference(records, **{**case, "scale": scale[0], "bias": bias[0]})
    assert_same_bits(one[..., 0], plain[..., 0])


# --- what is refused, and what is read off the memory -----------------------------------------------------------------


def test_blocks_are_filled_with_small_images() -> None:
    """A block is as wide as an image fills it; what is left of its 256 threads does other records."""
    blocks = {}
    for groups in (1, 2, 12, 98, 128, 300, 6272, 125000):
        records, out = np.zeros((1, groups), np.uint8), np.zeros((1, 1, groups, 1), np.uint8)
        job = prepare(OnDevice(records), OnDevice(out), shape=(1, groups, 1))
        blocks[groups] = job.block[0]
        assert job.block[0] * job.block[1] == 256
        assert (job.grid[0] - 1) * job.block[0] < groups <= job.grid[0] * job.block[0]
    assert blocks == {1: 1, 2: 2, 12: 16, 98: 128, 128: 128, 300: 64, 6272: 256, 125000: 256}


def test_what_is_the_same_is_one_variant() -> None:
    """One channel has one order and one layout, 8 bits have one end, and where H, W and C are equal layout is asked."""
    one, out = OnDevice(np.zeros((2, 12), np.uint8)), OnDevice(np.zeros((2, 1, 3, 4), np.float32))
    plain = prepare(one, out, shape=(3, 4, 1)).options
    assert plain == prepare(one, out, shape=(3, 4, 1), order="planar", endian="big", layout="NHWC").options
    cube, out = OnDevice(np.zeros((2, 27), np.uint8)), OnDevice(np.zeros((2, 3, 3, 3), np.float32))
    with pytest.raises(ConfigError, match="unpack: layout must be given"):
        prepare(cube, out, shape=(3, 3, 3))
    assert prepare(cube, out, shape=(3, 3, 3), layout="NHWC").options[-1] == "-DCHANNELS_LAST=1"
