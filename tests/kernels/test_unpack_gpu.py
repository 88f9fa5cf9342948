"""unpack on a GPU: on torch's memory, without allocating, beyond 32 bits; test_unpack.py holds its arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from finish_cases import assert_same_bits
from kernels_host import OnDevice
from unpack_cases import KINDS, Kind, out_for, payload_of, random_factors, random_records

from dali_feed.errors import ConfigError
from dali_feed.kernels import launch
from dali_feed.kernels.unpack import unpack, unpack_reference

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.uint8])
def test_gpu_into_torch_memory_on_its_stream(cp: Any, dtype: torch.dtype, last: bool) -> None:
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
    case = KINDS[1].arguments(16, 16)
    records, out = cp.asarray(random_records(4, case)), cp.asarray(out_for(4, case))
    unpack(records, out, **case)
    pool, kernels = cp.get_default_memory_pool(), dict(launch._kernels)
    before = pool.used_bytes(), pool.total_bytes()
    unpack(records, out, **case)
    assert (pool.used_bytes(), pool.total_bytes()) == before
    assert launch._kernels == kernels


def test_gpu_refuses_memory_of_the_host(cp: Any) -> None:
    """An array that only says it is on a GPU is refused by name instead of ending the process's CUDA context."""
    with pytest.raises(ConfigError, match="unpack: records must lie in a GPU's memory"):
        unpack(OnDevice(np.zeros((2, 72), np.uint8)), cp.empty((2, 3, 4, 6), cp.float32), shape=(4, 6, 3))


@pytest.mark.slow
@pytest.mark.parametrize("width", [224, 223])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_gpu_beyond_32_bits(cp: Any, layout: str, width: int) -> None:
    """The last record of a batch of more than 2^32 bytes is the right one, by vectors and byte by byte."""
    case = Kind(8, "little", 3, "interleaved", layout, "float16").arguments(223, width)
    samples = 2**32 // payload_of(case) + 2
    records = cp.zeros((samples, payload_of(case)), cp.uint8)
    one = random_records(1, case)
    records[-1] = cp.asarray(one[0])
    out = cp.empty((samples, *out_for(1, case).shape[1:]), cp.float16)
    unpack(records, out, **case)
    assert_same_bits(cp.asnumpy(out[-1:]), unpack_reference(one, **case))
