"""`finish`: flips, normalisation, erasing, mixing, cast and layout of a batch, in one launch (finish.cu).

Law: each float32 operation is rounded once, whatever the variant and the architecture. What is right is said by torch,
in `dali_feed.engines.finish.by_torch`, and the kernel equals it bit for bit.

Beside torchvision's v2.ToDtype(float32, scale=True) and v2.Normalize with ImageNet's mean and std, over all 256 values
of the three channels: at most 7.2e-7 apart, which is 8 ulps where the result is 0.25 or more in size and up to 325 ulps
next to zero, where torchvision's subtraction cancels. From the exact value finish is at most 2.3e-7 away, torchvision
6.1e-7. Without Normalize (mean 0, std 1) the two are equal bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dali_feed.kernels.arguments import GRID_Y, Factors, Rules
from dali_feed.kernels.launch import Launch, Launcher, device_array

_BLOCK = 256
_RULES = Rules("finish")


@dataclass(frozen=True, slots=True)
class MixArrays:
    """MixUp and CutMix: what each sample is mixed with, in arrays of its GPU.

    partner  int32 (N,): the sample mixed in, of the same batch; a number outside the batch leaves the sample as it is
    weight   float32 (N,), 0..1: of the sample itself, the rest is the partner's (MixUp). None: 1
    box      int32 (N, 4): y, x, height, width where the partner shows instead (CutMix). None: nowhere

    `dali_feed.transforms.mixing` draws them.
    """

    partner: Any
    weight: Any = None
    box: Any = None


@Launcher
def finish(  # noqa: PLR0913 - what the op does, one keyword each
    images: object,
    out: object,
    *,
    flip_x: object = None,
    flip_y: object = None,
    scale: Factors = None,
    bias: Factors = None,
    erase: object = None,
    erase_value: Factors = None,
    mix: MixArrays | None = None,
    dtype: str | None = None,
    layout: str | None = None,
    stream: object = None,
) -> Launch:
    """Write the finished batch into `out`: one launch, no allocation, no copy, no wait.

    Arrays are anything on the current GPU with `__cuda_array_interface__` (CuPy, torch, ...), N, H, W >= 1:

    - `images`: uint8 (N, H, W, 3), C contiguous, 0..255.
    - `out`: float32, float16, bfloat16 or uint8; (N, 3, H, W), dense planes or channels last, or dense (N, H, W, 3).
      It must not overlap `images`. bfloat16 memory may come as 16-bit integers with `dtype="bfloat16"`.
    - `flip_x`, `flip_y`: int32, uint8 or bool (N,): not 0 mirrors the sample left-right, top-bottom.
    - `scale`, `bias`: three finite numbers or one, on the host: v * scale + bias, `normalize_factors` makes them.
      Not for uint8, which is rounded to the nearest value, ties to even.
    - `erase`: int32 (N, 4): y, x, height, width of `out`; that rectangle gets `erase_value`, three finite numbers or
      one in the units of `out` (whole and 0..255 for uint8); None is 0. A height of 0 erases nothing.
    - `mix`: a `MixArrays` with arrays of the GPU: MixUp, CutMix or both.
    - `layout`: "NCHW" or "NHWC", the order in memory; needed only for images of 3 x 3 pixels.
    - `stream`: a cudaStream_t as an int, a CuPy or torch stream; None is CuPy's current stream (from torch, pass
      `torch.cuda.current_stream()`). The caller orders it after the work that made the inputs.

    Raises ConfigError for an argument that breaks one of these rules, EngineError if the kernel cannot be run.
    """
    source = _RULES.images(images)
    samples, height, width, _ = source.shape
    target = device_array("finish", "out", out)
    kind = _RULES.kind("out", target, dtype)
    last = _RULES.channels_last(target, (samples, 3, height, width), layout)
    _RULES.writable("out", target, ("images", source))
    scales, biases = _RULES.factors(kind, scale, bias, 3)
    erased = _erase_value(kind, erase, erase_value)

    arguments: dict[str, Any] = {"images": np.uint64(source.pointer), "out": np.uint64(target.pointer)}
    for name, flips in (("flip_x", flip_x), ("flip_y", flip_y)):
        flags = _RULES.parameter(name, flips, ("<i4", "|u1", "|b1"), (samples,))
        arguments[name], arguments[f"{name}_size"] = flags
    arguments["erase"], _ = _RULES.parameter("erase", erase, ("<i4",), (samples, 4))
    arguments |= _mix_pointers(mix, samples)
    arguments |= {"samples": np.int32(samples), "height": np.int32(height), "width": np.int32(width)}
    for name, numbers in (("scale", scales), ("bias", biases), ("erased", erased)):
        arguments |= {f"{name}_{channel}": number for channel, number in enumerate(numbers)}

    fits = (width, source.pointer, target.pointer // target.itemsize)
    pixels = next(count for count in (4, 2, 1) if all(number % count == 0 for number in fits))
    vector = 0
    if last and pixels > 1:
        whole = target.nbytes // samples % 16 == 0 and target.pointer % 16 == 0
        vector = 16 if whole else pixels * target.itemsize
    return Launch(
        kernel="finish",
        options=(
            f"-DOUT_{kind.upper()}",
            f"-DCHANNELS_LAST={int(last)}",
            f"-DPIXELS={pixels}",
            f"-DMIX={int(mix is not None)}",
            f"-DVECTOR={vector}",
        ),
        grid=(-(-height * width // pixels // _BLOCK), min(samples, GRID_Y), 1),
        block=(_BLOCK, 1, 1),
        arguments=arguments,
        stream=stream,
    )


def normalize_factors(mean: Sequence[float], std: Sequence[float]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The scale 1 / (255 std) and bias -mean / std that do ToDtype(float32, scale=True) and Normalize(mean, std)."""
    if len(mean) != 3 or len(std) != 3:
        _RULES.refuse("mean and std", "must have three values each", f"{len(mean)} and {len(std)}")
    if not all(math.isfinite(s) and s != 0 for s in std) or not all(math.isfinite(m) for m in mean):
        _RULES.refuse("mean and std", "must be finite, and no std 0", f"{mean} and {std}")
    return tuple(1 / (255 * s) for s in std), tuple(-m / s for m, s in zip(mean, std, strict=True))


def _mix_pointers(mixing: MixArrays | None, samples: int) -> dict[str, np.uint64]:
    """Pointers to partner, weight and box for so many samples; 0 for a missing one."""
    if mixing is not None and mixing.partner is None:
        _RULES.refuse("mix.partner", "must be an int32 array", "None")
    arrays = mixing or MixArrays(None)
    return {
        "mix.partner": _RULES.parameter("mix.partner", arrays.partner, ("<i4",), (samples,))[0],
        "mix.weight": _RULES.parameter("mix.weight", arrays.weight, ("<f4",), (samples,))[0],
        "mix.box": _RULES.parameter("mix.box", arrays.box, ("<i4",), (samples, 4))[0],
    }


def _erase_value(kind: str, erase: object, value: Factors) -> list[np.float32]:
    if erase is None and value is not None:
        _RULES.refuse("erase_value", "must be None without erase, which says where", repr(value))
    values = _RULES.numbers("erase_value", value, 0.0, 3)
    if kind == "uint8" and not all(v == np.rint(v) and 0 <= v <= 255 for v in values):
        _RULES.refuse("erase_value", "must be whole and from 0 to 255 if out is uint8", repr(value))
    return values
