"""Images as a training loop is given them: the finish step, in one launch on its own stream; and batches of no images.

Work on a GPU happens within `Device.hold`, which keeps what it reads. Where no kernel can be compiled, torch's
operations do the same.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch

from dali_feed.columns.array import Factors, Scaled
from dali_feed.engines.device.cuda import Device
from dali_feed.engines.device.ranges import FINISH
from dali_feed.kernels.augment import augment, copies
from dali_feed.kernels.finish import MixArrays, finish
from dali_feed.kernels.jitter import jitter
from dali_feed.kernels.launch import compiles
from dali_feed.kernels.unpack import unpack
from dali_feed.transforms.program import Program, Tail, outline

# That a recipe may end in, as torch knows them.
DTYPES = {"uint8": torch.uint8, "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}

_PINNED = 3  # DLPack's number of host memory that CUDA knows, which torch does not take


def tensor_of(images: Any, device: Device | None = None) -> torch.Tensor:
    """An output as a tensor: of the CPU a view of its memory, of a GPU a copy in memory of torch's current stream."""
    if device is not None:
        return device.copy(images)
    if isinstance(images, torch.Tensor):
        return images
    if int(images.__dlpack_device__()[0]) == _PINNED:
        return torch.from_numpy(np.asarray(images))
    tensor: torch.Tensor = torch.utils.dlpack.from_dlpack(images)
    return tensor


def shape_of(images: Any) -> tuple[int, ...]:
    """The shape of an engine's images: a tensor, or DALI's own type, whose `shape` is a method."""
    if isinstance(images, torch.Tensor):
        return tuple(images.shape)
    shown = getattr(images, "__cuda_array_interface__", None) or images.__array_interface__
    return tuple(shown["shape"])


def size_of(images: Any) -> tuple[int, int]:
    """Height and width of images (n, height, width, 3) that are not finished."""
    _, height, width, _ = shape_of(images)
    return height, width


def finished(images: Any, tail: Tail | None, device: Device | None, mixing: MixArrays | None = None) -> torch.Tensor:
    """(n, 3, height, width), or the recipe's layout; on a GPU new memory, filled on torch's current stream.

    `images`: with a `tail` uint8 (n, height, width, 3) of `device`, torch's or DALI's. Rows of the tail and of `mixing`
    are tensors there, as `Parcels` has sent them.
    """
    if tail is None or device is None:
        return tensor_of(images, device)
    with FINISH:
        pixels = device.view(images)
        n, height, width, channels = pixels.shape
        layout, dtype = tail.finish.layout, DTYPES[tail.finish.dtype]
        shape = (n, channels, height, width) if layout == "NCHW" else (n, height, width, channels)
        if tail.augment is not None:
            pixels = _augmented(pixels, tail.augment, tail.shares, device)
        if tail.adjust is not None:  # new memory: what DALI gave may belong to another view too
            adjusted = device.empty(tuple(pixels.shape), torch.uint8)
            device.launch(jitter, pixels, adjusted, tail.adjust)
            pixels = adjusted
        out = device.empty(shape, dtype)
        whole = dtype == torch.uint8  # pixels as they are; only a float has a scale
        device.launch(
            finish if compiles() else by_torch,
            pixels,
            out,
            scale=None if whole else tail.finish.scale,
            bias=None if whole else tail.finish.bias,
            flip_x=tail.flip_x,
            flip_y=tail.flip_y,
            erase=tail.erase,
            erase_value=tail.finish.erase,
            mix=mixing,
            layout=layout,
        )
        return out


def _augmented(pixels: torch.Tensor, rows: torch.Tensor, shares: torch.Tensor | None, device: Device) -> torch.Tensor:
    """What the stages of `rows` make of the images, in new memory: what DALI gave may belong to another view too."""
    _, chains, stages, _ = rows.shape
    room = copies(chains, stages, mixed=shares is not None)
    spare = device.empty((room, *pixels.shape), torch.uint8) if room else None
    out = device.empty(tuple(pixels.shape), torch.uint8)
    device.launch(augment, pixels, out, rows, spare=spare, weights=shares)
    return out


def rehearse(images: Any, tail: Tail, device: Device, *, mixed: bool) -> None:
    """Compile what `finished` launches for batches like this one, and launch it once, on an image of anything.

    In the feed thread, behind what was sent: the first `next()` of the training loop would wait for it.
    """
    own: dict[str, Any] = {each.name: getattr(tail, each.name) for each in fields(tail) if each.name != "finish"}
    with device.sending(), device.hold():
        one = device.empty((1, *size_of(images), 3), torch.uint8)
        row: dict[str, Any] = {
            name: device.empty((1, *rows.shape[1:]), rows.dtype) for name, rows in own.items() if rows is not None
        }
        kinds = ((), torch.int32), ((), torch.float32), ((4,), torch.int32)
        mixing = MixArrays(*(device.empty((1, *shape), dtype) for shape, dtype in kinds)) if mixed else None
        finished(one, replace(tail, **row), device, mixing)


def scaled(rows: torch.Tensor, numbers: Scaled, device: Device) -> torch.Tensor:
    """`rows`, uint8 or uint16 on the device, as float32: rows * scale + bias in one launch, in new memory."""
    out = device.empty(tuple(rows.shape), torch.float32)
    factors = [each if isinstance(each, tuple) else (each,) for each in (numbers.scale, numbers.bias)]
    count, channels = len(rows), max(map(len, factors))
    shape = (1, rows[0].numel() // channels, channels)
    device.launch(
        unpack if compiles() else scaled_by_torch,
        rows.reshape(count, -1).view(torch.uint8),
        out.view(count, *shape),
        shape=shape,
        bits=8 * rows.itemsize,
        scale=numbers.scale,
        bias=numbers.bias,
        layout="NHWC",
    )
    return out


def scaled_by_torch(
    records: torch.Tensor,
    out: torch.Tensor,
    *,
    shape: tuple[int, ...],
    bits: int,
    scale: Factors,
    bias: Factors,
    layout: str,
    stream: object = None,
) -> None:
    """Do what the kernel `unpack` does of 8 and 16 bits, little-endian, pixel by pixel: to the bit, in some passes."""
    del stream, layout
    out.copy_((records if bits == 8 else records.view(torch.uint16)).view(-1, *shape))
    for change, factors, neutral in ((torch.Tensor.mul_, scale, 1), (torch.Tensor.add_, bias, 0)):
        each = np.broadcast_to(np.asarray(neutral if factors is None else factors, np.float32), shape[-1])
        for channel, factor in zip(out.unbind(-1), each.tolist(), strict=True):
            change(channel, factor)


def rehearse_scaled(numbers: Scaled, device: Device) -> None:
    """The same as `rehearse`, of a column of numbers."""
    with device.sending(), device.hold():
        rows = torch.from_numpy(numbers.rows[:1])
        scaled(device.empty(tuple(rows.shape), rows.dtype), numbers, device)


def exported(images: Any, tail: Tail | None, device: Device, stream: int | None, options: dict[str, Any]) -> Any:
    """A DLPack capsule of the finished batch, ready on the consumer's `stream`; -1 is torch's current one."""
    with device.stream(stream), device.hold(images, tail):
        return finished(images, tail, device).__dlpack__(stream=-1, **options)


def mixed_up(images: torch.Tensor, mixing: MixArrays) -> torch.Tensor:
    """Finished images (n, 3, height, width) mixed into new memory, by torch: a graph of the user's made them.

    Rows of `mixing` as in `finished`; the arithmetic is that of the kernel `finish`, whatever device they are on.
    """
    with FINISH:
        return _mixed(images.float(), mixing).to(images.dtype)


def by_torch(  # noqa: PLR0913 - what the kernel does, one keyword each
    images: torch.Tensor,
    out: torch.Tensor,
    *,
    flip_x: torch.Tensor | None = None,
    flip_y: torch.Tensor | None = None,
    scale: Sequence[float] | None = None,
    bias: Sequence[float] | None = None,
    erase: torch.Tensor | None = None,
    erase_value: Sequence[float] | None = None,
    mix: MixArrays | None = None,
    layout: str = "NCHW",
    stream: object = None,
) -> None:
    """Do what the kernel `finish` does, and judge it, on any device's current stream, in dozens of passes over memory.

    To the bit: value * scale + bias is rounded once. No number goes to the GPU as a tensor: that would wait for its
    queued work.
    """
    del stream
    whole, planes = images.permute(0, 3, 1, 2), []
    for axis, flips in ((3, flip_x), (2, flip_y)):
        if flips is not None:
            whole = torch.where(flips.view(-1, 1, 1, 1) != 0, whole.flip(axis), whole)
    gains, shifts, fills = _three(scale, 1), _three(bias, 0), _three(erase_value, 0)
    for plane, gain, shift, erased in zip(whole.unbind(1), gains, shifts, fills, strict=True):
        value = _fma(plane, gain, shift)
        planes.append(value if erase is None else value.masked_fill(_within(erase, value), erased))
    value = torch.stack(planes, 1)
    value = value if mix is None else _mixed(value, mix)
    value = value.round() if out.dtype == torch.uint8 else value
    out.copy_(value if layout == "NCHW" else value.permute(0, 2, 3, 1))


def _fma(levels: torch.Tensor, gain: float, shift: float) -> torch.Tensor:
    """Return levels * gain + shift as float32, rounded once.

    The product is whole in float64; where the sum is not, its last bit is set, so that the rounding to float32 sees on
    which side of a tie the exact value lies.
    """
    product = levels.double() * gain
    total = product + shift
    part = total - product
    lost = (product - (total - part)) + (shift - part)
    odd = torch.nextafter(total, torch.full_like(total, math.inf).copysign(lost))
    inexact = total.isfinite() & (lost != 0) & (total.view(torch.int64) & 1 == 0)
    return torch.where(inexact, odd, total).float()


def _three(numbers: Sequence[float] | None, neutral: float) -> list[float]:
    """As many float32 numbers, of one or of none."""
    three: list[float] = np.broadcast_to(np.asarray(neutral if numbers is None else numbers, np.float32), 3).tolist()
    return three


def _mixed(mine: torch.Tensor, mixing: MixArrays) -> torch.Tensor:
    """Images of float32 (n, 3, height, width), each mixed with its partner: two products and a sum, each rounded."""
    there: Callable[[Any], torch.Tensor] = functools.partial(torch.as_tensor, device=mine.device)
    row, partner = torch.arange(len(mine), device=mine.device), there(mixing.partner)
    other: torch.Tensor = mine[torch.where((partner < 0) | (partner >= len(mine)), row, partner.long())]
    share = torch.ones(len(mine), device=mine.device) if mixing.weight is None else there(mixing.weight)
    share = share.view(-1, 1, 1, 1)
    if mixing.box is not None:
        share = torch.where(_within(there(mixing.box), mine)[:, None], 0.0, share)
    both = mine * share + other * (1 - share)
    mixed: torch.Tensor = torch.where(share == 1, mine, torch.where(share == 0, other, both))
    return mixed


def _within(boxes: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    """Whether each pixel of images (n, ..., height, width) lies in its y, x, height, width: bool (n, height, width)."""
    y, x = (torch.arange(size, device=images.device) for size in images.shape[-2:])
    top, left, tall, wide = boxes.long().T[..., None]
    rows, columns = (y >= top) & (y < top + tall), (x >= left) & (x < left + wide)
    within: torch.Tensor = rows[:, :, None] & columns[:, None, :]
    return within


# Images of a batch without records: no rows, of the shape and dtype that a program's images have.


Like = tuple[tuple[int, ...], torch.dtype]  # of one image


def like(images: Any) -> Like:
    """The shape of one of these images, and their dtype; nothing is copied, and no GPU is waited for."""
    if not isinstance(images, torch.Tensor):
        there = getattr(images, "__cuda_array_interface__", None)
        if there is not None:
            return tuple(there["shape"][1:]), torch.from_numpy(np.empty(0, np.dtype(there["typestr"]))).dtype
        images = torch.utils.dlpack.from_dlpack(images)
    return tuple(images.shape[1:]), images.dtype


def no_images(program: Program, device: int | None, seen: dict[int, Like]) -> list[torch.Tensor]:
    """For each output of the program a tensor of no rows, in the layout that an engine gives, on its device.

    `seen`: by output what images were like, where the program does not say: of unknown size they are (0, 3, 0, 0).
    """
    tensors = []
    for number, output in enumerate(program.outputs):
        shape, dtype = seen.get(number, ((), torch.uint8))
        layout = output.recipe.layout
        if program.fixed:
            known = outline(output.recipe)
            dtype = DTYPES[known.dtype]
            if known.size is not None:
                shape = (3, *known.size) if layout == "NCHW" else (*known.size, 3)
        shape = shape or ((3, 0, 0) if layout == "NCHW" else (0, 0, 3))
        tensors.append(torch.empty((0, *shape), dtype=dtype, device="cpu" if device is None else f"cuda:{device}"))
    return tensors
