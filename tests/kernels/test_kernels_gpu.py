"""Kernels on a GPU: on torch's memory, on any stream, without allocating; the files beside hold their arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import unpack_cases
from finish_cases import LAYOUTS, assert_same_bits, random_case
from kernels_host import OnDevice, moved
from kit.finished import finish_reference
from unpack_cases import KINDS, Kind, payload_of, random_factors, random_records

from dali_feed.errors import ConfigError, EngineError
from dali_feed.kernels import launch
from dali_feed.kernels.finish import finish
from dali_feed.kernels.unpack import unpack, unpack_reference

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.uint8])
def test_gpu_finish_into_torch_memory_on_its_stream(cp: Any, dtype: torch.dtype, last: bool) -> None:
    """Torch owns the output, in both memory formats and as bfloat16, and its side stream orders the launch."""
    name = str(dtype).removeprefix("torch.")
    case = random_case(name, (6, 32, 36))
    expected = finish_reference(**case, dtype=name)
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        arguments = moved(case, lambda array: torch.from_numpy(array).cuda())
        out = torch.empty(expected.shape, dtype=dtype, device="cuda")
        out = out.to(memory_format=torch.channels_last) if last else out
        finish(out=out, stream=stream, **arguments)
        found = out.contiguous().cpu()
    found = found.view(torch.uint16) if dtype is torch.bfloat16 else found
    assert_same_bits(found.numpy(), expected)


@pytest.mark.parametrize("spelling", ["object", "pointer", "current"])
def test_gpu_waits_for_its_stream_only(cp: Any, spelling: str) -> None:
    """On a non-blocking stream the launch sees what was enqueued before it there, however it learns of the stream."""
    case = random_case("float32", (8, 224, 224))
    images, fresh = cp.zeros(case["images"].shape, cp.uint8), cp.asarray(case["images"])
    out = cp.empty((8, 3, 224, 224), cp.float32)
    work = cp.random.default_rng(0).random((3000, 3000), dtype=cp.float32)
    finish(images, out)  # compiled now, so that the launch below comes at once
    cp.cuda.Device().synchronize()
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        for _ in range(20):  # keeps the stream busy while the host runs ahead
            work = cp.sin(work)
        images[...] = fresh
        given = {"object": stream, "pointer": stream.ptr, "current": None}[spelling]
        if spelling == "current":
            finish(images, out, stream=given)
    if spelling != "current":
        finish(images, out, stream=given)
    stream.synchronize()
    assert_same_bits(cp.asnumpy(out), finish_reference(case["images"]))


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.uint8])
def test_gpu_unpack_into_torch_memory_on_its_stream(cp: Any, dtype: torch.dtype, last: bool) -> None:
    """Torch owns records and output, in both memory formats and as bfloat16, and its side stream orders the launch."""
    name = str(dtype).removeprefix("torch.")
    kind = Kind(8, "little", 3, "interleaved", "NHWC" if last else "NCHW", name)
    case = {**kind.arguments(32, 36, offset=4, **random_factors(kind)), "layout": "NCHW"}
    records = random_records(6, case)
    expected = unpack_reference(records, **case)
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        out = torch.empty(expected.shape, dtype=dtype, device="cuda")
        out = out.to(memory_format=torch.channels_last) if last else out
        arguments = {key: value for key, value in case.items() if key not in ("dtype", "layout")}
        unpack(torch.from_numpy(records).cuda(), out, stream=stream, **arguments)
        found = out.contiguous().cpu()
    found = found.view(torch.uint16) if dtype is torch.bfloat16 else found
    assert_same_bits(found.numpy(), expected)


def test_gpu_more_records_than_a_grid_has_rows(cp: Any) -> None:
    """Blocks walk on over the records where there are more of them than the 65535 rows of a grid."""
    records = random_records(65535 + 40, Kind(8, "little", 1, "interleaved", "NCHW", "uint8").arguments(1, 255))
    out = cp.zeros((len(records), 1, 1, 255), cp.uint8)
    unpack(cp.asarray(records), out, shape=(1, 255, 1))
    np.testing.assert_array_equal(cp.asnumpy(out)[:, 0, 0], records)


def test_gpu_allocates_nothing_and_compiles_once(cp: Any) -> None:
    """A second launch takes no device memory and reuses the kernel of the first."""
    case, other = moved(random_case("float16", (4, 16, 16)), cp.asarray), KINDS[1].arguments(16, 16)
    out, records = cp.empty((4, 3, 16, 16), cp.float16), cp.asarray(random_records(4, other))
    unpacked = cp.asarray(unpack_cases.out_for(4, other))
    runs: list[Any] = [lambda: finish(out=out, **case), lambda: unpack(records, unpacked, **other)]
    for run in runs:
        run()
        pool, kernels = cp.get_default_memory_pool(), dict(launch._kernels)
        before = pool.used_bytes(), pool.total_bytes()
        run()
        assert (pool.used_bytes(), pool.total_bytes()) == before
        assert launch._kernels == kernels


def test_gpu_refuses_memory_of_the_host(cp: Any) -> None:
    """An array that only says it is on a GPU is refused by name instead of ending the process's CUDA context."""
    out = cp.empty((2, 3, 4, 6), cp.float32)
    with pytest.raises(ConfigError, match="finish: images must lie in a GPU's memory"):
        finish(OnDevice(np.zeros((2, 4, 6, 3), np.uint8)), out)
    with pytest.raises(ConfigError, match="unpack: records must lie in a GPU's memory"):
        unpack(OnDevice(np.zeros((2, 72), np.uint8)), out, shape=(4, 6, 3))


def test_gpu_compile_error_names_kernel_and_device(cp: Any) -> None:
    """CuPy's compilation fails with the same kind of message as compile_ptx."""
    with pytest.raises(EngineError, match=r"kernel finish for sm_\d+, options none: (?s:.*)define one of OUT_FLOAT32"):
        launch.kernel("finish", ())


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gpu_finish_beyond_32_bits(cp: Any, layout: str) -> None:
    """The last sample of a batch of more than 2^32 bytes is the right one."""
    shape = (28600, 224, 224, 3)
    images = cp.zeros(shape, cp.uint8)
    sample = np.random.default_rng(0).integers(0, 256, shape[1:], np.uint8)
    images[-1] = cp.asarray(sample)
    out = cp.empty(shape if layout == "NHWC" else (28600, 3, 224, 224), cp.float16)
    finish(images, out)
    assert_same_bits(cp.asnumpy(out[-1:]), finish_reference(sample[None], dtype="float16", layout=layout))


@pytest.mark.slow
@pytest.mark.parametrize("width", [224, 223])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_gpu_unpack_beyond_32_bits(cp: Any, layout: str, width: int) -> None:
    """The last record of a batch of more than 2^32 bytes is the right one, by vectors and byte by byte."""
    case = Kind(8, "little", 3, "interleaved", layout, "float16").arguments(223, width)
    samples = 2**32 // payload_of(case) + 2
    records = cp.zeros((samples, payload_of(case)), cp.uint8)
    one = random_records(1, case)
    records[-1] = cp.asarray(one[0])
    out = cp.empty((samples, *unpack_cases.out_for(1, case).shape[1:]), cp.float16)
    unpack(records, out, **case)
    assert_same_bits(cp.asnumpy(out[-1:]), unpack_reference(one, **case))
