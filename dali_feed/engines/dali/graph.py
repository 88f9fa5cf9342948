"""The DALI graph of a program. The device is an argument: the same graph runs on DALI's CPU backend.

All random numbers enter as inputs; no stateful random operator is used. On the CPU the graph ends with
the normalized batch; on a GPU it ends with dense uint8 HWC, and our finish kernel does the rest on the
consumer's stream.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from nvidia.dali import fn, math, types

from dali_feed.compiler.dali import Program
from dali_feed.compiler.steps import (
    Colour,
    Colours,
    Decode,
    Finish,
    Resample,
    Rotate,
    Slice,
    Warp,
)
from dali_feed.compiler.user_graph import UserGraph
from dali_feed.compiler.views import ViewsProgram, viewed
from dali_feed.options import Tuning
from dali_feed.transforms.base import Apply
from dali_feed.transforms.batch_draws import DRAWN
from dali_feed.transforms.colours import GRAY

__all__ = ["NOTHING_BEFOREHAND", "PAYLOAD", "build_graph", "decoder_tuning"]

PAYLOAD = "payload"
NOTHING_BEFOREHAND = {
    "device_memory_padding": 0,
    "host_memory_padding": 0,
}  # DALI's: 16 MB and twice 8 MB for each thread

_INTERPOLATION = {
    "nearest": types.INTERP_NN,
    "nearest-exact": types.INTERP_NN,
    "bilinear": types.INTERP_LINEAR,
    "bicubic": types.INTERP_CUBIC,
}
_DTYPE = {
    "uint8": types.UINT8,
    "float32": types.FLOAT,
    "float16": types.FLOAT16,
    "bfloat16": types.FLOAT,  # not a DALI type: cast where the batch becomes a tensor
}
# A uint8 result is cut off, not rounded, in torchvision; DALI rounds. Just under one half makes them agree.
_CUT = -0.4995
_CUT_HUE = 255.999 / 255  # and so it goes from 0..1 back to uint8 after a turn of the hue
_CHANNELS = np.array([[[5, 3, 1]]], np.float32)  # where red, green and blue stand on the circle of hues


class _Inputs:
    """The inputs of one view of an image."""

    def __init__(self, view: int = 0) -> None:
        self._view = view

    def __call__(self, name: str, dtype: Any, ndim: int) -> Any:
        return fn.external_source(name=viewed(name, self._view), no_copy=True, dtype=dtype, ndim=ndim)


def decoder_tuning(tuning: Tuning, hw_decoder_load: float = 0.0, *, spare: bool = False) -> dict[str, Any]:
    """A mixed decoder's own options; what the user did not set is DALI's default. A `spare` one takes no memory ahead.

    Not so the JPEG engine's share, DALI's 0.65: a sample's pixels would depend on who stands beside it.
    """
    if spare:
        return {"hw_decoder_load": hw_decoder_load, **NOTHING_BEFOREHAND}
    height, width = tuning.image_hint or (None, None)
    given = {
        "hw_decoder_load": hw_decoder_load,
        "preallocate_height_hint": height,
        "preallocate_width_hint": width,
        "device_memory_padding": tuning.device_memory_padding,
        "host_memory_padding": tuning.host_memory_padding,
    }
    return {name: value for name, value in given.items() if value is not None}


def _decode(step: Decode, given: _Inputs, own: dict[str, Any]) -> Any:
    """`own`: a mixed decoder's options; on the CPU there are none."""
    payload = given(PAYLOAD, types.UINT8, 1)
    options: dict[str, Any] = {
        "device": "mixed" if own else "cpu",
        "output_type": types.RGB,
        "adjust_orientation": False,  # as torchvision's decode_image and ImageFolder leave it
        "jpeg_fancy_upsampling": True,  # libjpeg's own way, which torchvision's pixels come from
    }
    options |= own
    if not step.window:
        return fn.decoders.image(payload, **options)
    window = given("window", types.INT32, 1)
    return fn.decoders.image_slice(payload, start=window[0:2], shape=window[2:4], axis_names="HW", **options)


def _interpolation(step: Resample, given: _Inputs) -> Any:
    if step.interpolation != "random":
        return _INTERPOLATION[step.interpolation]
    codes = [int(_INTERPOLATION[name]) for name in DRAWN]
    first, by = codes[0], codes[1] - codes[0]  # DALI has no look-up; there are two, and their codes are numbers
    return fn.reinterpret(given(f"mode{step.k}", types.INT32, 0) * by + first, dtype=types.INTERP_TYPE)


def _resample(step: Resample, image: Any, given: _Inputs) -> Any:
    options: dict[str, Any] = {"interp_type": _interpolation(step, given), "antialias": step.antialias}
    options["size"] = step.size or given(f"size{step.k}", types.FLOAT, 1)
    if step.roi:
        roi = given(f"roi{step.k}", types.FLOAT, 1)
        options.update(roi_start=roi[0:2], roi_end=roi[2:4])
    return fn.resize(image, **options)


def _slice(step: Slice, image: Any, given: _Inputs) -> Any:
    anchor = given(f"anchor{step.k}", types.INT32, 1)
    shape = step.size or given(f"shape{step.k}", types.INT32, 1)
    return fn.slice(
        image, start=anchor, shape=shape, axes=[0, 1], out_of_bounds_policy="pad", fill_values=list(step.fill)
    )


def _colour(step: Colour, image: Any, given: _Inputs, *, gpu: bool) -> Any:
    steps = given(f"colour{step.k}", types.FLOAT, 2)
    for n in range(step.steps):
        matrix = fn.reshape(steps[n, 0:9], shape=[3, 3])
        shift = steps[n, 10] + _CUT
        if not step.contrast:
            image = _moved(image, matrix, shift, types.UINT8)
        elif gpu:
            image = _contrast_apart(image, matrix, shift, steps[n, 9].gpu(), device="gpu")
        else:
            image = _moved(image, matrix, shift + steps[n, 9] * _gray_mean(image), types.UINT8)
        if step.hue:
            image = _turn_hue(image, 6 * steps[n, 11], device="gpu" if gpu else "cpu")
    return fn.reshape(image, layout="HWC")


def _moved(image: Any, matrix: Any, shift: Any, dtype: Any) -> Any:
    return fn.coord_transform(image, M=matrix, T=fn.stack(*[shift] * 3), dtype=dtype)


def _gray_mean(image: Any, *, device: str = "cpu") -> Any:
    mean = fn.reductions.mean(image, axes=[0, 1])
    return fn.reductions.sum(mean * types.Constant(GRAY, device=device), axes=[0])


def _contrast_apart(image: Any, matrix: Any, shift: Any, gain: Any, *, device: str) -> Any:
    """The step with its mean added behind the matrix.

    As an argument of the matrix it would be copied to the host, and DALI's thread would wait for the GPU.
    """
    moved = _moved(image, matrix, shift, types.FLOAT)
    return fn.cast(moved + gain * _gray_mean(image, device=device), dtype=types.UINT8)


def _turn_hue(image: Any, sixths: Any, *, device: str = "cpu") -> Any:
    """Turn the hue by so many sixths of the circle, in HSV.

    Value v and chroma c stay; with the hue in sixths, channel n of red 5, green 3, blue 1 becomes
    v - c * clamp(min(k, 4 - k), 0, 1), k = (n + hue) mod 6 (Alvy Ray Smith's hexcone without its cases).
    """
    # Given as lists: numbers in their place would be constants on the GPU, which DALI copies back in every batch.
    r, g, b = (fn.cast(fn.slice(image, start=[n], shape=[1], axes=[2]), dtype=types.FLOAT) for n in range(3))
    v = math.max(r, math.max(g, b))
    c = v - math.min(r, math.min(g, b))
    is_r = v == r
    is_g = (v == g) & (v != r)
    is_b = (v != r) & (v != g)
    hue = sixths + (is_r * (g - b) + is_g * (b - r) + is_b * (r - g)) / math.max(c, 1.0) + 2 * is_g + 4 * is_b
    k = types.Constant(_CHANNELS, device=device) + hue
    k = k - 6 * math.floor(k / 6)
    level = v - c * math.clamp(math.min(k, 4 - k), 0.0, 1.0)
    return fn.cast(math.floor(level * _CUT_HUE), dtype=types.UINT8)


def _erase(image: Any, rect: Any, fill: Colours) -> Any:
    return fn.erase(image, anchor=rect[0:2], shape=rect[2:4], axis_names="HW", fill_value=list(fill))


def _finish(step: Finish, image: Any, given: _Inputs) -> Any:
    if step.adjusts:
        msg = f"dali engine: a graph on the CPU does its own colour; found {step!r}, made for a GPU"
        raise TypeError(msg)
    flip_x = given("flip_x", types.INT32, 0) if step.flip_x else 0
    if step.flip_y:
        image = fn.flip(image, horizontal=0, vertical=given("flip_y", types.INT32, 0))
    mean = [-b / s for s, b in zip(step.scale, step.bias, strict=True)]
    std = [1 / s for s in step.scale]
    image = fn.crop_mirror_normalize(
        image, mirror=flip_x, dtype=_DTYPE[step.dtype], output_layout=step.layout[1:], mean=mean, std=std
    )
    if step.erase is None:
        return image
    return _erase(image, fn.cast(given("erase", types.INT32, 1), dtype=types.FLOAT), step.erase)


def build_graph(
    program: Program | ViewsProgram[Program], *, gpu: bool, tuning: Tuning, spare: bool = False
) -> list[Any]:
    """The output nodes of `program`, one per view; call it with a pipeline as the current one. `spare`: of the twin."""
    decode = program.views[0].steps[0]
    if not isinstance(decode, Decode):
        msg = f"dali engine: a program begins with a decode; found {decode!r}"
        raise TypeError(msg)
    own = decoder_tuning(tuning, program.recipe.hw_decoder_load, spare=spare) if gpu else {}
    image = _decode(decode, _Inputs(), own)
    return [_view(view, image, _Inputs(number), gpu=gpu) for number, view in enumerate(program.views)]


def _view(program: Program, image: Any, given: _Inputs, *, gpu: bool) -> Any:
    """What is done to a decoded image."""
    for step in program.steps[1:]:
        match step:
            case Resample():
                image = _resample(step, image, given)
            case Slice():
                image = _slice(step, image, given)
            case Rotate():
                image = fn.rotate(
                    image,
                    angle=given(f"angle{step.k}", types.FLOAT, 0),
                    interp_type=_INTERPOLATION[step.interpolation],
                    keep_size=True,
                    fill_value=step.fill,
                )
            case Warp():
                image = fn.warp_affine(
                    image,
                    matrix=given(f"matrix{step.k}", types.FLOAT, 2),
                    interp_type=_INTERPOLATION[step.interpolation],
                    inverse_map=True,
                    fill_value=step.fill,
                )
            case Colour():
                image = _colour(step, image, given, gpu=gpu)
            case Finish():
                image = image if gpu else _finish(step, image, given)
            case Apply():
                image = step.build(image, given(f"{step.name}{step.k}", getattr(types, step.dtype), step.ndim))
            case UserGraph():
                image = step.call(image, lambda name: given(name, types.FLOAT, 0))
    return image
