"""Kernels on a GPU: on torch's memory, on any stream, without allocating; test_kernels.py holds their arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from kernel_cases import DTYPES, KERNELS, RECORDS, Arguments, finish_case, random_bytes, unpack_case
from kernels_host import OnDevice, moved
from kit.finished import finish_reference
from kit.unpacked import unpack_reference

from dali_feed.errors import ConfigError, EngineError
from dali_feed.kernels import launch
from dali_feed.kernels.finish import finish
from dali_feed.kernels.unpack import unpack

pytestmark = pytest.mark.device


def case_of(name: str, dtype: str, samples: int = 6) -> Arguments:
    """Arguments of `finish` or `unpack` for images of 32 x 36."""
    if name == "finish":
        return finish_case(dtype, (samples, 32, 36))
    kind = next(each for each in RECORDS if (each["bits"], each["channels"], each["dtype"]) == (8, 3, dtype))
    return unpack_case(kind, samples, (32, 36), offset=4)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["finish", "unpack"])
def test_gpu_into_torch_memory_on_its_stream(name: str, dtype: str, last: bool) -> None:
    """Torch owns the arrays, also as bfloat16 and in both memory formats, and its side stream orders the launch."""
    case = case_of(name, dtype)
    right = KERNELS[name].right(case)
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        there = moved(case, lambda array: torch.from_numpy(array).cuda())
        out = torch.empty(right.shape, dtype=getattr(torch, dtype), device="cuda")
        out = out.to(memory_format=torch.channels_last) if last else out
        there |= {"out": out, "dtype": None, "layout": None}
        KERNELS[name].launcher(**there, stream=stream)
        images = out.contiguous().cpu()
    images = images.view(torch.uint16) if dtype == "bfloat16" else images
    assert images.numpy().tobytes() == right.tobytes()


@pytest.mark.parametrize("spelling", ["object", "pointer"])
def test_gpu_waits_for_its_stream_only(spelling: str) -> None:
    """On a stream of its own the launch sees what was enqueued before it there, however it learns of the stream."""
    pixels = random_bytes(8, 64, 64, 3)
    images, fresh = torch.zeros(pixels.shape, dtype=torch.uint8).cuda(), torch.from_numpy(pixels).cuda()
    out = torch.empty(8, 3, 64, 64, device="cuda")
    finish(images, out, stream=torch.cuda.current_stream())  # compiled now, so that the launch below comes at once
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)  # type: ignore[no-untyped-call]
        images.copy_(fresh)
    finish(images, out, stream={"object": stream, "pointer": stream.cuda_stream}[spelling])
    stream.synchronize()
    np.testing.assert_array_equal(out.cpu().numpy(), finish_reference(pixels))


@pytest.mark.parametrize("name", ["finish", "unpack"])
def test_gpu_allocates_nothing_and_compiles_once(name: str) -> None:
    """A second launch takes no device memory and reuses the kernel of the first."""
    there = moved(case_of(name, "float16"), lambda array: torch.from_numpy(array).cuda())
    there["stream"] = torch.cuda.current_stream()
    KERNELS[name].launcher(**there)
    before, kernels = torch.cuda.memory_allocated(), dict(launch._kernels)
    KERNELS[name].launcher(**there)
    assert torch.cuda.memory_allocated() == before
    assert launch._kernels == kernels


def test_gpu_refuses_memory_of_the_host() -> None:
    """An array that only says it is on a GPU is refused by name instead of ending the process's CUDA context."""
    out = torch.empty(2, 3, 4, 6, device="cuda")
    with pytest.raises(ConfigError, match="finish: images must lie in a GPU's memory"):
        finish(OnDevice(np.zeros((2, 4, 6, 3), np.uint8)), out)
    with pytest.raises(ConfigError, match="unpack: records must lie in a GPU's memory"):
        unpack(OnDevice(np.zeros((2, 72), np.uint8)), out, shape=(4, 6, 3))


@pytest.mark.gpu
def test_gpu_compile_error_names_kernel_and_device(cp: Any) -> None:
    """What CuPy's compilation says comes with the kernel and the architecture."""
    with pytest.raises(EngineError, match=r"kernel finish for sm_\d+, options none: (?s:.*)define one of OUT_FLOAT32"):
        launch.kernel("finish", ())


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("width", [224, 223])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_gpu_beyond_32_bits(cp: Any, layout: str, width: int) -> None:
    """The last sample of a batch of more than 2^32 bytes is the right one, by vectors and byte by byte."""
    samples = 2**32 // (223 * width * 3) + 2
    images = cp.zeros((samples, 223, width, 3), cp.uint8)
    images[-1] = cp.asarray(random_bytes(223, width, 3))
    out = cp.empty((samples, 3, 223, width) if layout == "NCHW" else images.shape, cp.float16)
    one, records = cp.asnumpy(images[-1:]), images.reshape(samples, -1)
    finish(images, out, layout=layout)
    assert np.array_equal(cp.asnumpy(out[-1:]), finish_reference(one, dtype="float16", layout=layout))
    out[-1] = 7
    form: dict[str, Any] = {"shape": (223, width, 3), "dtype": "float16", "layout": layout}
    unpack(records, out, **form)
    assert np.array_equal(cp.asnumpy(out[-1:]), unpack_reference(one.reshape(1, -1), **form))
