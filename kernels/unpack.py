"""`unpack`: records that hold plain pixels of 8, 10, 12 or 16 bits, to images, in one launch (unpack.cu).

Law: each float32 operation is rounded once, whatever the architecture: `unpack_reference` in tests/kit/unpacked.py
says what is right, and the kernel equals it bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dali_feed.checks import whole
from dali_feed.kernels.arguments import COUNT_LIMIT, GRID_Y, Factors, Rules
from dali_feed.kernels.launch import Launch, Launcher, device_array

_RULES = Rules("unpack")
_MAX_CHANNELS = 4
_THREADS = 256


@Launcher
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
) -> Launch:
    """Write the images that `records` hold into `out`: one launch, no allocation, no copy, no wait.

    Arrays and `stream` as in `finish`:

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
    - `scale`, `bias`: one finite number or one per channel, on the host: v * scale + bias in float32, the product
      rounded and then the sum.
    - `layout`: "NCHW" or "NHWC", the order in memory; needed only where H, W and C are all the same.

    Raises ConfigError for an argument that breaks one of these rules, EngineError if the kernel cannot be run.
    """
    if not isinstance(shape, Sequence) or len(shape) != 3:
        _RULES.refuse("shape", "must be (height, width, channels)", repr(shape))
    height, width, channels = (whole(f"unpack: shape, {(*shape,)}", size, 1) for size in shape)
    if channels > _MAX_CHANNELS:
        rule = f"must have at most {_MAX_CHANNELS} channels (read planes of more channels as more records or rows)"
        _RULES.refuse("shape", rule, repr(shape))
    _RULES.one_of("bits", bits, (8, 10, 12, 16))
    _RULES.one_of("order", order, ("interleaved", "planar"))
    _RULES.one_of("endian", endian, ("little", "big"))
    offset = whole("unpack: offset", offset, 0)

    source = _RULES.array("records", records, ("|u1",))
    if len(source.shape) != 2 or source.shape[0] < 1:
        _RULES.refuse("records", "must have shape (N, bytes) with N >= 1", source.shape)
    samples, length = source.shape
    pixels, payload = height * width, -(-height * width * channels * bits // 8)
    if length < offset + payload:
        rule = f"must have {offset} + {payload} bytes each, by offset, shape and bits"
        _RULES.refuse("records", rule, length)
    if (length != 1 and source.strides[1] != 1) or (samples != 1 and source.strides[0] < 0):
        rule = "must have the bytes of a record side by side, and each record after the one before it"
        _RULES.refuse("records", rule, f"shape {source.shape}, strides {source.strides} bytes")
    pitch = source.strides[0] if samples != 1 else 0
    if max(samples, pitch, payload) >= COUNT_LIMIT:
        rule = f"must be fewer than {COUNT_LIMIT:,}, of fewer bytes than that each"
        _RULES.refuse("records", rule, f"{samples} records of {payload} bytes, {pitch} bytes from one to the next")

    target = device_array("unpack", "out", out)
    kind = _RULES.kind("out", target, dtype)
    last = _RULES.channels_last(target, (samples, channels, height, width), layout, of="records")
    span = replace(source, shape=((samples - 1) * pitch + length,), strides=(1,))
    _RULES.writable("out", target, ("records", span))
    if kind == "uint8" and bits != 8:
        _RULES.refuse("bits", "must be 8 if out is uint8", bits)
    factors = _RULES.factors(kind, scale, bias, channels)

    across = min(_THREADS, 1 << (pixels - 1).bit_length())  # threads beside an image; the others do more records
    sizes = {"samples": samples, "pixels": pixels, "pitch": pitch, "channels": channels, "bits": bits}
    sizes |= {"msb_first": endian == "big", "planar": order == "planar", "channels_last": last}
    return Launch(
        kernel="unpack",
        options=(f"-DOUT_{kind.upper()}",),
        grid=(-(-pixels // across), min(-(-samples * across // _THREADS), GRID_Y), 1),
        block=(across, _THREADS // across, 1),
        arguments={"records": np.uint64(source.pointer + offset), "out": np.uint64(target.pointer)}
        | {name: np.int32(size) for name, size in sizes.items()}
        | {f"scale_{c}": factors[0][min(c, channels - 1)] for c in range(_MAX_CHANNELS)}
        | {f"bias_{c}": factors[1][min(c, channels - 1)] for c in range(_MAX_CHANNELS)},
        stream=stream,
    )
