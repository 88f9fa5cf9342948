"""A function of the user's on one image of the host engine, handed over as the PIL image that torchvision would have.

Many threads call it at once, each with an image of its own.
"""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray

from dali_feed.compiler.host_effects import Ask
from dali_feed.errors import TransformError
from dali_feed.transforms.own import name_of

__all__ = ["ask"]


def ask(image: torch.Tensor, arrays: dict[str, NDArray[Any]], slot: int, step: Ask) -> torch.Tensor:
    """What the function makes of the image, where the sample is one that it is for."""
    from torchvision.transforms.v2 import functional

    if not arrays[step.key][slot]:
        return image
    given = functional.to_pil_image((image[:1] if step.op.gray else image).contiguous())
    try:
        made = step.op.function(given)
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
        msg = f"transform: {name_of(step.op.function)} raised on an image that decodes; {told}"
        raise TransformError(msg) from error
    mode = given.mode
    if getattr(made, "size", None) != given.size or getattr(made, "mode", None) != mode:
        found = f"{getattr(made, 'mode', type(made).__name__)} of {getattr(made, 'size', 'no size')}"
        rule = f"must give a PIL image of the mode and size that it was given, {mode} of {given.size}"
        msg = f"transform: {name_of(step.op.function)} {rule}; found {found}. torch's own DataLoader takes it"
        raise TransformError(msg)
    out: torch.Tensor = functional.pil_to_tensor(made)
    return out.to(image.device)
