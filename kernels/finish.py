"""`finish`: flips, colour, normalisation, cast and layout of a decoded batch, in one launch (finish.cu).

Law: `finish_reference` is the truth. It does the same float32 operations in the same order in NumPy, each rounded once,
and the kernel equals it bit for bit, in every variant and on every architecture.

Beside torchvision's v2.ToDtype(float32, scale=True) and v2.Normalize with ImageNet's mean and std, over all 256 values
of the three channels: at most 7.2e-7 apart, which is 8 ulps where the result is 0.25 or more in size and up to 325 ulps
next to zero, where torchvision's subtraction cancels. From the exact value finish is at most 2.3e-7 away, torchvision
6.1e-7. Without Normalize (mean 0, std 1) the two are equal bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from dali_feed.errors import ConfigError
from dali_feed.kernels._module import DeviceArray, Launch, device_array, launch

__all__ = ["bytes_moved", "finish", "finish_reference", "normalize_factors", "prepare"]

_ITEMSIZE = {"float32": 4, "float16": 2, "bfloat16": 2, "uint8": 1}
# What memory of each output type may call itself: bfloat16 has no name of its own there, so it comes as torch and
# ml_dtypes spell it or as 16-bit integers.
_TYPESTRS = {"float32": ("<f4",), "float16": ("<f2",), "bfloat16": ("|V2", "<u2", "<i2"), "uint8": ("|u1",)}
_FROM_TYPESTR = {"<f4": "float32", "<f2": "float16", "|V2": "bfloat16", "|u1": "uint8"}
_LAYOUTS = ("NCHW", "NHWC")
_BLOCK = 256
_GRID_Y = 65535
_COUNT_LIMIT = 2**31  # the kernel counts samples, and pixels inside a plane, in 32 bits

Factors = float | Sequence[float] | None


def finish(  # noqa: PLR0913 - what the op does, one keyword each
    images: object,
    out: object,
    *,
    flip_x: object = None,
    flip_y: object = None,
    colour: object = None,
    scale: Factors = None,
    bias: Factors = None,
    dtype: str | None = None,
    layout: str | None = None,
    stream: object = None,
) -> None:
    """Write the finished batch into `out`: one launch, no allocation, no copy, no wait.

    Arrays are anything on one GPU with `__cuda_array_interface__` (CuPy, torch, ...), N, H, W >= 1:

    - `images`: uint8 (N, H, W, 3), C contiguous, 0..255.
    - `out`: float32, float16, bfloat16 or uint8; (N, 3, H, W), dense planes or channels last, or dense (N, H, W, 3).
      It must not overlap `images`. bfloat16 memory may come as 16-bit integers with `dtype="bfloat16"`.
    - `flip_x`, `flip_y`: int32, uint8 or bool (N,): not 0 mirrors the sample left-right, top-bottom.
    - `colour`: float32 (N, 3, 4) on 0..255 values: channel c becomes m[c] . (r, g, b, 1), clamped to 0..255. A sample
      with the identity passes unchanged.
    - `scale`, `bias`: three finite numbers or one, on the host: v * scale + bias, `normalize_factors` makes them.
      Not for uint8, which is rounded to the nearest value, ties to even.
    - `layout`: "NCHW" or "NHWC", the order in memory; only images of 3 x 3 pixels need it said.
    - `stream`: a cudaStream_t as an int, a CuPy or torch stream; None is CuPy's current stream (from torch, pass
      `torch.cuda.current_stream()`). The caller orders it after the work that made the inputs.

    Raises ConfigError for an argument that breaks one of these rules, EngineError if the kernel cannot be run.
    """
    job = prepare(
        images, out, flip_x=flip_x, flip_y=flip_y, colour=colour, scale=scale, bias=bias, dtype=dtype, layout=layout
    )
    launch(job, stream=stream)


def prepare(  # noqa: PLR0913 - the same as finish
    images: object,
    out: object,
    *,
    flip_x: object = None,
    flip_y: object = None,
    colour: object = None,
    scale: Factors = None,
    bias: Factors = None,
    dtype: str | None = None,
    layout: str | None = None,
) -> Launch:
    """Check the arguments of `finish` and return the launch they make. Pure: it looks at no memory and at no device."""
    source = _array("images", images, ("|u1",))
    if len(source.shape) != 4 or source.shape[3] != 3 or 0 in source.shape:
        _refuse("images", "must have shape (N, H, W, 3) with N, H, W >= 1", source.shape)
    _must_be_dense("images", source)
    samples, height, width, _ = source.shape
    if max(height * width, samples) >= _COUNT_LIMIT:
        _refuse("images", f"must be fewer than {_COUNT_LIMIT}, of fewer pixels each", source.shape)

    target = device_array("finish", "out", out)
    kind = _output_kind(target, dtype)
    last = _channels_last(target, (samples, height, width), layout)
    if target.read_only:
        _refuse("out", "must be writable", "a read-only array")
    if source.pointer < target.pointer + target.nbytes and target.pointer < source.pointer + source.nbytes:
        _refuse("out", "must not overlap images", f"{target.pointer:#x} and {source.pointer:#x}")
    scales, biases = _factors(kind, scale, bias)

    mirror = _parameter("flip_x", flip_x, ("<i4", "|u1", "|b1"), (samples,))
    turn = _parameter("flip_y", flip_y, ("<i4", "|u1", "|b1"), (samples,))
    matrices = _parameter("colour", colour, ("<f4",), (samples, 3, 4))

    wide = width % 4 == 0 and source.pointer % 4 == 0 and target.pointer % (4 * target.itemsize) == 0
    pixels = 4 if wide else 1
    return Launch(
        kernel="finish",
        options=(f"-DOUT_{kind.upper()}", f"-DCHANNELS_LAST={int(last)}", f"-DPIXELS={pixels}"),
        grid=(-(-height * width // pixels // _BLOCK), min(samples, _GRID_Y), 1),
        block=(_BLOCK, 1, 1),
        arguments=(
            np.uint64(source.pointer),
            np.uint64(target.pointer),
            *mirror,
            *turn,
            matrices[0],
            *(np.int32(size) for size in (samples, height, width)),
            *scales,
            *biases,
        ),
        pointers={
            name: pointer
            for name, pointer in (
                ("images", source.pointer),
                ("out", target.pointer),
                ("flip_x", int(mirror[0])),
                ("flip_y", int(turn[0])),
                ("colour", int(matrices[0])),
            )
            if pointer
        },
    )


def finish_reference(
    images: npt.NDArray[np.uint8],
    *,
    dtype: str = "float32",
    layout: str = "NCHW",
    flip_x: npt.ArrayLike | None = None,
    flip_y: npt.ArrayLike | None = None,
    colour: npt.ArrayLike | None = None,
    scale: Factors = None,
    bias: Factors = None,
) -> npt.NDArray[Any]:
    """The same on the host: (N, H, W, 3) uint8 in, (N, 3, H, W) or (N, H, W, 3) out, bfloat16 as its bits in uint16."""
    if dtype not in _ITEMSIZE:
        _refuse("dtype", f"must be one of {', '.join(_ITEMSIZE)}", repr(dtype))
    if layout not in _LAYOUTS:
        _refuse("layout", f"must be one of {', '.join(_LAYOUTS)}", repr(layout))
    scales, biases = _factors(dtype, scale, bias)
    work = np.array(images)
    for axis, flips in ((2, flip_x), (1, flip_y)):
        if flips is not None:
            chosen = np.asarray(flips) != 0
            work[chosen] = np.flip(work[chosen], axis)
    value = work.astype(np.float32)
    if colour is not None:
        r, g, b = (value[..., c] for c in range(3))
        m = np.asarray(colour, np.float32)[:, None, None]
        rows = [_fma(m[..., c, 0], r, _fma(m[..., c, 1], g, _fma(m[..., c, 2], b, m[..., c, 3]))) for c in range(3)]
        value = np.stack(rows, axis=-1)
        value = np.where(value > 0, np.where(value < 255, value, np.float32(255)), np.float32(0))
    if dtype != "uint8":
        value = _fma(value, np.array(scales), np.array(biases))
    if layout == "NCHW":
        value = value.transpose(0, 3, 1, 2)
    return np.ascontiguousarray(_cast(value, dtype))


def normalize_factors(mean: Sequence[float], std: Sequence[float]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The scale 1 / (255 std) and bias -mean / std that do ToDtype(float32, scale=True) and Normalize(mean, std)."""
    if len(mean) != 3 or len(std) != 3:
        _refuse("mean and std", "must have three values each", f"{len(mean)} and {len(std)}")
    if not all(math.isfinite(s) and s != 0 for s in std) or not all(math.isfinite(m) for m in mean):
        _refuse("mean and std", "must be finite and std not 0", f"{mean} and {std}")
    return tuple(1 / (255 * s) for s in std), tuple(-m / s for m, s in zip(mean, std, strict=True))


def bytes_moved(shape: Sequence[int], dtype: str) -> int:
    """Bytes that one launch reads and writes for images of `shape` (N, H, W, 3); flips and matrices are not counted."""
    return math.prod(shape) * (1 + _ITEMSIZE[dtype])


def _fma(a: npt.NDArray[Any], b: npt.NDArray[Any], c: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Return a * b + c of float32 arrays with one rounding, as fmaf does.

    The product is exact in float64 and the sum is rounded to odd (if anything was lost, the last bit is set), so the
    rounding to float32 that follows sees on which side of a tie the exact value lies.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        product, addend = np.multiply(a, b, dtype=np.float64), np.asarray(c, np.float64)
        total = product + addend
        part = total - product
        lost = (product - (total - part)) + (addend - part)
        even = np.asarray(total).view(np.int64) & 1 == 0
        odd = np.nextafter(total, np.copysign(np.inf, lost))
        rounded: npt.NDArray[Any] = np.where(np.isfinite(total) & (lost != 0) & even, odd, total)
        return rounded.astype(np.float32)


def _cast(value: npt.NDArray[np.float32], dtype: str) -> npt.NDArray[Any]:
    if dtype == "uint8":
        return np.rint(value).astype(np.uint8)
    if dtype == "bfloat16":
        bits = np.ascontiguousarray(value).view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    with np.errstate(over="ignore"):  # beyond 65504 float16 is infinite, here as there
        return value.astype(dtype)


def _factors(kind: str, scale: Factors, bias: Factors) -> tuple[list[np.float32], list[np.float32]]:
    if kind == "uint8" and not (scale is None and bias is None):
        _refuse("scale and bias", "must be None where out is uint8", f"{scale} and {bias}")
    both = []
    for name, given, neutral in (("scale", scale, 1.0), ("bias", bias, 0.0)):
        try:
            values = np.asarray(neutral if given is None else given, np.float32)
        except (TypeError, ValueError) as error:
            _refuse(name, "must be three finite numbers or one", repr(given), error)
        if values.shape not in ((), (3,)) or not np.isfinite(values).all():
            _refuse(name, "must be three finite float32 numbers or one", repr(given))
        both.append(list(np.broadcast_to(values, (3,))))
    return both[0], both[1]


def _output_kind(target: DeviceArray, dtype: str | None) -> str:
    kind = _FROM_TYPESTR.get(target.typestr) if dtype is None else dtype
    if kind not in _ITEMSIZE or target.typestr not in _TYPESTRS[kind]:
        rule = (
            "must be float32, float16, bfloat16 or uint8 (bfloat16 as 16-bit integers needs dtype='bfloat16')"
            if dtype is None
            else f"must hold what dtype={dtype!r} says, one of {', '.join(_ITEMSIZE)}"
        )
        _refuse("out", rule, target.typestr)
    return kind


def _channels_last(target: DeviceArray, sizes: tuple[int, int, int], layout: str | None) -> bool:
    samples, height, width = sizes
    fits = []
    if target.shape == (samples, 3, height, width):
        fits += ["NCHW"] * target.is_dense() + ["NHWC"] * target.is_dense((0, 2, 3, 1))
    if target.shape == (samples, height, width, 3):
        fits += ["NHWC"] * target.is_dense()
    if layout is not None and layout not in _LAYOUTS:
        _refuse("layout", f"must be one of {', '.join(_LAYOUTS)} or None", repr(layout))
    found = f"shape {target.shape}, strides {target.strides} bytes"
    if not fits:
        rule = f"must be dense, {(samples, 3, height, width)} or {(samples, height, width, 3)} as images are"
        _refuse("out", rule, found)
    if layout is None and len(set(fits)) == 2 and height * width > 1:  # of one pixel both are the same
        _refuse("layout", f"must be given, one of {', '.join(_LAYOUTS)}: out fits both", found)
    if layout is not None and layout not in fits and height * width > 1:
        _refuse("out", f"must lie in memory as layout={layout!r} says", found)
    return (layout or fits[0]) == "NHWC"


def _array(name: str, array: object, typestrs: tuple[str, ...]) -> DeviceArray:
    found = device_array("finish", name, array)
    if found.typestr not in typestrs:
        _refuse(name, f"must have dtype {' or '.join(typestrs)}", found.typestr)
    return found


def _parameter(name: str, array: object, typestrs: tuple[str, ...], shape: tuple[int, ...]) -> tuple[Any, Any]:
    """The pointer and the element size of an optional array per sample, both 0 where there is none."""
    if array is None:
        return np.uint64(0), np.int32(0)
    found = _array(name, array, typestrs)
    if found.shape != shape:
        _refuse(name, f"must have shape {shape}, as images have {shape[0]} samples", found.shape)
    _must_be_dense(name, found)
    return np.uint64(found.pointer), np.int32(found.itemsize)


def _must_be_dense(name: str, array: DeviceArray) -> None:
    if not array.is_dense():
        _refuse(name, "must be C contiguous", f"shape {array.shape}, strides {array.strides} bytes")


def _refuse(name: str, rule: str, found: object, cause: Exception | None = None) -> NoReturn:
    msg = f"finish: {name} {rule}, found {found}"
    raise ConfigError(msg) from cause
