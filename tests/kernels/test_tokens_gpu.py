"""tokens on a GPU: on torch's memory, on whatever stream, in a CUDA graph; test_tokens.py holds its arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from kernels_both import moved
from kernels_host import OnDevice
from tokens_cases import GPT2_END, Array, assert_outputs, outputs_for, random_records

from dali_feed.errors import ConfigError
from dali_feed.kernels import _module
from dali_feed.kernels.tokens import OUTPUTS, scratch_size, tokens, tokens_reference

pytestmark = pytest.mark.gpu


def on_gpu(cp: Any, records: Array) -> tuple[Any, dict[str, Any]]:
    """The records, and memory for all outputs."""
    return cp.asarray(records), moved(outputs_for(records), cp.asarray)


def fetched(cp: Any, outputs: dict[str, Any]) -> dict[str, Array]:
    """The outputs on the host."""
    return {name: cp.asnumpy(array) for name, array in outputs.items()}


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
