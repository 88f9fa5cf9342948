"""tokens: the kernel equals its NumPy reference, the reference is what trainers mean, and broken rules are named.

The .cu itself runs here without a GPU: g++ compiles it through cuda_shim.h. On a GPU the launcher runs it too.
"""

from __future__ import annotations

import itertools
import math
import mmap
import re
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from in_turn import in_turn
from kernels_both import Kernel, both_ways
from kernels_host import HostKernel, OnDevice, compile_for_host, compile_sanitized, run_sanitized
from kit.kept import Kept, PtxOf
from tokens_cases import (
    DTYPES,
    GPT2_END,
    MEMORY,
    VARIANTS,
    Array,
    assert_outputs,
    by_hand,
    flat_memory,
    in_rows,
    outputs_for,
    prepared,
    random_records,
    scratch_for,
)

from dali_feed.errors import ConfigError, EngineError
from dali_feed.kernels import _module
from dali_feed.kernels._module import Launch
from dali_feed.kernels.tokens import OUTPUTS, bytes_moved, prepare, scratch_size, tokens, tokens_reference

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def host(kept: Kept) -> HostKernel:
    """All variants of the kernel, compiled by g++."""
    return compile_for_host(kept, "tokens", VARIANTS)


kernel = both_ways(tokens, prepare)


def run_all(kernel: Kernel, records: Array, separator: int | None, **options: Any) -> tuple[Launch, ...]:
    """All four outputs equal the reference's."""
    outputs = outputs_for(records)
    jobs = kernel(records, **outputs, scratch=scratch_for(records), separator=separator, **options)
    assert_outputs(outputs, tokens_reference(records, separator=separator, **options))
    return jobs


# --- the kernel, both ways --------------------------------------------------------------------------------------------


@st.composite
def cases(draw: st.DrawFn) -> tuple[Array, list[str], dict[str, Any], int]:
    """Short and long rows, close, apart and overlapping, at any offset; few separators, many, none; some outputs."""
    dtype = draw(st.sampled_from(DTYPES))
    rows = draw(st.integers(1, 4))
    length = draw(st.integers(1, 9) | st.sampled_from((31, 32, 33, 64, 127, 128, 255, 256, 257, 384, 512, 641, 1024)))
    separator = draw(st.sampled_from((0, 1, GPT2_END, int(np.iinfo(dtype).max))))
    share, seed = draw(st.sampled_from((0.0, 0.003, 0.02, 0.5, 1.0))), draw(st.integers(0, 2**32 - 1))
    records = random_records(dtype, (rows, length + 1), separator=separator, share=share, seed=seed)
    pitch = draw(st.sampled_from((length + 1, length + 1, length, length + 2, length + 9, 1)))
    records = in_rows(records, pitch, draw(st.sampled_from((0, 0, 1, 3))))
    names = draw(st.lists(st.sampled_from(OUTPUTS), min_size=1, unique=True))
    options = {"separator": draw(st.sampled_from((separator, separator, None)))}
    if draw(st.booleans()):
        options["ignore_index"] = draw(st.sampled_from((-(2**31), -1, 0, 2**31 - 1)))
    return records, names, options, draw(st.sampled_from((0, 0, 1, 2)))


@given(drawn=cases())
def test_kernel_equals_reference(kernel: Kernel, drawn: tuple[Array, list[str], dict[str, Any], int]) -> None:
    """Whatever the shape, the pitch, the alignment, the separators and the outputs asked for, both agree."""
    records, names, options, offset = drawn
    outputs = outputs_for(records, names, offset)
    kernel(records, **outputs, scratch=scratch_for(records), **options)
    assert_outputs(outputs, tokens_reference(records, **options))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "length"), [(9, 2048), (9, 2047), (2, 30000), (70000, 8)])
def test_a_usual_batch(kernel: Kernel, dtype: str, rows: int, length: int) -> None:
    """Rows of packed documents are marked first, then written, two tokens at a time where the length is even."""
    records = random_records(dtype, (rows, length + 1), share=1 / 700)
    jobs = run_all(kernel, records, GPT2_END)
    name = f"-DTOKEN_{dtype.upper()}"
    assert [job.options for job in jobs] == [
        (name, "-DPHASE_MARK"),
        (name, "-DPHASE_WRITE", f"-DRUN={2 - length % 2}"),
    ]


@pytest.mark.parametrize("length", [3000, 3001])
def test_a_separator_anywhere_is_found_from_everywhere_behind_it(kernel: Kernel, length: int) -> None:
    """One separator, or two neighbours, at each border of a word, a load, a tile and the row."""
    borders = {at + more for at in (0, 32, 64, 128, 256, 512, 2944, length) for more in (-2, -1, 0, 1)}
    places = sorted(borders & set(range(length + 1)))
    records = np.ones((2 * len(places), length + 1), np.uint16)
    for row, at in enumerate(places):
        records[2 * row : 2 * row + 2, at] = 0
        records[2 * row + 1, max(at - 1, 0)] = 0
    run_all(kernel, records, 0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [1, 2, 33, 300])
def test_separators_everywhere_and_nowhere(kernel: Kernel, dtype: str, length: int) -> None:
    """A row of nothing else is a run of documents of one token; the last token of a record is no input."""
    records = np.full((3, length + 1), 7, dtype)
    records[1] = 8
    records[2, :-1] = 8  # only the token that no document number depends on
    run_all(kernel, records, 7)
    expected = tokens_reference(records, separator=7)
    assert expected.documents[0].tolist() == list(range(length))
    assert not expected.positions[0].any()
    assert not expected.documents[1:].any()


def test_the_largest_ids_keep_their_sign(kernel: Kernel) -> None:
    """Ids of uint32 from 2^31 on are positive int64, also as the separator and beside an ignore_index of -1."""
    records = np.array([[2**32 - 1, 2**31, 2**32 - 2, 2**32 - 1, 2**31 - 1, 2**32 - 1]], np.uint32)
    run_all(kernel, records, 2**32 - 1, ignore_index=-1)
    expected = tokens_reference(records, separator=2**32 - 1, ignore_index=-1)
    assert expected.inputs.tolist() == [[2**32 - 1, 2**31, 2**32 - 2, 2**32 - 1, 2**31 - 1]]
    assert expected.targets.tolist() == [[-1, 2**32 - 2, 2**32 - 1, -1, 2**32 - 1]]


@pytest.mark.parametrize("names", [("inputs", "documents"), ("targets",), ("positions",)], ids=" ".join)
@pytest.mark.parametrize(("rows", "length"), [(4_200_000, 1024), (540_000_000, 2)])
def test_places_beyond_32_bits(host: HostKernel, rows: int, length: int, names: tuple[str, ...]) -> None:
    """The last rows of more than 2^32 tokens, and of as many words of marks, are read and written where they belong."""

    def reserved(shape: tuple[int, ...], dtype: Any) -> Array:  # only the pages of the last rows are ever touched
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE, which Python 3.11 does not name
        return np.frombuffer(mmap.mmap(-1, math.prod(shape) * np.dtype(dtype).itemsize, flags), dtype).reshape(shape)

    records = reserved((rows, length + 1), np.uint16)
    records[-2:] = random_records("uint16", (2, length + 1), share=0.01)
    records[-1, 0] = GPT2_END
    outputs = {name: reserved((rows, length), MEMORY[name]) for name in names}
    scratch = reserved((scratch_size(records.shape),), np.int32)
    for job in prepared(records, outputs, scratch, separator=GPT2_END):
        host.run(job, begin=(job.grid[0] - 1, 0, 0))
    last = {name: array[-2:] for name, array in outputs.items()}
    assert_outputs(last, tokens_reference(records[-2:], separator=GPT2_END))


def test_no_byte_beside_the_arrays(host: HostKernel, kept: Kept) -> None:
    """Under the address and undefined-behaviour sanitizers every variant stays inside arrays of exactly its size."""
    jobs: list[tuple[Any, dict[int, Array]]] = []
    expected = b""
    shapes = ((1, 1), (3, 2), (2, 7), (1, 8), (2, 255), (3, 256), (2, 257), (1, 300), (2, 641), (1, 1024))
    for dtype, (rows, length) in itertools.product(DTYPES, shapes):
        for pitch, separator in ((length + 1, GPT2_END), (length + 4, GPT2_END), (length, None)):
            drawn = random_records(dtype, (rows, length + 1), share=0.05)
            records = in_rows(drawn, pitch)
            outputs, scratch = outputs_for(records), scratch_for(records)  # all four: the shim would write a null one
            memory = {array.ctypes.data: array for array in (*outputs.values(), scratch)}
            memory[records.ctypes.data] = flat_memory(records)
            for job in prepared(records, outputs, scratch, separator=separator):
                jobs.append((job, {**memory, scratch.ctypes.data: scratch.copy()}))
                host.run(job)
                if "-DPHASE_MARK" in job.options:
                    expected += scratch.tobytes()
            expected += b"".join(each.tobytes() for each in tokens_reference(records, separator=separator))
    assert {job.options for job, _ in jobs} == set(VARIANTS)
    program = compile_sanitized(kept, "tokens", VARIANTS)
    assert run_sanitized(program, VARIANTS, jobs) == expected


# --- the compiler -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "arch"), in_turn(VARIANTS, ["sm_75", "sm_80", "sm_90", "sm_100"]))
def test_nvrtc_compiles_every_variant(compiled_ptx: PtxOf, options: tuple[str, ...], arch: str) -> None:
    """Each variant assembles for each architecture, stays in registers and moves whole vectors where it can."""
    ptx = compiled_ptx("tokens", arch, options).decode()
    assert ".entry tokens(" in ptx
    assert ".local" not in ptx, "an index is not a constant"
    writes = "-DPHASE_WRITE" in options
    assert bool(re.search(r"ld\.global\.nc\.v4\.[bu]32", ptx)) == writes, "marks are read 16 bytes at a time"
    assert bool(re.search(r"st\.global\.v2\.[bu]64", ptx)) == ("-DRUN=2" in options)
    assert bool(re.search(r"st\.global\.[bu]64", ptx)) == ("-DRUN=1" in options)


@pytest.mark.parametrize(
    ("options", "told"), [((), "define one of TOKEN_UINT16"), (("-DTOKEN_UINT16",), "define one of PHASE_MARK")]
)
def test_a_failed_compilation_says_what_is_missing(options: tuple[str, ...], told: str) -> None:
    """The error names kernel and architecture and carries the compiler's first lines."""
    with pytest.raises(EngineError, match=f"kernel tokens for sm_90, options(?s:.*){told}"):
        _module.compile_ptx("tokens", "sm_90", options)


# --- the reference ----------------------------------------------------------------------------------------------------


@given(
    rows=st.lists(st.lists(st.integers(0, 3), min_size=41, max_size=41), min_size=1, max_size=3),
    length=st.integers(1, 40),
    dtype=st.sampled_from(DTYPES),
    separator=st.none() | st.integers(0, 3),
    ignore_index=st.sampled_from((-100, 0, -(2**31))),
)
def test_reference_is_what_a_plain_loop_gives(
    rows: list[list[int]], length: int, dtype: str, separator: int | None, ignore_index: int
) -> None:
    """Token by token in plain Python comes out the same."""
    records = np.array(rows, dtype)[:, : length + 1]
    found = tokens_reference(records, separator=separator, ignore_index=ignore_index)
    assert_outputs(found._asdict(), by_hand(records, separator, ignore_index))


def test_one_record_by_eye() -> None:
    """Three documents, the second empty but for its separator; the last goes on in another record."""
    found = tokens_reference(np.array([[5, 6, 0, 0, 7, 8, 9]], np.uint16), separator=0)
    assert found.inputs.tolist() == [[5, 6, 0, 0, 7, 8]]
    assert found.targets.tolist() == [[6, 0, -100, -100, 8, 9]]
    assert found.positions.tolist() == [[0, 1, 2, 0, 0, 1]]
    assert found.documents.tolist() == [[0, 0, 0, 1, 2, 2]]


def test_positions_and_blocks_are_megatrons() -> None:
    """What its loop over the end-of-document tokens makes of each row: positions, attention blocks and loss mask."""
    records = random_records("uint16", (4, 65), share=0.1)
    found = tokens_reference(records, separator=GPT2_END)
    for row, data in enumerate(records[:, :-1].astype(np.int64)):
        positions, mask = np.arange(64), np.tril(np.ones((64, 64), bool))
        previous = 0
        for end in np.flatnonzero(data == GPT2_END).tolist():
            mask[end + 1 :, : end + 1] = False
            positions[end + 1 :] -= end + 1 - previous
            previous = end + 1
        number = found.documents[row]
        np.testing.assert_array_equal(found.positions[row], positions)
        np.testing.assert_array_equal(np.tril(number[:, None] == number), mask)
        np.testing.assert_array_equal(found.targets[row] == -100, data == GPT2_END)


def test_documents_begin_where_positions_are_zero() -> None:
    """Numbers counted from restarted positions are the documents, and the docstring's cu_seqlens are their borders."""
    records = random_records("uint32", (3, 101), share=0.08)
    found = tokens_reference(records, separator=GPT2_END)
    np.testing.assert_array_equal(found.documents, (found.positions == 0).cumsum(axis=1) - 1)
    positions = torch.from_numpy(found.positions)
    cu_seqlens = torch.nn.functional.pad(
        (positions.flatten() == 0).nonzero().flatten().int(), (0, 1), value=positions.numel()
    )
    runs = [len(list(run)) for row in found.documents.tolist() for _, run in itertools.groupby(row)]
    assert cu_seqlens.dtype == torch.int32
    assert cu_seqlens.tolist() == [0, *itertools.accumulate(runs)]


def test_no_separator_is_one_document_a_row() -> None:
    """As nanoGPT takes it: every target counts, positions run through."""
    records = random_records("uint16", (2, 17), separator=0, share=0.3)
    found = tokens_reference(records)
    np.testing.assert_array_equal(found.targets, records[:, 1:])
    np.testing.assert_array_equal(found.positions, [range(16)] * 2)
    assert not found.documents.any()


def test_bytes_moved_counts_what_is_read_and_written() -> None:
    """Tokens once for inputs and targets, once more for the marks, which are written and read."""
    shape = (2, 513)
    assert bytes_moved(shape, "uint16", ("inputs", "targets")) == 2 * (513 * 2 + 512 * 16)
    assert bytes_moved(shape, "uint32", ("inputs",), separator=0) == 2 * (513 * 4 + 512 * 8)
    assert bytes_moved(shape, "uint16", ("positions",)) == 2 * 512 * 8
    assert bytes_moved(shape, "uint16", ("documents",), separator=0) == 2 * (512 * 2 + 512 * 4 + 2 * 64)
    assert bytes_moved(shape, "uint16", separator=0) == 2 * (513 * 2 + 512 * 2 + 512 * 28 + 2 * 64)


@pytest.mark.parametrize(
    ("records", "options", "told"),
    [
        (np.zeros((2, 5), np.int64), {}, r"records must be uint16 or uint32 .* found int64 \(2, 5\)"),
        (np.zeros((2, 1), np.uint16), {}, "records must be .* N, T >= 1"),
        (np.zeros((2, 5), np.uint16), {"separator": 65536}, "separator must be a whole number from 0 to 65535 or None"),
        (np.zeros((2, 5), np.uint16), {"ignore_index": 0.5}, "ignore_index must be a whole number .* found 0.5"),
    ],
)
def test_reference_refuses_what_the_kernel_does(records: Array, options: dict[str, Any], told: str) -> None:
    """Types, shapes and ids are held to the same rules."""
    with pytest.raises(ConfigError, match=f"^tokens: {told}"):
        tokens_reference(records, **options)


# --- the launcher -----------------------------------------------------------------------------------------------------

RECORDS = np.zeros((3, 9), np.uint16)
OUT = np.zeros((3, 8), np.int64)
NUMBERS = np.zeros((3, 8), np.int32)
ROOM = scratch_for(RECORDS)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"records": RECORDS}, "records must be an array on a GPU .* found ndarray"),
        ({"records": OnDevice(RECORDS.view(np.uint8))}, r"records must have dtype uint16 or uint32, found uint8"),
        ({"records": OnDevice(RECORDS.astype(np.int32))}, "records must have dtype uint16 or uint32, found int32"),
        ({"records": OnDevice(RECORDS[:, :1])}, r"records must have shape \(N, T \+ 1\) .* found \(3, 1\)"),
        ({"records": OnDevice(RECORDS[0])}, r"records must have shape .* found \(9,\)"),
        ({"records": OnDevice(RECORDS[:0])}, r"N, T >= 1, found \(0, 9\)"),
        ({"records": OnDevice(RECORDS[:, ::2])}, "records must have the tokens of a row side by side"),
        ({"records": OnDevice(RECORDS[::-1])}, r"number of tokens apart, found shape \(3, 9\), strides \(-18, 2\)"),
        ({"records": OnDevice(RECORDS, strides=(19, 2))}, "number of tokens apart"),
        ({"records": OnDevice(RECORDS, strides=(0, 2))}, "number of tokens apart"),
        ({"records": OnDevice(RECORDS, shape=(1, 2**31), strides=None)}, "must have fewer than 2,147,483,648 tokens"),
        ({"records": OnDevice(RECORDS, shape=(2**31, 9), strides=None)}, "must have fewer than 2,147,483,648 tokens"),
        ({"records": OnDevice(RECORDS, strides=(2**32, 2))}, "must have fewer than 2,147,483,648 tokens"),
        ({"inputs": None}, "outputs must be at least one of inputs, targets, positions, documents, found none"),
        ({"targets": OnDevice(NUMBERS)}, "targets must have dtype int64, found int32"),
        ({"documents": OnDevice(OUT)}, "documents must have dtype int32, found int64"),
        ({"positions": OnDevice(OUT[:2])}, r"positions must have shape \(3, 8\), as records have \(3, 9\)"),
        ({"inputs": OnDevice(np.zeros((8, 3), np.int64).T)}, "inputs must be C contiguous"),
        ({"inputs": OnDevice(OUT, data=(OUT.ctypes.data, True))}, "inputs must be writable"),
        ({"inputs": OnDevice(OUT, data=(RECORDS.ctypes.data // 8 * 8, False))}, "inputs must not overlap records"),
        (
            {"records": OnDevice(RECORDS, data=(OUT.ctypes.data - 2**21, False), strides=(2**20, 2))},
            "inputs must not overlap records",
        ),
        ({"targets": OnDevice(OUT)}, "targets must not overlap inputs"),
        ({"separator": 65536}, "separator must be a whole number from 0 to 65535 or None, found 65536"),
        ({"separator": -1}, "separator must be a whole number"),
        ({"separator": True}, "separator must be a whole number .* found True"),
        ({"ignore_index": 2**31}, "ignore_index must be a whole number from -2147483648 to 2147483647"),
        ({"ignore_index": None}, "ignore_index must be a whole number"),
        ({"scratch": OnDevice(OUT)}, "scratch must have dtype int32, found int64"),
        ({"scratch": OnDevice(ROOM[:23])}, r"scratch must have at least 24 elements, found \(23,\)"),
        ({"scratch": OnDevice(ROOM, data=(ROOM.ctypes.data + 4, False))}, "must begin at a multiple of 16 bytes"),
        ({"scratch": OnDevice(ROOM, data=(OUT.ctypes.data // 16 * 16, False))}, "scratch must not overlap inputs"),
    ],
)
def test_a_broken_rule_is_named(changes: dict[str, Any], told: str) -> None:
    """What cannot be launched is refused before anything runs: kernel, argument, rule and what was found."""
    arguments: dict[str, Any] = {"records": OnDevice(RECORDS), "inputs": OnDevice(OUT), **changes}
    if "scratch" in changes:
        arguments |= {"documents": OnDevice(NUMBERS), "separator": 0}
    with pytest.raises(ConfigError, match=f"^tokens: .*{told}"):
        tokens(arguments.pop("records"), **arguments)


@pytest.mark.parametrize("separator", [None, 0])
@pytest.mark.parametrize("stream", [True, -1, "main", 2.5])
def test_a_stream_is_a_stream(stream: object, separator: int | None) -> None:
    """A stream that is none is refused by name, also where scratch memory would be taken under it."""
    with pytest.raises(ConfigError, match="tokens: stream must be a cudaStream_t"):
        tokens(OnDevice(RECORDS), documents=OnDevice(NUMBERS), separator=separator, stream=stream)


def test_two_launches_only_where_something_looks_back() -> None:
    """Positions and documents after a separator need the marks, and scratch memory; nothing else looks at it."""
    outputs = {"inputs": OUT, "targets": np.zeros_like(OUT)}
    assert len(prepared(RECORDS, outputs, separator=0)) == 1
    assert len(prepared(RECORDS, {"positions": OUT, "documents": NUMBERS}, OUT)) == 1
    for name in ("positions", "documents"):
        more = outputs_for(RECORDS, [name])
        mark, write = prepared(RECORDS, more, scratch_for(RECORDS), separator=0)
        assert set(mark.pointers) == {"records", "scratch"}
        assert set(write.pointers) == {"records", "scratch", name}
        with pytest.raises(ConfigError, match="scratch must be int32 of 24 elements"):
            prepared(RECORDS, more, separator=0)


def test_the_stride_of_a_single_row_does_not_count() -> None:
    """A dimension of size 1 may have any stride, as in torch."""
    prepare(OnDevice(RECORDS[:1], strides=(1, 2)), inputs=OnDevice(OUT[:1], strides=(1, 8)))


def test_two_tokens_at_a_time_only_where_vectors_are_aligned() -> None:
    """An even length and outputs at borders of two elements; records may lie anywhere."""
    records = in_rows(RECORDS, 11, offset=1)

    def run(length: int = 8, **offsets: int) -> str:
        taken = records[:, : length + 1]
        outputs = {name: outputs_for(taken, [name], offset)[name] for name, offset in offsets.items()}
        return prepared(taken, outputs)[0].options[2]

    assert run(inputs=0, targets=2, positions=4, documents=6) == "-DRUN=2"
    assert {run(inputs=0, **{name: 1}) for name in OUTPUTS[1:]} == {run(7, inputs=0)} == {"-DRUN=1"}
