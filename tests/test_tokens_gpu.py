"""tokens on a GPU: the launched kernel equals its NumPy reference, on whatever memory and stream."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from kernels_host import OnDevice
from tokens_cases import DTYPES, GPT2_END, MEMORY, Array, assert_outputs, random_records

from dali_feed.errors import ConfigError
from dali_feed.kernels import _module
from dali_feed.kernels.tokens import OUTPUTS, scratch_size, tokens, tokens_reference

pytestmark = pytest.mark.gpu

SHAPES = [(1, 2), (3, 3), (4, 128), (5, 257), (5, 258), (16, 2049), (2, 30001), (70000, 9)]


@pytest.fixture(scope="module")
def cp() -> Any:
    """CuPy, imported where there is a device only."""
    return pytest.importorskip("cupy")


def on_gpu(cp: Any, records: Array, offset: int = 0) -> tuple[Any, dict[str, Any]]:
    """The records, and memory for all outputs `offset` elements behind a border, full of a pattern."""
    shape = (records.shape[0], records.shape[1] - 1)
    outputs = {}
    for name in OUTPUTS:
        room = cp.full(shape[0] * shape[1] + offset, -7, MEMORY[name])
        outputs[name] = room[offset:].reshape(shape)
    return cp.asarray(records), outputs


def fetched(cp: Any, outputs: dict[str, Any]) -> dict[str, Array]:
    """The outputs on the host."""
    return {name: cp.asnumpy(array) for name, array in outputs.items()}


@pytest.mark.parametrize("separator", [GPT2_END, None])
@pytest.mark.parametrize("share", [0.0, 0.01, 1.0])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_gpu_equals_reference(cp: Any, shape: tuple[int, int], dtype: str, share: float, separator: int | None) -> None:
    """The launched kernel equals the reference on CuPy memory, aligned and one element off."""
    records = random_records(dtype, shape, share=share)
    for offset in (0, 1):
        given, outputs = on_gpu(cp, records, offset)
        tokens(given, **outputs, separator=separator)
        assert_outputs(fetched(cp, outputs), tokens_reference(records, separator=separator))


@pytest.mark.parametrize("names", [("inputs",), ("targets",), ("positions",), ("documents",), ("inputs", "documents")])
def test_gpu_writes_what_is_asked_for(cp: Any, names: tuple[str, ...]) -> None:
    """Each output alone comes out as it does beside the others."""
    records = random_records("uint16", (7, 1025), share=0.02)
    given, outputs = on_gpu(cp, records)
    asked = {name: outputs[name] for name in names}
    tokens(given, **asked, separator=GPT2_END, ignore_index=-1)
    assert_outputs(fetched(cp, asked), tokens_reference(records, separator=GPT2_END, ignore_index=-1))


def test_gpu_rows_apart_and_overlapping(cp: Any) -> None:
    """Rows are read where they lie: in wider records, and as T + 1 tokens every T of one stream."""
    stream = random_records("uint32", (1, 20 * 512 + 1), share=0.01)[0]
    views = (
        np.lib.stride_tricks.as_strided(stream, (20, 513), (4 * 512, 4)),
        stream[:-1].reshape(20, 512)[:, 3:300],
    )
    held = cp.asarray(stream)
    for view in views:
        start = (view.ctypes.data - stream.ctypes.data) // 4
        given = cp.lib.stride_tricks.as_strided(held[start:], view.shape, view.strides)
        _, outputs = on_gpu(cp, np.ascontiguousarray(view))
        tokens(given, **outputs, separator=GPT2_END)
        assert_outputs(fetched(cp, outputs), tokens_reference(view, separator=GPT2_END))


@pytest.mark.parametrize("own", [False, True])
def test_gpu_in_torch_memory_on_its_stream(cp: Any, own: bool) -> None:
    """Torch's bytes viewed as uint16, its outputs and, or CuPy's, scratch memory; its side stream orders both."""
    records = random_records("uint16", (32, 2049), share=0.005)
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        raw = torch.from_numpy(records.view(np.uint8)).cuda()
        made: dict[str, Any] = {
            name: torch.empty((32, 2048), dtype=torch.int32 if name == "documents" else torch.int64, device="cuda")
            for name in OUTPUTS
        }
        room = torch.empty(scratch_size(records.shape), dtype=torch.int32, device="cuda") if own else None
        tokens(raw.view(torch.uint16), **made, separator=GPT2_END, scratch=room, stream=stream)
        found = {name: tensor.cpu().numpy() for name, tensor in made.items()}
    assert_outputs(found, tokens_reference(records, separator=GPT2_END))


@pytest.mark.parametrize("spelling", ["object", "pointer", "current"])
def test_gpu_waits_for_its_stream_only(cp: Any, spelling: str) -> None:
    """On a non-blocking stream both launches see what was enqueued before them there, however they learn of it."""
    records = random_records("uint16", (64, 1025), share=0.01)
    given, outputs = on_gpu(cp, np.zeros_like(records))
    fresh = cp.asarray(records)
    work = cp.random.default_rng(0).random((3000, 3000), dtype=cp.float32)
    tokens(given, **outputs, separator=GPT2_END)  # compiled now, so that the launches below come at once
    cp.cuda.Device().synchronize()
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        for _ in range(20):  # keeps the stream busy while the host runs ahead
            work = cp.sin(work)
        given[...] = fresh
        if spelling == "current":
            tokens(given, **outputs, separator=GPT2_END)
    if spelling != "current":
        tokens(given, **outputs, separator=GPT2_END, stream={"object": stream, "pointer": stream.ptr}[spelling])
    stream.synchronize()
    assert_outputs(fetched(cp, outputs), tokens_reference(records, separator=GPT2_END))


@pytest.mark.parametrize("asynchronous", [False, True])
def test_gpu_scratch_of_one_stream_is_not_given_to_another(cp: Any, asynchronous: bool) -> None:
    """Memory that a busy stream has yet to use stays its own while another stream takes and fills scratch memory."""
    allocator = cp.cuda.MemoryAsyncPool() if asynchronous else cp.cuda.MemoryPool()
    batches = [random_records("uint16", (64, 1025), share=share, seed=seed) for seed, share in ((1, 0.01), (2, 0.2))]
    sides = [on_gpu(cp, batch) for batch in batches]
    work = cp.random.default_rng(0).random((3000, 3000), dtype=cp.float32)
    tokens(sides[0][0], **sides[0][1], separator=GPT2_END)
    cp.cuda.Device().synchronize()
    streams = [cp.cuda.Stream(non_blocking=True) for _ in sides]
    with cp.cuda.using_allocator(allocator.malloc):
        with streams[0]:
            for _ in range(20):
                work = cp.sin(work)
        for stream, (given, outputs) in zip(streams, sides, strict=True):
            tokens(given, **outputs, separator=GPT2_END, stream=stream.ptr)
        cp.cuda.Device().synchronize()
    for batch, (_, outputs) in zip(batches, sides, strict=True):
        assert_outputs(fetched(cp, outputs), tokens_reference(batch, separator=GPT2_END))


def test_gpu_allocates_nothing_with_scratch_and_compiles_once(cp: Any) -> None:
    """A second launch with the caller's scratch memory takes none, and reuses the kernels of the first."""
    records = random_records("uint32", (4, 513), share=0.01)
    given, outputs = on_gpu(cp, records)
    room = cp.full(scratch_size(records.shape), -1, cp.int32)
    tokens(given, **outputs, separator=GPT2_END, scratch=room)
    pool, kernels = cp.get_default_memory_pool(), dict(_module._kernels)
    before = pool.used_bytes(), pool.total_bytes()
    tokens(given, **outputs, separator=GPT2_END, scratch=room)
    assert (pool.used_bytes(), pool.total_bytes()) == before
    assert _module._kernels == kernels
    assert_outputs(fetched(cp, outputs), tokens_reference(records, separator=GPT2_END))


def test_gpu_in_a_cuda_graph(cp: Any) -> None:
    """With the caller's scratch memory both launches can be captured, and a replay reads the records anew."""
    first, second = (random_records("uint16", (8, 513), share=0.02, seed=seed) for seed in (1, 2))
    given, outputs = on_gpu(cp, first)
    room = cp.empty(scratch_size(first.shape), cp.int32)
    tokens(given, **outputs, separator=GPT2_END, scratch=room)  # compiled before the capture
    stream = cp.cuda.Stream(non_blocking=True)
    cp.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        tokens(given, **outputs, separator=GPT2_END, scratch=room)
        graph = stream.end_capture()
    given[...] = cp.asarray(second)
    cp.cuda.Device().synchronize()
    graph.launch(stream)
    stream.synchronize()
    assert_outputs(fetched(cp, outputs), tokens_reference(second, separator=GPT2_END))


@pytest.mark.parametrize("separator", [None, 0])
def test_gpu_refuses_memory_of_the_host(cp: Any, separator: int | None) -> None:
    """An array that only says it is on a GPU is refused by name, also where scratch memory would be taken for it."""
    with pytest.raises(ConfigError, match="tokens: records must lie in a GPU's memory"):
        tokens(OnDevice(np.zeros((2, 9), np.uint16)), documents=cp.empty((2, 8), cp.int32), separator=separator)


@pytest.mark.slow
def test_gpu_beyond_32_bits(cp: Any) -> None:
    """The last row of a batch of more than 2^32 tokens is the right one."""
    rows, length = 4_200_000, 1024
    last = random_records("uint16", (1, length + 1), share=0.01)
    records = cp.zeros((rows, length + 1), cp.uint16)
    records[-1] = cp.asarray(last[0])
    documents = cp.empty((rows, length), cp.int32)
    tokens(records, documents=documents, separator=GPT2_END)
    assert_outputs({"documents": cp.asnumpy(documents[-1:])}, tokens_reference(last, separator=GPT2_END))
