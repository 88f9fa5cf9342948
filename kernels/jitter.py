"""`jitter`: brightness, contrast, saturation, hue and gray, per sample and in its own order, in one launch (jitter.cu).

Law: `jitter_reference` is the truth: torchvision v2's operations on uint8 in float32, each rounded as torch rounds it,
and the values cut off to whole levels after every step. The kernel equals it bit for bit, in every variant and on
every architecture.

Beside torchvision's own functions on the CPU it is the same to the bit for images whose gray adds up to less than 2^24
(66,000 pixels, 256 x 256, at the least), where torch's CPU multiplies and adds in one rounding. Beyond that torch sums
in float32, and its mean may be off in the last digits: single values differ by one level.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dali_feed.kernels.arguments import Rules
from dali_feed.kernels.launch import Launch, Launcher
from dali_feed.transforms.colour import KINDS, MAX_STEPS

_THREADS = 1024
_RULES = Rules("jitter")
_NAMES = {float(number): name for name, number in KINDS.items()}

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


@Launcher
def jitter(images: object, out: object, steps: object, *, stream: object = None) -> Launch:
    """Write the adjusted batch into `out`: one launch, no allocation, no copy, no wait.

    Arrays are anything on the current GPU with `__cuda_array_interface__` (CuPy, torch, ...), N, H, W >= 1:

    - `images`: uint8 (N, H, W, 3), C contiguous.
    - `out`: the same, apart from `images`.
    - `steps`: float32 (N, count, 2), count from 1 to 64: for each sample its steps in order, each a number of
      `dali_feed.transforms.colour.KINDS` and a factor as torchvision's `adjust_...` takes it (of hue -0.5 .. 0.5).
    - `stream`: as in `finish`.

    One block works on each image, so a batch with fewer images than the GPU has multiprocessors leaves some idle.
    Raises ConfigError for an argument that breaks one of these rules, EngineError if the kernel cannot be run.
    """
    source = _RULES.images(images)
    samples, height, width, _ = source.shape
    target = _RULES.like_images("out", out, source)
    to_do = _RULES.array("steps", steps, ("<f4",))
    if len(to_do.shape) != 3 or to_do.shape[::2] != (samples, 2) or not 1 <= to_do.shape[1] <= MAX_STEPS:
        _RULES.refuse("steps", f"must have shape ({samples}, 1 to {MAX_STEPS}, 2)", to_do.shape)
    _RULES.dense("steps", to_do)

    pixels, vector = _variant(height * width, source.pointer, target.pointer)
    groups = height * width // pixels
    arrays = {"images": source, "out": target, "steps": to_do}
    sizes = {"count": to_do.shape[1], "height": height, "width": width}
    return Launch(
        kernel="jitter",
        options=("-DOUT_UINT8", f"-DPIXELS={pixels}", f"-DVECTOR={vector}"),
        grid=(samples, 1, 1),
        block=(min(_THREADS, -(-groups // 32) * 32), 1, 1),
        arguments={name: np.uint64(array.pointer) for name, array in arrays.items()}
        | {name: np.int32(size) for name, size in sizes.items()},
        stream=stream,
    )


def _variant(pixels: int, source: int, target: int) -> tuple[int, int]:
    """Pixels that a thread does at a time, and the bytes of its stores."""
    if pixels % 4 or source % 4 or target % 4:
        return 1, 1
    return 4, 4 if pixels % 16 or target % 16 else 16


def jitter_reference(images: Bytes, steps: npt.ArrayLike) -> Bytes:
    """The same on the host."""
    out = np.empty_like(images)
    with np.errstate(all="ignore"):  # a factor may be anything
        for image, own, target in zip(images, np.asarray(steps, np.float32), out, strict=True):
            value = image.astype(np.float32)
            for number, factor in own:
                value = _stepped(value, _NAMES.get(float(number), "nothing"), factor)
            target[...] = value.astype(np.uint8)
    return out


def fma(a: npt.NDArray[Any], b: npt.NDArray[Any], c: npt.NDArray[Any]) -> Floats:
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


def _stepped(value: Floats, name: str, factor: np.float32) -> Floats:
    if name == "brightness":
        return level(value * factor)
    if name == "contrast":
        return blended(value, mean_gray(value), factor, np.float32(1) - factor)
    if name == "saturation":
        return blended(value, np.trunc(gray_of(value))[..., None], factor, np.float32(1) - factor)
    if name == "hue":
        return _turned(value, factor)
    if name in ("gray", "gray_rounded"):
        gray = np.trunc(gray_of(value)) if name == "gray" else np.rint(gray_of(value))
        return np.repeat(gray[..., None], 3, axis=-1)
    return value


def clamped(value: Floats, top: float) -> Floats:
    """At least 0 and at most `top`; what is no number is 0."""
    return np.where(value > 0, np.where(value < top, value, np.float32(top)), np.float32(0))


def level(value: Floats) -> Floats:
    """A whole level of 0..255, cut."""
    return np.trunc(clamped(value, 255))


def gray_of(value: Floats) -> Floats:
    """The gray of each pixel (..., 3), by fused products, not cut."""
    r, g, b = (value[..., c] for c in range(3))
    red, green, blue = (np.float32(weight) for weight in (0.2989, 0.587, 0.114))
    return fma(b, np.array(blue), fma(g, np.array(green), r * red))


def mean_gray(value: Floats) -> Floats:
    """The mean of an image's gray, cut to whole levels, as a number without a shape."""
    total, count = np.uint64(np.trunc(gray_of(value)).sum(dtype=np.float64)), np.float32(value[..., 0].size)
    return np.array(np.float32(total) / count)


def blended(value: Floats, other: Floats, factor: np.float32, rest: np.float32) -> Floats:
    """Levels of value * factor + other * rest, rounded twice."""
    return level(fma(other, np.array(rest), value * factor))


def _turned(value: Floats, turn: np.float32) -> Floats:
    one, unit, scale = np.float32(1), np.float32(1 / 255), np.float32(255.999)
    r, g, b = (value[..., c] * unit for c in range(3))
    v, least = np.maximum(r, np.maximum(g, b)), np.minimum(r, np.minimum(g, b))
    plain = v == least
    span, divisor = v - least, np.where(plain, one, v - least)
    s = span / np.where(plain, one, v)
    is_r, is_g = v == r, (v == g) & (v != r)

    def choose(red: Any, green: Any, blue: Any) -> Floats:
        chosen: Floats = np.where(is_r, red, np.where(is_g, green, blue))
        return chosen

    start = choose(np.float32(0), np.float32(2), np.float32(4))
    h = ((v - choose(b, r, g)) / divisor + start) - (v - choose(g, b, r)) / divisor
    h = h * np.float32(1 / 6) + one
    h = np.where(h >= 1, h - one, h)
    h = h + turn
    h = clamped(np.where(h >= 1, h - one, np.where(h < 0, h + one, h)), 1)

    h6 = h * np.float32(6)
    sector, part = np.trunc(h6), h6 - np.trunc(h6)
    sf, without = s * part, one - s
    most = level(v * scale)
    q = level(clamped((one - sf) * v, 1) * scale)
    t = level(clamped((sf + without) * v, 1) * scale)
    low = level(clamped(without * v, 1) * scale)
    places = (sector % 6).astype(np.int64)
    red, green, blue = (most, q, low, low, t, most), (t, most, most, q, low, low), (low, low, t, most, most, q)
    return np.stack([np.choose(places, some) for some in (red, green, blue)], axis=-1)
