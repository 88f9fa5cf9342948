"""`finish`: flips, colour, normalisation, erasing, mixing, cast and layout of a batch, in one launch (finish.cu).

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
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from dali_feed.errors import ConfigError
from dali_feed.kernels._module import DeviceArray, Launch, device_array, launch
from dali_feed.kernels._numbers import cast, fma

__all__ = ["Mix", "bytes_moved", "finish", "finish_reference", "normalize_factors", "prepare"]

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


@dataclass(frozen=True, slots=True)
class Mix:
    """What each sample is mixed with, in arrays on the GPU that the samples are on (NumPy's for the reference).

    partner  int32 (N,): the sample mixed in, of the same batch; one that is not there leaves the sample alone
    weight   float32 (N,), 0..1: of the sample itself, the rest is the partner's (MixUp). None: 1
    box      int32 (N, 4): y, x, height, width of out where the partner shows instead (CutMix). None: nowhere

    Both images are finished, each by its own flips, matrix and rectangle, before they are mixed.
    """

    partner: Any
    weight: Any = None
    box: Any = None


def finish(  # noqa: PLR0913 - what the op does, one keyword each
    images: object,
    out: object,
    *,
    flip_x: object = None,
    flip_y: object = None,
    colour: object = None,
    scale: Factors = None,
    bias: Factors = None,
    erase: object = None,
    erase_value: Factors = None,
    mix: Mix | None = None,
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
    - `erase`: int32 (N, 4): y, x, height, width of `out`; that rectangle gets `erase_value`, three finite numbers or
      one in the units of `out` (whole and 0..255 for uint8); 0 where it is None. A height of 0 erases nothing.
    - `mix`: a `Mix` with arrays of the GPU: MixUp, CutMix or both.
    - `layout`: "NCHW" or "NHWC", the order in memory; only images of 3 x 3 pixels need it said.
    - `stream`: a cudaStream_t as an int, a CuPy or torch stream; None is CuPy's current stream (from torch, pass
      `torch.cuda.current_stream()`). The caller orders it after the work that made the inputs.

    Raises ConfigError for an argument that breaks one of these rules, EngineError if the kernel cannot be run.
    """
    job = prepare(
        images,
        out,
        flip_x=flip_x,
        flip_y=flip_y,
        colour=colour,
        scale=scale,
        bias=bias,
        erase=erase,
        erase_value=erase_value,
        mix=mix,
        dtype=dtype,
        layout=layout,
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
    erase: object = None,
    erase_value: Factors = None,
    mix: Mix | None = None,
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
    erased = _erase_value(kind, erase, erase_value)

    mirror = _parameter("flip_x", flip_x, ("<i4", "|u1", "|b1"), (samples,))
    turn = _parameter("flip_y", flip_y, ("<i4", "|u1", "|b1"), (samples,))
    matrices, _ = _parameter("colour", colour, ("<f4",), (samples, 3, 4))
    rectangles, _ = _parameter("erase", erase, ("<i4",), (samples, 4))
    partner, weight, box = _mixing(mix, samples)

    wide = width % 4 == 0 and source.pointer % 4 == 0 and target.pointer % (4 * target.itemsize) == 0
    pixels = 4 if wide else 1
    return Launch(
        kernel="finish",
        options=(
            f"-DOUT_{kind.upper()}",
            f"-DCHANNELS_LAST={int(last)}",
            f"-DPIXELS={pixels}",
            f"-DMIX={int(mix is not None)}",
        ),
        grid=(-(-height * width // pixels // _BLOCK), min(samples, _GRID_Y), 1),
        block=(_BLOCK, 1, 1),
        arguments=(
            np.uint64(source.pointer),
            np.uint64(target.pointer),
            *mirror,
            *turn,
            matrices,
            rectangles,
            partner,
            weight,
            box,
            *(np.int32(size) for size in (samples, height, width)),
            *scales,
            *biases,
            *erased,
        ),
        pointers={
            name: pointer
            for name, pointer in (
                ("images", source.pointer),
                ("out", target.pointer),
                ("flip_x", int(mirror[0])),
                ("flip_y", int(turn[0])),
                ("colour", int(matrices)),
                ("erase", int(rectangles)),
                ("mix.partner", int(partner)),
                ("mix.weight", int(weight)),
                ("mix.box", int(box)),
            )
            if pointer
        },
    )


def finish_reference(  # noqa: PLR0913 - the same as finish
    images: npt.NDArray[np.uint8],
    *,
    dtype: str = "float32",
    layout: str = "NCHW",
    flip_x: npt.ArrayLike | None = None,
    flip_y: npt.ArrayLike | None = None,
    colour: npt.ArrayLike | None = None,
    scale: Factors = None,
    bias: Factors = None,
    erase: npt.NDArray[np.int32] | None = None,
    erase_value: Factors = None,
    mix: Mix | None = None,
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
        rows = [fma(m[..., c, 0], r, fma(m[..., c, 1], g, fma(m[..., c, 2], b, m[..., c, 3]))) for c in range(3)]
        value = np.stack(rows, axis=-1)
        value = np.where(value > 0, np.where(value < 255, value, np.float32(255)), np.float32(0))
    if dtype != "uint8":
        value = fma(value, np.array(scales), np.array(biases))
    if erase is not None:
        value = np.where(_inside(erase, value), np.array(_erase_value(dtype, erase, erase_value)), value)
    if mix is not None:
        value = _mixed(value, mix)
    if layout == "NCHW":
        value = value.transpose(0, 3, 1, 2)
    return np.ascontiguousarray(cast(value, dtype))


def _inside(boxes: npt.NDArray[np.int32], value: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Whether each pixel of (N, H, W, 3) lies in its sample's y, x, height, width: (N, H, W, 1)."""
    y, x = np.ogrid[: value.shape[1], : value.shape[2]]
    top, left, height, width = np.asarray(boxes, np.int64).T[:, :, None, None]
    inside: npt.NDArray[np.bool_] = (y >= top) & (y < top + height) & (x >= left) & (x < left + width)
    return inside[..., None]


def _mixed(value: npt.NDArray[np.float32], mix: Mix) -> npt.NDArray[np.float32]:
    """Finished samples (N, H, W, 3) and their partners."""
    n = len(value)
    partner = np.asarray(mix.partner)
    partner = np.where((partner < 0) | (partner >= n), np.arange(n), partner)
    share = np.ones((n, 1, 1, 1), np.float32)
    if mix.weight is not None:
        share = np.asarray(mix.weight, np.float32)[:, None, None, None]
    if mix.box is not None:
        share = np.where(_inside(mix.box, value), np.float32(0), share)
    other = value[partner]
    with np.errstate(over="ignore", invalid="ignore"):
        both = value * share + other * (np.float32(1) - share)
    mixed: npt.NDArray[np.float32] = np.where(share == 1, value, np.where(share == 0, other, both))
    return mixed


def normalize_factors(mean: Sequence[float], std: Sequence[float]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The scale 1 / (255 std) and bias -mean / std that do ToDtype(float32, scale=True) and Normalize(mean, std)."""
    if len(mean) != 3 or len(std) != 3:
        _refuse("mean and std", "must have three values each", f"{len(mean)} and {len(std)}")
    if not all(math.isfinite(s) and s != 0 for s in std) or not all(math.isfinite(m) for m in mean):
        _refuse("mean and std", "must be finite and std not 0", f"{mean} and {std}")
    return tuple(1 / (255 * s) for s in std), tuple(-m / s for m, s in zip(mean, std, strict=True))


def bytes_moved(shape: Sequence[int], dtype: str, *, mixed: float = 0.0) -> int:
    """Bytes that one launch reads and writes for images of `shape` (N, H, W, 3).

    `mixed`: the share of the pixels whose weight is not 1, for which a partner is read. What there is once per sample
    is not counted.
    """
    return round(math.prod(shape) * (1 + mixed + _ITEMSIZE[dtype]))


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


def _erase_value(kind: str, erase: object, value: Factors) -> list[np.float32]:
    if erase is None and value is not None:
        _refuse("erase_value", "must come with erase", repr(value))
    try:
        values = np.broadcast_to(np.asarray(0.0 if value is None else value, np.float32), (3,))
    except (TypeError, ValueError) as error:
        _refuse("erase_value", "must be three finite numbers or one", repr(value), error)
    whole = kind != "uint8" or ((values == np.rint(values)) & (values >= 0) & (values <= 255)).all()
    if not np.isfinite(values).all() or not whole:
        rule = "three finite float32 numbers or one" if kind != "uint8" else "whole and within 0..255 for uint8"
        _refuse("erase_value", f"must be {rule}", repr(value))
    return list(values)


def _mixing(mix: Mix | None, samples: int) -> tuple[Any, Any, Any]:
    """The pointers of a mix; all 0 where there is none."""
    if mix is None:
        return (np.uint64(0),) * 3
    if mix.partner is None:
        _refuse("mix.partner", "must be an int32 array", "None")
    partner, _ = _parameter("mix.partner", mix.partner, ("<i4",), (samples,))
    weight, _ = _parameter("mix.weight", mix.weight, ("<f4",), (samples,))
    box, _ = _parameter("mix.box", mix.box, ("<i4",), (samples, 4))
    return partner, weight, box


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
