"""One image through a host program's steps, as torchvision v2 takes a tensor through its transforms.

The common way (resize, mirror, to float, normalize) calls torch itself in the order and with the operands of
torchvision's kernels, because a call of theirs costs ten microseconds under the interpreter's lock; tests
hold the two equal bit for bit. All else is torchvision's own functions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import interpolate

from dali_feed.compiler.host import Crop, HostProgram, HostStep, Jitter, Margin, Mirror, Move, Pick, Scale, Turn
from dali_feed.compiler.host_effects import Call, OfOp
from dali_feed.engines.dtypes import DTYPES
from dali_feed.engines.host.tail import split_tail
from dali_feed.transforms.batch_draws import DRAWN
from dali_feed.transforms.recipe import Normalize, ToFloat
from dali_feed.transforms.rules import Fill

__all__ = ["ImageSteps"]

Arrays = dict[str, NDArray[Any]]
Apply = Callable[[torch.Tensor, Arrays, int], torch.Tensor]


@functools.cache
def _native_uint8(interpolation: str) -> bool:
    """Whether torchvision resizes uint8 as it is on this CPU, or by way of float32."""
    from torchvision.transforms.v2.functional import _geometry

    return bool(_geometry._do_native_uint8_resize_on_cpu(_geometry.InterpolationMode(interpolation)))


def _scale(image: torch.Tensor, arrays: Arrays, slot: int, step: Scale) -> torch.Tensor:
    height, width, *which = arrays[step.key][slot].tolist()
    name = DRAWN[which[0]] if which else step.interpolation
    channels, h, w = image.shape
    if (height, width) == (h, w):
        return image
    smooth = name != "nearest-exact"
    if image.dtype != torch.uint8 or image.is_cuda or (smooth and not _native_uint8(name)):
        from torchvision.transforms.v2 import InterpolationMode, functional

        mode = InterpolationMode(name)
        resized: torch.Tensor = functional.resize_image(
            image, [height, width], interpolation=mode, antialias=step.antialias
        )
        return resized
    if image.stride() == (1, w * channels, channels):  # as decoded: say so, or torch packs the output anew
        batch = image.as_strided((1, channels, h, w), (h * w * channels, 1, w * channels, channels))
    else:
        batch = image[None]
    return interpolate(
        batch,
        size=[height, width],
        mode=name,
        align_corners=False if smooth else None,
        antialias=step.antialias and smooth,
    )[0]


def _fill(fill: Fill) -> list[float]:
    return [fill] if isinstance(fill, int | float) else list(fill)


def _margin(image: torch.Tensor, arrays: Arrays, slot: int, step: Margin) -> torch.Tensor:
    from torchvision.transforms.v2 import functional

    edges = arrays[step.key][slot].tolist()
    out: torch.Tensor = functional.pad_image(image, edges, _fill(step.fill), step.mode) if any(edges) else image
    return out


def _crop(image: torch.Tensor, arrays: Arrays, slot: int, step: Crop) -> torch.Tensor:
    y, x, height, width = arrays[step.key][slot].tolist()
    h, w = image.shape[-2:]
    if y >= 0 and x >= 0 and y + height <= h and x + width <= w:
        return image[:, y : y + height, x : x + width]
    out = image.new_empty((image.shape[0], height, width))
    fill = torch.tensor(_fill(step.fill)).to(image.dtype)  # cut off to a whole level, as torchvision does
    out[:] = fill.view(-1, 1, 1)
    top, left, bottom, right = max(y, 0), max(x, 0), min(y + height, h), min(x + width, w)
    out[:, top - y : bottom - y, left - x : right - x] = image[:, top:bottom, left:right]
    return out


def _mirror(image: torch.Tensor, arrays: Arrays, slot: int, step: Mirror) -> torch.Tensor:
    return image.flip(-1 if step.axis == "x" else -2) if arrays[step.key][slot] else image


def _jitter(image: torch.Tensor, arrays: Arrays, slot: int, step: Jitter) -> torch.Tensor:
    from torchvision.transforms.v2 import functional

    factors = arrays[step.key][slot].tolist()
    for k in arrays[f"{step.key}_order"][slot].tolist():
        adjust = getattr(functional, f"adjust_{step.names[k]}_image")
        image = adjust(image, factors[k])
    return image


def _call(image: torch.Tensor, arrays: Arrays, slot: int, step: Call) -> torch.Tensor:
    from torchvision.transforms.v2 import functional

    if not arrays[step.key][slot]:
        return image
    out: torch.Tensor = getattr(functional, step.kernel)(image, *step.args)
    return out


def _turn(image: torch.Tensor, arrays: Arrays, slot: int, step: Turn) -> torch.Tensor:
    from torchvision.transforms.v2 import InterpolationMode, functional

    angle, mode = float(arrays[step.key][slot]), InterpolationMode(step.interpolation)
    turned: torch.Tensor = functional.rotate_image(image, angle, interpolation=mode, fill=_fill(step.fill))
    return turned


def _move(image: torch.Tensor, arrays: Arrays, slot: int, step: Move) -> torch.Tensor:
    from torchvision.transforms.v2 import InterpolationMode, functional

    angle, *moved, scale, x, y = arrays[step.key][slot].tolist()
    center = None if step.center is None else list(step.center)
    mode, fill = InterpolationMode(step.interpolation), _fill(step.fill)
    out: torch.Tensor = functional.affine_image(
        image, angle, moved, scale, [x, y], interpolation=mode, fill=fill, center=center
    )
    return out


def _to_float(image: torch.Tensor, _: Arrays, __: int, step: ToFloat) -> torch.Tensor:
    from torchvision.transforms.v2 import functional

    out: torch.Tensor = functional.to_dtype_image(image, DTYPES[step.dtype], scale=step.scale)
    return out


def _normalize(image: torch.Tensor, _: Arrays, __: int, step: Normalize) -> torch.Tensor:
    from torchvision.transforms.v2 import functional

    out: torch.Tensor = functional.normalize_image(image, list(step.mean), list(step.std))
    return out


def _pick(image: torch.Tensor, arrays: Arrays, slot: int, step: Pick) -> torch.Tensor:
    for branch in arrays[step.key][slot].tolist():
        for inner in step.branches[branch] if branch >= 0 else ():
            image = _applied(inner)(image, arrays, slot)
    return image


_APPLY: dict[type[HostStep], Callable[..., torch.Tensor]] = {
    Call: _call,
    Crop: _crop,
    Jitter: _jitter,
    Margin: _margin,
    Mirror: _mirror,
    Move: _move,
    Normalize: _normalize,
    Pick: _pick,
    Scale: _scale,
    ToFloat: _to_float,
    Turn: _turn,
}


def _applied(step: HostStep) -> Apply:
    if isinstance(step, OfOp):
        return step.op.on_image(step.key)
    return functools.partial(_APPLY[type(step)], step=step)


class ImageSteps:
    """A program's steps, ready to run. Used by many threads at once."""

    def __init__(self, program: HostProgram) -> None:
        steps, self._tail = split_tail(program)
        self._apply: list[Apply] = [_applied(step) for step in steps]
        self._channels_first = program.layout == "NCHW"

    def run(self, pixels: NDArray[np.uint8], arrays: Arrays, slot: int, out: torch.Tensor, *, done: int = 0) -> None:
        """`pixels` (height, width, 3), with row `slot` of the parameters, into `out`, the slot's place in the batch.

        The first `done` steps have been taken already.
        """
        self.run_on(torch.from_numpy(pixels).permute(2, 0, 1), arrays, slot, out, done=done)

    def run_on(self, image: torch.Tensor, arrays: Arrays, slot: int, out: torch.Tensor, *, done: int = 0) -> None:
        """The same for an image (3, height, width), on any device."""
        for apply in self._apply[done:] if done else self._apply:
            image = apply(image, arrays, slot)
        image = image.expand(3, -1, -1)  # of one channel three that are equal: a batch has three
        if not self._channels_first:
            image = image.permute(1, 2, 0)
        if self._tail is None:
            out.copy_(image)
        else:
            self._tail.run(image, out, arrays, slot)
