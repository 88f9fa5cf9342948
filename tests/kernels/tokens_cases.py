"""What the tests of tokens share: records of any layout, memory for the outputs, and the slow way in plain Python."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from kernels_host import OnDevice

from dali_feed.kernels._module import Launch
from dali_feed.kernels.tokens import OUTPUTS, TokenBatch, prepare, scratch_size

DTYPES = ("uint16", "uint32")
MEMORY: dict[str, Any] = {"inputs": np.int64, "targets": np.int64, "positions": np.int64, "documents": np.int32}
PHASES = (("-DPHASE_MARK",), ("-DPHASE_WRITE", "-DRUN=1"), ("-DPHASE_WRITE", "-DRUN=2"))
VARIANTS = tuple((f"-DTOKEN_{dtype.upper()}", *phase) for dtype, phase in itertools.product(DTYPES, PHASES))
GPT2_END = 50256
Array = npt.NDArray[Any]


def random_records(
    dtype: str, shape: tuple[int, int], *, separator: int = GPT2_END, share: float = 0.0, seed: int = 0
) -> Array:
    """Ids from the whole range of the type, a `share` of them the separator."""
    rng = np.random.default_rng(seed)
    records = rng.integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)
    records[rng.random(shape) < share] = separator
    return records


def in_rows(records: Array, pitch: int, offset: int = 0) -> Array:
    """The same rows, one every `pitch` tokens, `offset` tokens behind a 64-byte border.

    With a pitch below the row's length rows overlap, and a token is what the last row that has it says.
    """
    rows, columns = records.shape
    size = records.itemsize
    room = np.zeros((rows * max(pitch, columns) + offset) * size + 64, np.uint8)
    start = -room.ctypes.data % 64 + offset * size
    flat = room[start : start + ((rows - 1) * pitch + columns) * size].view(records.dtype)
    placed = np.lib.stride_tricks.as_strided(flat, records.shape, (pitch * size, size))
    for row, tokens in zip(placed, records, strict=True):
        row[...] = tokens
    return placed


def flat_memory(records: Array) -> Array:
    """All the memory from the first row's start to the last row's end, and no byte more."""
    rows, columns = records.shape
    count = (rows - 1) * (records.strides[0] // records.itemsize) + columns
    return np.lib.stride_tricks.as_strided(records, (count,), (records.itemsize,))


def outputs_for(records: Array, names: Collection[str] = OUTPUTS, offset: int = 0) -> dict[str, Array]:
    """Memory for the named outputs, each `offset` of its elements behind a 64-byte border, full of a pattern."""
    shape = (records.shape[0], records.shape[1] - 1)
    found = {}
    for name in names:
        dtype = np.dtype(MEMORY[name])
        room = np.full((shape[0] * shape[1] + offset) * dtype.itemsize + 64, 0xA5, np.uint8)
        start = -room.ctypes.data % 64 + offset * dtype.itemsize
        found[name] = room[start : start + shape[0] * shape[1] * dtype.itemsize].view(dtype).reshape(shape)
    return found


def scratch_for(records: Array) -> Array:
    """Scratch memory of exactly the size that is needed, full of marks that mean nothing."""
    room = np.full(4 * scratch_size(records.shape) + 64, 0xA5, np.uint8)
    start = -room.ctypes.data % 64
    return room[start : start + 4 * scratch_size(records.shape)].view(np.int32)


def prepared(
    records: Array, outputs: Mapping[str, Array], scratch: Array | None = None, **options: Any
) -> tuple[Launch, ...]:
    """The launches for host arrays, which the caller has to hold until they have run."""
    arrays: dict[str, Any] = {name: OnDevice(array) for name, array in outputs.items()}
    return prepare(OnDevice(records), **arrays, scratch=None if scratch is None else OnDevice(scratch), **options)


def assert_outputs(found: Mapping[str, Array], expected: TokenBatch) -> None:
    """Each output that was asked for is the reference's, in type and value."""
    for name, array in found.items():
        wanted = getattr(expected, name)
        assert array.dtype == wanted.dtype, name
        np.testing.assert_array_equal(array, wanted, name)


def by_hand(records: Array, separator: int | None, ignore_index: int) -> TokenBatch:
    """Token by token, as a sentence would say it."""
    lines: dict[str, list[list[int]]] = {name: [] for name in OUTPUTS}
    for row in records.tolist():
        line: dict[str, list[int]] = {name: [] for name in OUTPUTS}
        position = document = 0
        for token, following in itertools.pairwise(row):
            line["inputs"].append(token)
            line["targets"].append(ignore_index if token == separator else following)
            line["positions"].append(position)
            line["documents"].append(document)
            position += 1
            if token == separator:
                position = 0
                document += 1
        for name in OUTPUTS:
            lines[name].append(line[name])
    return TokenBatch(**{name: np.array(lines[name], MEMORY[name]) for name in OUTPUTS})
