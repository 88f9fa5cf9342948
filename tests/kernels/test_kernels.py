"""Each kernel equals its reference bit for bit, and stays inside its arrays.

The .cu itself runs here without a GPU: g++ compiles it through cuda_shim.h. On a GPU the launcher runs it too.
"""

from __future__ import annotations

import itertools
import mmap
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import KERNELS, RECORDS, Arguments, Array, finish_case, out_for, payload_of, unpack_case
from kernels_host import HostKernel, OnDevice, compile_for_host, compile_sanitized, moved, on_gpu, run_sanitized
from kit.finished import finish_reference
from kit.kept import Kept
from kit.unpacked import unpack_reference

from dali_feed.kernels.launch import Launch

pytestmark = pytest.mark.slow

Run = Callable[[Arguments], Launch]  # launches with NumPy arrays, and gives what was launched


def same_bits(out: Array, expected: Array) -> None:
    """Equality of bits: -0 is not 0 here."""
    assert (out.shape, out.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_array_equal(out.view(f"u{out.itemsize}"), expected.view(f"u{expected.itemsize}"))


@pytest.fixture(scope="module")
def compiled(kept: Kept) -> Callable[[str], HostKernel]:
    """A kernel by its name, all variants compiled by g++."""
    return lambda name: compile_for_host(kept, name, KERNELS[name].variants)


def prepared(name: str, arguments: Arguments) -> Launch:
    """The launch for host arrays."""
    return KERNELS[name].launcher.prepare(**moved(arguments, OnDevice))


@pytest.fixture(scope="module")
def run(name: str, compiled: Callable[[str], HostKernel]) -> Run:
    """Runs the kernel on the host."""
    host = compiled(name)

    def on_host(arguments: Arguments) -> Launch:
        host.run(job := prepared(name, arguments))
        return job

    return on_host


each_kernel = pytest.mark.parametrize("name", KERNELS, scope="module")


@each_kernel
@given(data=st.data())
def test_a_kernel_equals_its_reference_bit_for_bit(run: Run, name: str, data: st.DataObject) -> None:
    """Whatever the shape, the alignment, the flags and the factors, both agree exactly."""
    arguments = data.draw(KERNELS[name].drawn)
    run(arguments)
    same_bits(arguments["out"], KERNELS[name].right(arguments))


@each_kernel
def test_usual_batches(run: Run, name: str) -> None:
    """Done exactly, by the variant that their sizes allow."""
    for arguments, option in KERNELS[name].usual():
        assert option in run(arguments).options
        same_bits(arguments["out"], KERNELS[name].right(arguments))


@pytest.mark.parametrize("name", ["finish", "unpack"], scope="module")
def test_the_edges_of_floats(run: Run, name: str) -> None:
    """Subnormals, overflow, ties and -0 come out as in the reference, in spite of CuPy's -ftz=true."""
    for arguments in KERNELS[name].edges():
        run(arguments)
        same_bits(arguments["out"], KERNELS[name].right(arguments))


@pytest.mark.gpu
@each_kernel
@given(data=st.data())
def test_silicon_equals_the_reference_bit_for_bit(name: str, data: st.DataObject) -> None:
    """What NVRTC makes of the kernel, and a GPU of that."""
    arguments = data.draw(KERNELS[name].drawn)
    on_gpu(KERNELS[name].launcher, arguments)
    same_bits(arguments["out"], KERNELS[name].right(arguments))


@pytest.mark.gpu
@each_kernel
def test_silicon_does_usual_batches_and_edges(name: str) -> None:
    """By the variant that their sizes allow, and in spite of CuPy's -ftz=true."""
    for arguments in (*(each for each, _ in KERNELS[name].usual()), *KERNELS[name].edges()):
        on_gpu(KERNELS[name].launcher, arguments)
        same_bits(arguments["out"], KERNELS[name].right(arguments))


@each_kernel
def test_no_byte_beside_the_arrays(kept: Kept, compiled: Callable[[str], HostKernel], name: str) -> None:
    """Under the address and undefined-behaviour sanitizers every variant stays inside arrays of exactly its size."""
    kernel, jobs, expected = KERNELS[name], list[tuple[Launch, list[Array]]](), b""
    for arguments in kernel.small():
        arrays: list[Array] = []
        moved(arguments, arrays.append)
        if name == "unpack":  # the records from the first payload to the last: headers are not read
            records, at = arguments["records"], arguments["offset"]
            span = (len(records) - 1) * records.strides[0] + payload_of(arguments)
            arrays.append(np.lib.stride_tricks.as_strided(records[0, at:], (span,), (1,)))
        job = prepared(name, arguments)
        jobs.append((job, arrays))
        right = kernel.right(arguments)
        expected += right.tobytes()
        compiled(name).run(job)
        same_bits(arguments["out"], right)
        expected += b"" if arguments.get("spare") is None else arguments["spare"].tobytes()  # it is written to as well
    assert {job.options for job, _ in jobs} == set(kernel.variants)
    assert run_sanitized(compile_sanitized(kept, name, kernel.variants), kernel.variants, jobs) == expected


MANY: list[tuple[str, Callable[[int], Arguments]]] = [
    ("finish", lambda samples: finish_case("bfloat16", (samples, 1, 4))),
    ("finish", lambda samples: finish_case("float32", (samples, 1, 4), "NHWC", mix=True)),
    ("unpack", lambda samples: unpack_case(RECORDS[0], samples, (1, 255))),
]


@pytest.mark.parametrize(("name", "case"), MANY)
def test_more_samples_than_a_grid_has_rows(
    compiled: Callable[[str], HostKernel], name: str, case: Callable[[int], Arguments]
) -> None:
    """Blocks walk on over the samples where there are more of them than rows of a grid, at most 65535."""
    arguments = case(200)
    job = prepared(name, arguments)
    assert job.grid[1] * job.block[1] == 200
    compiled(name).run(replace(job, grid=(job.grid[0], 7, job.grid[2])))
    same_bits(arguments["out"], KERNELS[name].right(arguments))
    assert prepared(name, case(65535 + 40)).grid[1] == 65535


@pytest.mark.gpu
def test_more_samples_than_any_grid_has_rows() -> None:
    """The same with as many as the largest grid leaves over, where that takes no minutes."""
    for name, case in MANY:
        arguments = case(65535 + 40)
        on_gpu(KERNELS[name].launcher, arguments)
        same_bits(arguments["out"], KERNELS[name].right(arguments))


def untouched(*shape: int) -> Array:
    """So many bytes of which a page takes memory only once it is touched."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    size = int(np.prod(shape, dtype=np.int64))
    return np.frombuffer(mmap.mmap(-1, size, flags=flags), np.uint8).reshape(shape)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_positions_beyond_32_bits(compiled: Callable[[str], HostKernel], layout: str) -> None:
    """The last sample of a batch of more than 2^32 bytes is read from and written to where it belongs."""
    count, rows = 60_000, 25
    images = untouched(count, rows, 1000, 3)
    images[-1] = np.random.default_rng(0).integers(0, 256, (rows, 1000, 3), np.uint8)
    out = untouched(count, *((3, rows, 1000) if layout == "NCHW" else (rows, 1000, 3)))
    case = {"images": images, "out": out, "dtype": "uint8", "layout": layout, "flip_x": np.ones(count, np.uint8)}
    job = prepared("finish", case)
    compiled("finish").run(job, begin=(0, job.grid[1] - 1, 0))
    expected = finish_reference(images[-1:], dtype="uint8", layout=layout, flip_x=[1])
    np.testing.assert_array_equal(out[-1:], expected)
    for width, order in itertools.product((1000, 1001), ("interleaved", "planar")):
        form: dict[str, Any] = {"shape": (rows, width, 3), "order": order, "dtype": "uint8", "layout": layout}
        records = untouched(-(-(2**32 + 2**28) // (rows * width * 3)), rows * width * 3)
        records[-1] = np.random.default_rng(0).integers(0, 256, records.shape[1], np.uint8)
        out = untouched(len(records), *((3, rows, width) if layout == "NCHW" else (rows, width, 3)))
        job = prepared("unpack", {"records": records, "out": out, **form})
        compiled("unpack").run(job, begin=(0, job.grid[1] - 1, 0))
        np.testing.assert_array_equal(out[-1:], unpack_reference(records[-1:], **form))


def test_records_far_apart(compiled: Callable[[str], HostKernel]) -> None:
    """At a pitch just below 2 GiB the fourth record lies beyond 2^32 bytes."""
    pitch = 2**31 - 8
    records = np.lib.stride_tricks.as_strided(untouched(3 * pitch + 32), (4, 32), (pitch, 1))
    records[...] = np.arange(128).reshape(4, 32)
    out = out_for((4, 4, 8, 1), "float32", "NCHW")
    compiled("unpack").run(prepared("unpack", {"records": records, "out": out, "shape": (4, 8, 1)}))
    same_bits(out, unpack_reference(records, shape=(4, 8, 1)))


def test_bits_beyond_32_bits_of_one_record(compiled: Callable[[str], HostKernel]) -> None:
    """The last elements of a record of 900 MB, more than 2^32 bits, are read from where they are."""
    pixels = 600_000_002
    records, out = untouched(1, pixels * 12 // 8), untouched(2 * pixels).view(np.uint16).reshape(1, 1, 1, pixels)
    records[:, -3:] = (0x12, 0x3A, 0xBC)
    form: dict[str, Any] = {"bits": 12, "endian": "big", "dtype": "bfloat16"}
    job = prepared("unpack", {"records": records, "out": out, "shape": (1, pixels, 1), **form})
    compiled("unpack").run(job, begin=(job.grid[0] - 1, 0, 0))
    same_bits(out[..., -2:], unpack_reference(records[:, -3:], shape=(1, 2, 1), **form))
