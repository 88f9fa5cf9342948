"""`mix`: MixUp and CutMix of a finished batch, in one launch (mix.cu). `finish` does it without a pass of its own.

Law: `mix_reference` is the truth: float32 products and a sum, each rounded once, then one rounding to the type. The
kernel equals it bit for bit, in every variant and on every architecture, but that a NaN is any NaN. With one weight
for all and each sample's neighbour as its partner these are torchvision's v2.MixUp, and its bits in float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dali_feed.kernels._module import Launch, launch
from dali_feed.kernels._numbers import cast
from dali_feed.kernels._rules import COUNT_LIMIT, GRID_Y, ITEMSIZE, Rules

__all__ = ["Mix", "bytes_moved", "mix", "mix_reference", "mixed_values", "pointers", "prepare", "within"]

_KINDS = ("float32", "float16", "bfloat16")
_BLOCK = 256
_VECTOR = 16  # bytes
_RULES = Rules("mix")


@dataclass(frozen=True, slots=True)
class Mix:
    """What each sample is mixed with, in arrays on the GPU that the samples are on (NumPy's for a reference).

    partner  int32 (N,): the sample mixed in, of the same batch; a number outside the batch leaves the sample as it is
    weight   float32 (N,), 0..1: of the sample itself, the rest is the partner's (MixUp). None: 1
    box      int32 (N, 4): y, x, height, width where the partner shows instead (CutMix). None: nowhere

    `dali_feed.transforms.mixing` draws them.
    """

    partner: Any
    weight: Any = None
    box: Any = None


def mix(
    images: object,
    out: object,
    mixing: Mix,
    *,
    dtype: str | None = None,
    layout: str | None = None,
    stream: object = None,
) -> None:
    """Write the mixed batch into `out`: one launch, no allocation, no copy, no wait.

    Arrays are anything on one GPU with `__cuda_array_interface__` (CuPy, torch, ...), N, C, H, W >= 1:

    - `images`, `out`: float32, float16 or bfloat16, of one type, shape and order of memory: (N, C, H, W), dense planes
      or channels last, or dense (N, H, W, C) with `layout="NHWC"`. They must not overlap: a partner is read after it
      may have been written. bfloat16 memory may come as 16-bit integers with `dtype="bfloat16"`.
    - `mixing`: a `Mix` with arrays of the GPU.
    - `layout`: "NHWC" says that the last of four dimensions is the channel; None or "NCHW" that the second is.
    - `stream`: as in `finish`.

    Raises ConfigError for an argument that breaks one of these rules, EngineError if the kernel cannot be run.
    """
    launch(prepare(images, out, mixing, dtype=dtype, layout=layout), stream=stream)


def prepare(images: object, out: object, mixing: Mix, *, dtype: str | None = None, layout: str | None = None) -> Launch:
    """Check the arguments of `mix` and return the launch they make. Pure: it looks at no memory and at no device."""
    source = _RULES.array("images", images, ("<f4", "<f2", "|V2", "<u2", "<i2"))
    kind = _RULES.kind("images", source, dtype, _KINDS)
    if len(source.shape) != 4 or 0 in source.shape:
        _RULES.refuse("images", "must have shape (N, C, H, W) or (N, H, W, C), each at least 1", source.shape)
    if layout not in (None, "NCHW", "NHWC"):
        _RULES.refuse("layout", "must be one of NCHW, NHWC or None", repr(layout))
    target = _RULES.array("out", out, (source.typestr,))
    if target.shape != source.shape:
        _RULES.refuse("out", f"must have the shape of images, {source.shape}", target.shape)
    if layout == "NHWC":
        samples, height, width, channels = source.shape
    else:
        samples, channels, height, width = source.shape
    orders = (None,) if layout == "NHWC" else (None, (0, 2, 3, 1))
    lies = [order for order in orders if source.is_dense(order) and target.is_dense(order)]
    if not lies:
        found = f"strides {source.strides} and {target.strides} bytes"
        _RULES.refuse("images and out", "must be dense, both in planes or both channels last", found)
    last = layout == "NHWC" or lies[0] is not None
    _RULES.writable("out", target, ("images", source))
    elements = channels * height * width
    if max(elements, samples) >= COUNT_LIMIT:
        _RULES.refuse("images", f"must be fewer than {COUNT_LIMIT:,}, of fewer elements than that each", source.shape)
    partner, weight, box = pointers(_RULES, mixing, samples)

    vector = _VECTOR // source.itemsize
    wide = elements % vector == 0 and source.pointer % _VECTOR == 0 and target.pointer % _VECTOR == 0
    count = vector if wide else 1
    return Launch(
        kernel="mix",
        options=(f"-DOUT_{kind.upper()}", f"-DCHANNELS_LAST={int(last)}", f"-DELEMENTS={count}"),
        grid=(-(-elements // count // _BLOCK), min(samples, GRID_Y), 1),
        block=(_BLOCK, 1, 1),
        arguments=(
            *(np.uint64(array.pointer) for array in (source, target)),
            *(partner, weight, box),
            *(np.int32(size) for size in (samples, elements, height, width, channels)),
        ),
        pointers={
            name: int(pointer)
            for name, pointer in (
                ("images", source.pointer),
                ("out", target.pointer),
                ("mix.partner", partner),
                ("mix.weight", weight),
                ("mix.box", box),
            )
            if pointer
        },
    )


def pointers(rules: Rules, mixing: Mix | None, samples: int) -> tuple[Any, Any, Any]:
    """Pointers to partner, weight and box for so many samples; 0 for a missing one."""
    if mixing is None:
        return (np.uint64(0),) * 3
    if mixing.partner is None:
        rules.refuse("mix.partner", "must be an int32 array", "None")
    partner, _ = rules.parameter("mix.partner", mixing.partner, ("<i4",), (samples,))
    weight, _ = rules.parameter("mix.weight", mixing.weight, ("<f4",), (samples,))
    box, _ = rules.parameter("mix.box", mixing.box, ("<i4",), (samples, 4))
    return partner, weight, box


def mix_reference(
    images: npt.NDArray[Any], mixing: Mix, *, dtype: str = "float32", layout: str = "NCHW"
) -> npt.NDArray[Any]:
    """The same on the host, of C contiguous images in that layout; bfloat16 as its bits in uint16."""
    raw = images if layout == "NHWC" else images.transpose(0, 2, 3, 1)
    wide = np.left_shift(raw, 16, dtype=np.uint32).view(np.float32) if dtype == "bfloat16" else raw.astype(np.float32)
    out = cast(mixed_values(wide, mixing), dtype)
    return np.ascontiguousarray(out if layout == "NHWC" else out.transpose(0, 3, 1, 2))


def mixed_values(value: npt.NDArray[np.float32], mixing: Mix) -> npt.NDArray[np.float32]:
    """Samples (N, H, W, C) mixed with their partners in float32."""
    share, other = _shares(value, mixing), value[_partners(mixing, len(value))]
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        both = value * share + other * (np.float32(1) - share)
    mixed: npt.NDArray[np.float32] = np.where(share == 1, value, np.where(share == 0, other, both))
    return mixed


def _partners(mixing: Mix, samples: int) -> npt.NDArray[Any]:
    partner = np.asarray(mixing.partner)
    return np.where((partner < 0) | (partner >= samples), np.arange(samples), partner)


def _shares(value: npt.NDArray[Any], mixing: Mix) -> npt.NDArray[np.float32]:
    """The weight of each pixel's own sample: float32 (N, 1 or H, 1 or W, 1)."""
    share = np.ones((len(value), 1, 1, 1), np.float32)
    if mixing.weight is not None:
        share = np.asarray(mixing.weight, np.float32)[:, None, None, None]
    return share if mixing.box is None else np.where(within(mixing.box, value), np.float32(0), share)


def within(boxes: npt.NDArray[np.int32], value: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Whether each pixel of (N, H, W, C) lies in its sample's y, x, height, width: (N, H, W, 1)."""
    y, x = np.ogrid[: value.shape[1], : value.shape[2]]
    top, left, height, width = np.asarray(boxes, np.int64).T[:, :, None, None]
    inside: npt.NDArray[np.bool_] = (y >= top) & (y < top + height) & (x >= left) & (x < left + width)
    return inside[..., None]


def bytes_moved(shape: Sequence[int], dtype: str, *, mixed: float = 1.0) -> int:
    """Bytes that one launch reads and writes for a batch of `shape`.

    `mixed`: the share of the elements whose weight is not 1, for which a partner is read.
    """
    return round(math.prod(shape) * (2 + mixed) * ITEMSIZE[dtype])
