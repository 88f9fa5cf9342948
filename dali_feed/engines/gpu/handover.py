"""DALI's outputs handed over as tensors of torch.

The law: no thread waits on the host, and the device as a whole is never waited for. DALI releases memory that was
handed over through DLPack by waiting for the device; so on a GPU it is copied, on the consumer's stream, into memory
that torch owns, and kept until an event says that the copy is done with it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from dali_feed.engines.gpu.kept import KEPT
from dali_feed.engines.gpu.uploads import Uploaded

__all__ = ["is_foreign", "keep", "owned", "tensor_of", "viewed"]

_CUDA, _PINNED = 2, 3  # DLPack's numbers; torch does not take the latter, host memory that CUDA knows


class _Seen:
    """Memory as __cuda_array_interface__ shows it, and nothing else, so that torch looks at it in no other way."""

    def __init__(self, images: Any) -> None:
        shown = images.__cuda_array_interface__
        self.__cuda_array_interface__ = {
            "shape": tuple(shown["shape"]),
            "typestr": np.dtype(shown["typestr"]).str,  # DALI writes "=B" where others write "|u1"
            "data": (shown["data"][0], False),
            "strides": shown.get("strides"),
            "version": 2,
        }


def is_foreign(images: Any) -> bool:
    """Whether it is memory of a GPU that torch does not own: DALI's."""
    ours = isinstance(images, torch.Tensor | Uploaded)
    return not ours and int(images.__dlpack_device__()[0]) == _CUDA


def tensor_of(images: Any) -> torch.Tensor:
    """An output, ready for any stream, or Uploaded: on a GPU ready on torch's current stream there.

    On the CPU a view of its memory.
    """
    if isinstance(images, torch.Tensor):
        return images
    kind, number = images.__dlpack_device__()
    if int(kind) == _PINNED:
        return torch.from_numpy(np.asarray(images))
    if isinstance(images, Uploaded):
        return images.on(torch.cuda.current_stream(number))
    if int(kind) == _CUDA:
        return owned(images, torch.device("cuda", number))
    tensor: torch.Tensor = torch.utils.dlpack.from_dlpack(images)
    return tensor


def owned(images: Any, device: torch.device) -> torch.Tensor:
    """A copy of an output on that GPU, in memory of torch's, enqueued on its current stream."""
    stream = torch.cuda.current_stream(device)
    copy = viewed(images, device).clone()
    keep(images, stream)
    return copy


def viewed(images: Any, device: torch.device) -> torch.Tensor:
    """An output on that GPU, ready for any stream, as it lies there: whoever reads it has to `keep` the output."""
    return torch.as_tensor(_Seen(images), device=device)


def keep(images: Any, stream: torch.cuda.Stream) -> None:
    """Hold the memory until what has been enqueued on `stream` by now is done."""
    done = torch.cuda.Event()  # type: ignore[no-untyped-call]
    done.record(stream)
    KEPT.keep(images, done)
