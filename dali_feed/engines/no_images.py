"""Images of a batch without records, as tensors: no rows, of the shape and dtype that a program's images have."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from dali_feed.compiler.program import Program, outline

__all__ = ["DTYPES", "Like", "like", "no_images"]

# That a recipe may end in, as torch knows them.
DTYPES = {"uint8": torch.uint8, "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}

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
