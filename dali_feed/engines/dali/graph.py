"""The DALI graph of a program. The device is an argument: the same graph runs on DALI's CPU backend.

All random numbers enter as inputs; no stateful random operator is used. On the CPU the graph ends with
the normalized batch; on a GPU it ends with dense uint8 HWC, and our finish kernel does the rest on the
consumer's stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nvidia.dali import fn, types

from dali_feed.compiler.dali import DaliProgram
from dali_feed.compiler.program import Colours, DecodeStep, Finish, Resample, Slice
from dali_feed.transforms.keys import ERASE, FLIPS, TURN, WINDOW, Key, numbered, viewed
from dali_feed.transforms.op import DRAWN, INTERPOLATION

__all__ = ["NOTHING_BEFOREHAND", "PAYLOAD", "build_graph", "decoder_options"]


PAYLOAD = Key("payload")
NOTHING_BEFOREHAND = {
    "device_memory_padding": 0,
    "host_memory_padding": 0,
}  # DALI's defaults: 16 MB and twice 8 MB for each thread

_INTERPOLATION = {name: getattr(types, code) for name, code in INTERPOLATION.items()}
_DTYPE = {
    "uint8": types.UINT8,
    "float32": types.FLOAT,
    "float16": types.FLOAT16,
    "bfloat16": types.FLOAT,  # not a DALI type: cast where the batch becomes a tensor
}


class _Inputs:
    """The inputs of one view of an image."""

    def __init__(self, view: int = 0) -> None:
        self._view = view

    def __call__(self, key: Key, dtype: str, ndim: int) -> Any:
        """The node of an array, by its name, dtype (a name of `nvidia.dali.types`) and axes."""
        return fn.external_source(name=viewed(key, self._view), no_copy=True, dtype=getattr(types, dtype), ndim=ndim)


def decoder_options(hardware: float = 0.0, *, spare: bool = False) -> dict[str, Any]:
    """A mixed decoder's own options; all else is DALI's default. A `spare` one takes no memory ahead.

    The JPEG engine's share is not left at DALI's 0.65: a sample's pixels would depend on the rest of its batch.
    """
    return {"hw_decoder_load": hardware, **(NOTHING_BEFOREHAND if spare else {})}


def _decode(step: DecodeStep, given: _Inputs, own: dict[str, Any]) -> Any:
    """`own`: a mixed decoder's options; on the CPU there are none."""
    payload = given(PAYLOAD, "UINT8", 1)
    options: dict[str, Any] = {
        "device": "mixed" if own else "cpu",
        "output_type": types.RGB,
        "adjust_orientation": False,  # DALI reads some EXIF blocks otherwise than the screen, which sizes come from
        "jpeg_fancy_upsampling": True,  # libjpeg's own method, as in torchvision
    }
    options |= own
    if step.window:
        window = given(WINDOW, "INT32", 1)
        image = fn.decoders.image_slice(payload, start=window[0:2], shape=window[2:4], axis_names="HW", **options)
    else:
        image = fn.decoders.image(payload, **options)
    return _turned(image, given(TURN, "INT32", 1)) if step.turns else image


def _turned(image: Any, turn: Any) -> Any:
    """Turned where that is needed. Others are passed by, without a copy: these two operators are an `if` of DALI's."""
    split, merge = fn._conditional.split, fn._conditional.merge
    mirrored, sideways = (turn[0] + turn[1]) > 0, turn[2] > 0
    some, others = split(image, predicate=mirrored)
    ways, _ = split(turn, predicate=mirrored)
    image = merge(fn.flip(some, vertical=ways[0], horizontal=ways[1]), others, predicate=mirrored)
    some, others = split(image, predicate=sideways)
    return merge(fn.transpose(some, perm=[1, 0, 2], transpose_layout=False), others, predicate=sideways)


def _interpolation(step: Resample, given: _Inputs) -> Any:
    if step.interpolation != "random":
        return _INTERPOLATION[step.interpolation]
    codes = [int(_INTERPOLATION[name]) for name in DRAWN]
    first, by = codes[0], codes[1] - codes[0]  # DALI has no look-up; there are two, and their codes are numbers
    return fn.reinterpret(given(numbered("mode", step.k), "INT32", 0) * by + first, dtype=types.INTERP_TYPE)


def _resample(step: Resample, image: Any, given: _Inputs) -> Any:
    options: dict[str, Any] = {"interp_type": _interpolation(step, given), "antialias": step.antialias}
    options["size"] = step.size or given(numbered("size", step.k), "FLOAT", 1)
    if step.roi:
        roi = given(numbered("roi", step.k), "FLOAT", 1)
        options.update(roi_start=roi[0:2], roi_end=roi[2:4])
    return fn.resize(image, **options)


def _slice(step: Slice, image: Any, given: _Inputs) -> Any:
    anchor = given(numbered("anchor", step.k), "INT32", 1)
    shape = step.size or given(numbered("shape", step.k), "INT32", 1)
    return fn.slice(
        image, start=anchor, shape=shape, axes=[0, 1], out_of_bounds_policy="pad", fill_values=list(step.fill)
    )


def _erase(image: Any, rect: Any, fill: Colours) -> Any:
    return fn.erase(image, anchor=rect[0:2], shape=rect[2:4], axis_names="HW", fill_value=list(fill))


def _finish(step: Finish, image: Any, given: _Inputs) -> Any:
    if step.adjusts:
        msg = f"dali engine: a graph on the CPU does its own colour; found {step!r}, made for a GPU"
        raise TypeError(msg)
    flip_x = given(FLIPS["x"], "INT32", 0) if step.flip_x else 0
    if step.flip_y:
        image = fn.flip(image, horizontal=0, vertical=given(FLIPS["y"], "INT32", 0))
    mean = [-b / s for s, b in zip(step.scale, step.bias, strict=True)]
    std = [1 / s for s in step.scale]
    image = fn.crop_mirror_normalize(
        image, mirror=flip_x, dtype=_DTYPE[step.dtype], output_layout=step.layout[1:], mean=mean, std=std
    )
    if step.erase is None:
        return image
    return _erase(image, fn.cast(given(ERASE, "INT32", 1), dtype=types.FLOAT), step.erase)


def build_graph(programs: Sequence[DaliProgram], *, gpu: bool, spare: bool = False) -> list[Any]:
    """The output nodes of programs of one decoded image; call it with a pipeline as the current one.

    `spare`: of the twin.
    """
    decode = programs[0].steps[0]
    if not isinstance(decode, DecodeStep):
        msg = f"dali engine: a program begins with a decode; found {decode!r}"
        raise TypeError(msg)
    own = decoder_options(programs[0].recipe.hardware, spare=spare) if gpu else {}
    image = _decode(decode, _Inputs(), own)
    return [_view(program, image, _Inputs(number), gpu=gpu) for number, program in enumerate(programs)]


def _view(program: DaliProgram, image: Any, given: _Inputs, *, gpu: bool) -> Any:
    """The steps after decoding."""
    for step in program.steps[1:]:
        match step:
            case Resample():
                image = _resample(step, image, given)
            case Slice():
                image = _slice(step, image, given)
            case Finish():
                image = image if gpu else _finish(step, image, given)
            case DecodeStep():
                msg = f"dali engine: a program has one decode, which it begins with; found {step!r}"
                raise TypeError(msg)
            case _:
                image = step.on(image, given, gpu=gpu)
    return image
