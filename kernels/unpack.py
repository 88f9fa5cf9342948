"""`unpack`: records that hold plain pixels of 8, 10, 12 or 16 bits, to images, in one launch (unpack.cu).

Law: `unpack_reference` is the truth. It takes the bits apart with NumPy and does the same float32 operations, each
rounded once, and the kernel equals it bit for bit, in every variant and on every architecture.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dali_feed.kernels._numbers import cast, fma
from dali_feed.kernels.arguments import COUNT_LIMIT, GRID_Y, ITEMSIZE, LAYOUTS, Factors, Rules
from dali_feed.kernels.launch import Launch, device_array, launch

__all__ = ["prepare", "unpack", "unpack_reference"]

_RULES = Rules("unpack")
_ORDERS = ("interleaved", "planar")
_ENDIANS = ("little", "big")
_BITS = (8, 10, 12, 16)
_MAX_CHANNELS = 4
_THREADS = 256
_WARP = 32


@dataclass(frozen=True, slots=True)
class _Format:
    """What a record holds, checked."""

    height: int
    width: int
    channels: int
    bits: int
    planar: bool
    msb_first: bool
    offset: int

    @property
    def pixels(self) -> int:
        return self.height * self.width

    @property
    def payload(self) -> int:
        """Bytes that the elements fill, the last of them perhaps in part."""
        return -(-self.pixels * self.channels * self.bits // 8)


def unpack(  # noqa: PLR0913 - what the op does, one keyword each
    records: object,
    out: object,
    *,
    shape: Sequence[int],
    bits: int = 8,
    order: str = "interleaved",
    endian: str = "little",
    offset: int = 0,
    scale: Factors = None,
    bias: Factors = None,
    dtype: str | None = None,
    layout: str | None = None,
    stream: object = None,
) -> None:
    """Write the images that `records` hold into `out`: one launch, no allocation, no copy, no wait.

    Arrays are anything on the current GPU with `__cuda_array_interface__` (CuPy, torch, ...), N, H, W >= 1:

    - `records`: uint8 (N, bytes), a record's bytes side by side, records at any pitch below 2 GiB.
    - `out`: float32, float16, bfloat16 or uint8; (N, C, H, W), dense planes or channels last, or dense (N, H, W, C).
      It must not overlap `records`. bfloat16 memory may come as 16-bit integers with `dtype="bfloat16"`. uint8 is for
      elements of 8 bits without scale and bias.
    - `shape`: (H, W, C) of a record, C from 1 to 4. More channels plane by plane can be read as more records or rows.
    - `bits`: 8, 10, 12 or 16 per element, without gaps, also between rows and between planes.
    - `order`: "interleaved", pixel by pixel as (H, W, C), or "planar", plane by plane as (C, H, W).
    - `endian`: of 16 bits the order of the bytes; of 10 and 12 the order of the bits in the stream: "little" fills
      each byte from its least significant bit (GigE Vision's Mono10p and Mono12p), "big" from its most significant.
    - `offset`: bytes of a header to skip in each record.
    - `scale`, `bias`: one finite number or one per channel, on the host: v * scale + bias in float32, rounded once.
    - `layout`: "NCHW" or "NHWC", the order in memory; needed only where H, W and C are all the same.
    - `stream`: a cudaStream_t as an int, a CuPy or torch stream; None is CuPy's current stream (from torch, pass
      `torch.cuda.current_stream()`). The caller orders it after the work that made the inputs.

    Raises ConfigError for an argument that breaks one of these rules, EngineError if the kernel cannot be run.
    """
    job = prepare(
        records,
        out,
        shape=shape,
        bits=bits,
        order=order,
        endian=endian,
        offset=offset,
        scale=scale,
        bias=bias,
        dtype=dtype,
        layout=layout,
    )
    launch(job, stream=stream)


def prepare(  # noqa: PLR0913 - the same as unpack
    records: object,
    out: object,
    *,
    shape: Sequence[int],
    bits: int = 8,
    order: str = "interleaved",
    endian: str = "little",
    offset: int = 0,
    scale: Factors = None,
    bias: Factors = None,
    dtype: str | None = None,
    layout: str | None = None,
) -> Launch:
    """Check the arguments of `unpack` and return the launch they make. Pure: it looks at no memory and at no device."""
    form = _format(shape, bits, order, endian, offset)
    source = _RULES.array("records", records, ("|u1",))
    _must_hold(source.shape, form)
    samples, length = source.shape
    if (length != 1 and source.strides[1] != 1) or (samples != 1 and source.strides[0] < 0):
        rule = "must have the bytes of a record side by side, and each record after the one before it"
        _RULES.refuse("records", rule, f"shape {source.shape}, strides {source.strides} bytes")
    pitch = source.strides[0] if samples != 1 else 0
    if max(samples, pitch, form.payload) >= COUNT_LIMIT:
        rule = f"must be fewer than {COUNT_LIMIT:,}, of fewer bytes than that each"
        _RULES.refuse("records", rule, f"{samples} records of {form.payload} bytes, {pitch} bytes from one to the next")

    target = device_array("unpack", "out", out)
    kind = _RULES.kind("out", target, dtype)
    last = _RULES.channels_last(target, (samples, form.channels, form.height, form.width), layout, of="records")
    last = last and form.channels > 1  # of one channel both layouts are the same
    span = dataclasses.replace(source, shape=((samples - 1) * pitch + length,), strides=(1,))
    _RULES.writable("out", target, ("records", span))
    scales, biases = _factors(kind, form, scale, bias)

    block = _block(form.pixels)
    return Launch(
        kernel="unpack",
        options=(
            f"-DOUT_{kind.upper()}",
            f"-DBITS={form.bits}",
            f"-DMSB_FIRST={int(form.msb_first)}",
            f"-DCHANNELS={form.channels}",
            f"-DPLANAR_IN={int(form.planar)}",
            f"-DCHANNELS_LAST={int(last)}",
        ),
        grid=(-(-form.pixels // block[0]), min(-(-samples // block[1]), GRID_Y), 1),
        block=block,
        arguments=(
            np.uint64(source.pointer + form.offset),
            np.uint64(target.pointer),
            *(np.int32(size) for size in (samples, form.pixels, pitch)),
            *scales,
            *biases,
        ),
        pointers={"records": source.pointer, "out": target.pointer},
    )


def unpack_reference(  # noqa: PLR0913 - the same as unpack
    records: npt.NDArray[np.uint8],
    *,
    shape: Sequence[int],
    bits: int = 8,
    order: str = "interleaved",
    endian: str = "little",
    offset: int = 0,
    scale: Factors = None,
    bias: Factors = None,
    dtype: str = "float32",
    layout: str = "NCHW",
) -> npt.NDArray[Any]:
    """The same on the host: (N, bytes) uint8 in, (N, C, H, W) or (N, H, W, C) out, bfloat16 as its bits in uint16."""
    if dtype not in ITEMSIZE:
        _RULES.refuse("dtype", f"must be one of {', '.join(ITEMSIZE)}", repr(dtype))
    if layout not in LAYOUTS:
        _RULES.refuse("layout", f"must be one of {', '.join(LAYOUTS)}", repr(layout))
    form = _format(shape, bits, order, endian, offset)
    _must_hold(records.shape, form)
    scales, biases = _factors(dtype, form, scale, bias)
    payload = records[:, form.offset : form.offset + form.payload]
    stream = np.unpackbits(
        payload, axis=1, count=form.pixels * form.channels * form.bits, bitorder="big" if form.msb_first else "little"
    )
    digits = stream.reshape(len(records), -1, form.bits)
    weights = 1 << np.arange(form.bits, dtype=np.uint16)
    value = (digits @ (weights[::-1] if form.msb_first else weights)).astype(np.float32)
    if form.planar:
        value = value.reshape(-1, form.channels, form.height, form.width).transpose(0, 2, 3, 1)
    value = value.reshape(-1, form.height, form.width, form.channels)
    if dtype != "uint8":
        value = fma(value, np.array(scales[: form.channels]), np.array(biases[: form.channels]))
    if layout == "NCHW":
        value = value.transpose(0, 3, 1, 2)
    return np.ascontiguousarray(cast(value, dtype))


def _format(shape: Sequence[int], bits: int, order: str, endian: str, offset: int) -> _Format:
    try:
        sizes = [operator.index(size) for size in shape]
    except TypeError as error:
        _RULES.refuse("shape", "must be (height, width, channels)", repr(shape), error)
    if len(sizes) != 3 or min(sizes) < 1:
        _RULES.refuse("shape", "must be (height, width, channels), each at least 1", repr(shape))
    if sizes[2] > _MAX_CHANNELS:
        rule = f"must have at most {_MAX_CHANNELS} channels (read planes of more channels as more records or rows)"
        _RULES.refuse("shape", rule, repr(shape))
    for name, value, allowed in (("bits", bits, _BITS), ("order", order, _ORDERS), ("endian", endian, _ENDIANS)):
        if value not in allowed:
            _RULES.refuse(name, f"must be one of {', '.join(map(str, allowed))}", repr(value))
    try:
        skipped = operator.index(offset)
    except TypeError as error:
        _RULES.refuse("offset", "must be a whole number of bytes", repr(offset), error)
    if skipped < 0:
        _RULES.refuse("offset", "must be 0 or more bytes", repr(offset))
    height, width, channels = sizes
    # Of one channel both orders are the same, and of 8 bits both ends.
    planar, msb_first = order == "planar" and channels > 1, endian == "big" and bits > 8
    return _Format(height, width, channels, int(bits), planar, msb_first, skipped)


def _must_hold(shape: tuple[int, ...], form: _Format) -> None:
    if len(shape) != 2 or shape[0] < 1:
        _RULES.refuse("records", "must have shape (N, bytes) with N >= 1", shape)
    if shape[1] < form.offset + form.payload:
        _RULES.refuse(
            "records", f"must have {form.offset} + {form.payload} bytes each, by offset, shape and bits", shape[1]
        )


def _block(pixels: int) -> tuple[int, int, int]:
    """256 threads: as wide as leaves few without work beside an image, as high as that leaves room for more records.

    Not narrower than a warp, whose threads should read neighbouring bytes, unless the image is.
    """
    least = min(_WARP, 1 << (pixels - 1).bit_length())
    widths = [_THREADS >> i for i in range(9) if _THREADS >> i >= least]
    padded = {width: -(-pixels // width) * width for width in widths}
    width = next(width for width in widths if 16 * padded[width] <= 17 * min(padded.values()))
    return width, _THREADS // width, 1


def _factors(kind: str, form: _Format, scale: Factors, bias: Factors) -> tuple[list[np.float32], list[np.float32]]:
    """Four of each, for the kernel takes as many whatever the channels."""
    if kind == "uint8" and form.bits != 8:
        _RULES.refuse("bits", "must be 8 if out is uint8", form.bits)
    if kind == "uint8" and not (scale is None and bias is None):
        _RULES.refuse("scale and bias", "must be None if out is uint8", f"{scale} and {bias}")
    both = []
    for name, given, neutral in (("scale", scale, 1.0), ("bias", bias, 0.0)):
        numbers = _RULES.numbers(name, given, neutral, form.channels)
        both.append([*numbers, *(np.float32(neutral),) * (_MAX_CHANNELS - form.channels)])
    return both[0], both[1]
