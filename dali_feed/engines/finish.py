"""Images as a training loop is given them: the finish step, in one launch on its own stream; and batches of no images.

Work on a GPU happens within `Device.hold`, which keeps what it reads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from dali_feed.engines.device.cuda import Device
from dali_feed.engines.device.ranges import FINISH
from dali_feed.kernels.finish import MixArrays, finish
from dali_feed.kernels.jitter import jitter
from dali_feed.transforms.program import Program, Tail, outline

__all__ = [
    "DTYPES",
    "Like",
    "exported",
    "finished",
    "like",
    "mixed_up",
    "no_images",
    "shape_of",
    "size_of",
    "tensor_of",
]

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
    are tensors there, or arrays of NumPy's.
    """
    if tail is None or device is None:
        return tensor_of(images, device)
    with FINISH:
        pixels = device.view(images)
        n, height, width, channels = pixels.shape
        layout, dtype = tail.finish.layout, DTYPES[tail.finish.dtype]
        shape = (n, channels, height, width) if layout == "NCHW" else (n, height, width, channels)
        if tail.adjust is not None:  # new memory: what DALI gave may belong to another view too
            adjusted = device.empty(tuple(pixels.shape), torch.uint8)
            device.launch(jitter, pixels, adjusted, _row(tail.adjust, device))
            pixels = adjusted
        out = device.empty(shape, dtype)
        whole = dtype == torch.uint8  # pixels as they are; only a float has a scale
        device.launch(
            finish,
            pixels,
            out,
            scale=None if whole else tail.finish.scale,
            bias=None if whole else tail.finish.bias,
            flip_x=_row(tail.flip_x, device),
            flip_y=_row(tail.flip_y, device),
            erase=_row(tail.erase, device),
            erase_value=tail.finish.erase,
            mix=None if mixing is None else _mix(mixing, device),
            layout=layout,
        )
        return out


def exported(images: Any, tail: Tail | None, device: Device, stream: int | None, options: dict[str, Any]) -> Any:
    """A DLPack capsule of the finished batch, ready on the consumer's `stream`; -1 is torch's current one."""
    with device.stream(stream), device.hold(images, tail):
        return finished(images, tail, device).__dlpack__(stream=-1, **options)


def _row(rows: Any, device: Device) -> torch.Tensor | None:
    """A parameter of a batch on the device. One that was not sent before is sent now."""
    if rows is None or isinstance(rows, torch.Tensor):
        return rows
    here = device.pinned(rows.shape, torch.from_numpy(rows).dtype)
    here.copy_(torch.from_numpy(rows))
    there = device.send(here)
    device.wait()
    return there


def _mix(mixing: MixArrays, device: Device) -> MixArrays:
    return MixArrays(*(_row(each, device) for each in (mixing.partner, mixing.weight, mixing.box)))


def mixed_up(images: torch.Tensor, mixing: MixArrays) -> torch.Tensor:
    """Finished images (n, 3, height, width) mixed into new memory, by torch: a graph of the user's made them.

    Rows of `mixing` as in `finished`; the arithmetic is that of `finish_reference`, whatever device they are on.
    """
    with FINISH:
        partner = torch.as_tensor(mixing.partner, device=images.device)
        given = (mixing.weight, mixing.box)
        weight, box = (None if each is None else torch.as_tensor(each, device=images.device) for each in given)
        n, _, height, width = images.shape
        row, mine = torch.arange(n, device=images.device), images.float()
        other = mine[torch.where((partner < 0) | (partner >= n), row, partner.long())]
        share = torch.ones(n, 1, 1, 1, device=images.device) if weight is None else weight.view(-1, 1, 1, 1)
        if box is not None:
            y, x = (torch.arange(size, device=images.device) for size in (height, width))
            top, left, tall, wide = box.long().T[..., None]
            rows, columns = (y >= top) & (y < top + tall), (x >= left) & (x < left + wide)
            share = torch.where((rows[:, :, None] & columns[:, None, :])[:, None], 0.0, share)
        both = mine * share + other * (1 - share)
        return torch.where(share == 1, mine, torch.where(share == 0, other, both)).to(images.dtype)


# Images of a batch without records: no rows, of the shape and dtype that a program's images have.


Like = tuple[tuple[int, ...], torch.dtype]  # of one image


def like(images: Any) -> Like:
    """The shape of one of these images, and their dtype; nothing is copied, and no GPU is waited for."""
    if isinstance(images, torch.Tensor):
        return tuple(images.shape[1:]), images.dtype
    shown = getattr(images, "__cuda_array_interface__", None)
    if shown is not None:
        return tuple(shown["shape"][1:]), torch.from_numpy(np.empty(0, np.dtype(shown["typestr"]))).dtype
    tensor: torch.Tensor = torch.utils.dlpack.from_dlpack(images)
    return tuple(tensor.shape[1:]), tensor.dtype


def no_images(program: Program, device: int | None, seen: dict[int, Like]) -> list[torch.Tensor]:
    """For each output of the program a tensor of no rows, in the layout that an engine gives, on its device.

    `seen`: by output what images were like, where the program does not say: of unknown size they are (0, 3, 0, 0).
    """
    made = []
    for number, output in enumerate(program.outputs):
        shape, dtype = seen.get(number, ((), torch.uint8))
        layout = output.recipe.layout
        if program.fixed:
            known = outline(output.recipe)
            dtype = DTYPES[known.dtype]
            if known.size is not None:
                shape = (3, *known.size) if layout == "NCHW" else (*known.size, 3)
        shape = shape or ((3, 0, 0) if layout == "NCHW" else (0, 0, 3))
        made.append(torch.empty((0, *shape), dtype=dtype, device="cpu" if device is None else f"cuda:{device}"))
    return made
