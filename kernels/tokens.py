"""`tokens`: records of T + 1 token ids into inputs, targets, positions and document numbers (tokens.cu).

Law: `tokens_reference` is the truth, and the kernel equals it in every variant: there are integers only.

What a separator means. It belongs to the document that it ends. After it positions restart at 0 and the next document
begins. Where it is the input, the target would be the first token of another document and is `ignore_index` instead, at
the end of a row as well. So a run of separators is a run of documents of one token. Beside others:

- Megatron-LM: positions are those of `reset_position_ids`, documents the blocks of `reset_attention_mask`, ignored
  targets the zeros of `eod_mask_loss`; these outputs are all three at once.
- nanoGPT: no separator. Every target counts, and positions run through the row.
- torchtitan: documents are those of its document mask, and positions restart as it takes them. It trains on the target
  after an EOS: for that, ask for inputs and targets without a separator, in a call of their own.
- Hugging Face: positions are the `position_ids` of packed sequences, and the first token of a document is no target, as
  in `DataCollatorWithFlattening`. Models shift its `labels`; these targets are shifted already, so pass them as
  `shift_labels` or compute the loss from the logits.
- Attention of variable length: a document starts wherever positions are 0. For the rows laid end to end, `cu_seqlens`
  is `F.pad((positions.flatten() == 0).nonzero().flatten().int(), (0, 1), value=positions.numel())`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dali_feed.kernels import _module
from dali_feed.kernels._module import DeviceArray, Launch, launch
from dali_feed.kernels._rules import COUNT_LIMIT, Rules

__all__ = ["OUTPUTS", "TokenBatch", "bytes_moved", "prepare", "scratch_size", "tokens", "tokens_reference"]

# What is written, by name: the type that its memory must say, and its bytes.
_OUTPUTS = {"inputs": ("<i8", 8), "targets": ("<i8", 8), "positions": ("<i8", 8), "documents": ("<i4", 4)}
OUTPUTS = tuple(_OUTPUTS)
_LOOK_BACK = {"positions", "documents"}  # what needs the separators before a token
_TOKENS = {"<u2": "uint16", "<u4": "uint32"}
_TILE = 256  # tokens of a row that a warp does
_WORDS = _TILE // 32  # of marks in a tile, one bit per token
_TILES_IN_BLOCK = 8
_RULES = Rules("tokens")


class TokenBatch(NamedTuple):
    """What `tokens` can write, all (N, T): int64, and int32 for documents."""

    inputs: npt.NDArray[np.int64]
    targets: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    documents: npt.NDArray[np.int32]


def tokens(  # noqa: PLR0913 - what the op does, one keyword each
    records: object,
    *,
    inputs: object = None,
    targets: object = None,
    positions: object = None,
    documents: object = None,
    separator: int | None = None,
    ignore_index: int = -100,
    scratch: object = None,
    stream: object = None,
) -> None:
    """Write the outputs that are given: one launch, or two for positions and documents after a separator; no wait.

    Arrays are anything on one GPU with `__cuda_array_interface__` (CuPy, torch, ...), N, T >= 1:

    - `records`: uint16 or uint32 (N, T + 1), rows of neighbouring tokens. Rows may lie apart, or overlap: T + 1 tokens
      every T cut a long stream. Bytes (N, 2 * (T + 1)) are viewed by the caller: `records.view(torch.uint16)`.
    - `inputs`: int64 (N, T), C contiguous, as all outputs: `records[:, :-1]`.
    - `targets`: int64: `records[:, 1:]`, and `ignore_index` where the input is `separator`.
    - `positions`: int64: the place of the input inside its document, from 0.
    - `documents`: int32: the number of the document inside the row, from 0. At least one output is given. None may
      overlap another array.
    - `separator`: the token id that ends a document, or None: then a row is one document, all targets are kept.
    - `ignore_index`: -2^31 .. 2^31 - 1.
    - `scratch`: int32, at least `scratch_size(records.shape)` elements in a row at a border of 16 bytes, for positions
      and documents after a separator; ignored otherwise. Its values do not matter. None takes it from CuPy's
      allocator under the launch's stream, and gives it back there, so only later work of that stream can get the
      same memory. Give one per stream where nothing may be allocated, such as inside a CUDA graph.
    - `stream`: a cudaStream_t as an int, a CuPy or torch stream; None is CuPy's current stream (from torch, pass
      `torch.cuda.current_stream()`). The caller orders it after the work that made the records.

    Raises ConfigError for an argument that breaks one of these rules, EngineError if a kernel cannot be run.
    """
    given = {"inputs": inputs, "targets": targets, "positions": positions, "documents": documents}
    task = _checked(records, given, separator, ignore_index)
    if task.looks_back and scratch is None:
        _launch_in_own_scratch(task, stream)
        return
    for job in task.launches(_scratch_pointer(scratch, task)):
        launch(job, stream=stream)


def prepare(
    records: object,
    *,
    inputs: object = None,
    targets: object = None,
    positions: object = None,
    documents: object = None,
    separator: int | None = None,
    ignore_index: int = -100,
    scratch: object = None,
) -> tuple[Launch, ...]:
    """Check the arguments of `tokens` and return the launches they make, to be run in order on one stream.

    Pure: it looks at no memory and at no device, so `scratch` must be given where it is needed.
    """
    given = {"inputs": inputs, "targets": targets, "positions": positions, "documents": documents}
    task = _checked(records, given, separator, ignore_index)
    return task.launches(_scratch_pointer(scratch, task))


def tokens_reference(
    records: npt.NDArray[Any], *, separator: int | None = None, ignore_index: int = -100
) -> TokenBatch:
    """The same on the host, all four at once: (N, T + 1) uint16 or uint32 in."""
    if records.dtype.str not in _TOKENS or records.ndim != 2 or records.shape[0] < 1 or records.shape[1] < 2:
        _RULES.refuse("records", "must be uint16 or uint32 (N, T + 1), N, T >= 1", f"{records.dtype} {records.shape}")
    separator, ignore_index = _whole_numbers(separator, ignore_index, records.dtype.itemsize)
    wide = records.astype(np.int64)
    inputs, targets = np.ascontiguousarray(wide[:, :-1]), np.ascontiguousarray(wide[:, 1:])
    ends = np.zeros(inputs.shape, bool) if separator is None else inputs == separator
    places = np.broadcast_to(np.arange(inputs.shape[1]), inputs.shape)
    starts = np.zeros(inputs.shape, np.int64)  # of the document that each token is in
    starts[:, 1:] = np.maximum.accumulate(np.where(ends, places + 1, 0), axis=1)[:, :-1]
    return TokenBatch(
        inputs=inputs,
        targets=np.where(ends, ignore_index, targets),
        positions=places - starts,
        documents=(ends.cumsum(axis=1) - ends).astype(np.int32),
    )


def scratch_size(shape: Sequence[int]) -> int:
    """How many int32 elements of scratch memory records of `shape` (N, T + 1) need: a bit per token, rows padded."""
    return int(shape[0]) * -(-(int(shape[1]) - 1) // _TILE) * _WORDS


def bytes_moved(
    shape: Sequence[int], dtype: str, outputs: Collection[str] = OUTPUTS, *, separator: int | None = None
) -> int:
    """Bytes that `tokens` reads and writes for records of `shape` (N, T + 1) and `dtype`, and the named outputs.

    What a launch reads twice comes from the cache and counts once: a token as input and target, the marks of a row.
    """
    rows, length = int(shape[0]), int(shape[1]) - 1
    size = np.dtype(dtype).itemsize
    total = rows * length * sum(_OUTPUTS[name][1] for name in outputs)
    if {"inputs", "targets"} & set(outputs):
        total += rows * (length + 1) * size
    if separator is not None and _LOOK_BACK & set(outputs):
        total += rows * length * size + 2 * 4 * scratch_size(shape)
    return total


@dataclass(frozen=True, slots=True)
class _Task:
    """Checked arguments: all of the launches but the scratch memory."""

    typestr: str
    span: DeviceArray  # all records, from the first row's start to the last row's end
    rows: int
    length: int  # T
    pitch: int  # tokens from row to row
    outputs: Mapping[str, DeviceArray]
    separator: int | None
    ignore_index: int

    @property
    def looks_back(self) -> bool:
        return self.separator is not None and bool(_LOOK_BACK & set(self.outputs))

    @property
    def scratch_size(self) -> int:
        return scratch_size((self.rows, self.length + 1))

    def launches(self, scratch: int) -> tuple[Launch, ...]:
        """Both, or the second alone; where it is alone `scratch` is 0."""
        aligned = all(array.pointer % (2 * array.itemsize) == 0 for array in self.outputs.values())
        run = 2 if self.length % 2 == 0 and aligned else 1
        ends = np.uint32(self.separator or 0).astype(np.int32)  # the same bits
        read = (np.uint64(self.span.pointer), np.uint64(scratch))
        sizes = tuple(np.int32(size) for size in (self.rows, self.length, self.pitch))
        written = {name: array.pointer for name, array in self.outputs.items()}
        memory = {"records": self.span.pointer} | ({"scratch": scratch} if scratch else {})
        write = self._launch(
            ("-DPHASE_WRITE", f"-DRUN={run}"),
            (
                *read,
                *(np.uint64(written.get(name, 0)) for name in OUTPUTS),
                *(*sizes, ends, np.int32(self.separator is not None), np.int32(self.ignore_index)),
            ),
            memory | written,
        )
        if not self.looks_back:
            return (write,)
        return self._launch(("-DPHASE_MARK",), (*read, *sizes, ends), memory), write

    def _launch(self, phase: tuple[str, ...], arguments: tuple[Any, ...], pointers: Mapping[str, int]) -> Launch:
        tiles = self.rows * -(-self.length // _TILE)
        return Launch(
            kernel="tokens",
            options=(f"-DTOKEN_{_TOKENS[self.typestr].upper()}", *phase),
            grid=(-(-tiles // _TILES_IN_BLOCK), 1, 1),
            block=(32, _TILES_IN_BLOCK, 1),
            arguments=arguments,
            pointers=pointers,
        )


def _checked(records: object, given: Mapping[str, object], separator: int | None, ignore_index: int) -> _Task:
    source = _RULES.array("records", records, tuple(_TOKENS))
    if len(source.shape) != 2 or source.shape[0] < 1 or source.shape[1] < 2:
        _RULES.refuse("records", "must have shape (N, T + 1) with N, T >= 1", source.shape)
    pitch = _pitch(source)
    rows, length = source.shape[0], source.shape[1] - 1
    if max(length + 1, pitch, rows * -(-length // _TILE)) >= COUNT_LIMIT:
        counts = f"tokens in a row, tokens from one row to the next, and blocks of {_TILE} tokens in all"
        rule = f"must have fewer than {COUNT_LIMIT:,} {counts}"
        _RULES.refuse("records", rule, f"shape {source.shape}, strides {source.strides} bytes")

    span = dataclasses.replace(source, shape=((rows - 1) * pitch + length + 1,), strides=(source.itemsize,))
    outputs: dict[str, DeviceArray] = {}
    for name, array in given.items():
        if array is None:
            continue
        target = _RULES.array(name, array, (_OUTPUTS[name][0],))
        if target.shape != (rows, length):
            _RULES.refuse(name, f"must have shape {(rows, length)}, as records have {source.shape}", target.shape)
        _RULES.dense(name, target)
        _RULES.writable(name, target, ("records", span), *outputs.items())
        outputs[name] = target
    if not outputs:
        _RULES.refuse("outputs", f"must be at least one of {', '.join(OUTPUTS)}", "none")
    separator, ignore_index = _whole_numbers(separator, ignore_index, source.itemsize)
    return _Task(source.typestr, span, rows, length, pitch, outputs, separator, ignore_index)


def _pitch(records: DeviceArray) -> int:
    """Tokens from the start of a row to the start of the next."""
    rows, columns = records.shape
    step = columns * records.itemsize if rows == 1 else records.strides[0]
    if records.strides[1] != records.itemsize or step <= 0 or step % records.itemsize:
        rule = "must have the tokens of a row side by side, and rows a whole number of tokens apart"
        _RULES.refuse("records", rule, f"shape {records.shape}, strides {records.strides} bytes")
    return step // records.itemsize


def _scratch_pointer(scratch: object, task: _Task) -> int:
    """The checked memory's address, 0 where none is needed."""
    if not task.looks_back:
        return 0
    if scratch is None:
        rule = f"must be int32 of {task.scratch_size} elements for positions or documents with a separator"
        _RULES.refuse("scratch", rule, "None")
    found = _RULES.array("scratch", scratch, ("<i4",))
    if found.nbytes < 4 * task.scratch_size:
        _RULES.refuse("scratch", f"must have at least {task.scratch_size} elements", found.shape)
    if found.pointer % 16:
        _RULES.refuse("scratch", "must begin at a multiple of 16 bytes", f"{found.pointer:#x}")
    _RULES.dense("scratch", found)
    _RULES.writable("scratch", found, ("records", task.span), *task.outputs.items())
    return found.pointer


def _launch_in_own_scratch(task: _Task, stream: object) -> None:
    """Launch with memory of CuPy's allocator, taken and given back under the stream that uses it."""
    handle = None if stream is None else _module.stream_handle("tokens", stream)
    device = _module._device_of(task.launches(scratch=0)[-1])
    import cupy

    with cupy.cuda.Device(device), _current(handle):
        room = cupy.empty(task.scratch_size, cupy.int32)
        for job in task.launches(int(room.data.ptr)):
            launch(job, stream=stream)
        del room  # an asynchronous pool frees on the current stream, once its own object of the stream is gone


def _current(handle: int | None) -> AbstractContextManager[Any]:
    """Makes the stream CuPy's current one; None changes nothing."""
    if handle is None:
        return nullcontext()
    import cupy

    if hasattr(cupy.cuda.Stream, "from_external"):  # CuPy 14, where the other one warns
        found: AbstractContextManager[Any] = cupy.cuda.Stream.from_external(_Foreign(handle))
    else:
        found = cupy.cuda.ExternalStream(handle)
    return found


@dataclass(frozen=True, slots=True)
class _Foreign:
    """A stream as the CUDA stream protocol spells it."""

    handle: int

    def __cuda_stream__(self) -> tuple[int, int]:
        """Version of the protocol and handle."""
        return 0, self.handle


def _whole_numbers(separator: object, ignore_index: object, itemsize: int) -> tuple[int | None, int]:
    ends = None if separator is None else _whole("separator", separator, 0, 2 ** (8 * itemsize) - 1, " or None")
    return ends, _whole("ignore_index", ignore_index, -COUNT_LIMIT, COUNT_LIMIT - 1)


def _whole(name: str, value: object, low: int, high: int, also: str = "") -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not low <= int(value) <= high:
        _RULES.refuse(name, f"must be a whole number from {low} to {high}{also}", repr(value))
    return int(value)
