"""One image through a host program's steps, as torchvision v2 takes a tensor through its transforms.

Each op makes its own steps. The common ones (resize, mirror, to float, normalize) call torch itself in the order and
with the operands of torchvision's kernels, because a call of theirs costs ten microseconds under the interpreter's
lock; tests hold the two equal bit for bit. All else is torchvision's own functions. Where there is a C library, it does
the steps from the mirror on in one pass (`levels.py`).
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from dali_feed.compiler.host import HostProgram
from dali_feed.engines.host.levels import levels_of
from dali_feed.engines.host.tail import split_tail
from dali_feed.transforms.base import OnImage
from dali_feed.transforms.keys import Arrays

__all__ = ["ImageSteps"]


class ImageSteps:
    """A program's steps, ready to run. Used by many threads at once."""

    def __init__(self, program: HostProgram) -> None:
        steps, self._tail = split_tail(program)
        self._apply: list[OnImage] = [apply for step in steps for apply in step.on_image()]
        self._channels_first = program.layout == "NCHW"
        self._levels = levels_of(program)
        before = [] if self._levels is None else steps[: self._levels.first]
        self._before = sum(len(step.on_image()) for step in before)  # functions that the pass is behind

    def run(self, pixels: NDArray[np.uint8], arrays: Arrays, slot: int, out: torch.Tensor) -> None:
        """`pixels` (height, width, 3), with row `slot` of the parameters, into `out`, the slot's place in the batch."""
        self.run_on(torch.from_numpy(pixels).permute(2, 0, 1), arrays, slot, out)

    def run_on(self, image: torch.Tensor, arrays: Arrays, slot: int, out: torch.Tensor) -> None:
        """The same for an image (3, height, width), on any device."""
        done = 0
        if self._levels is not None:
            for apply in self._apply[: self._before]:
                image = apply(image, arrays, slot)
            if self._levels.run(image, out, arrays, slot):
                return
            done = self._before
        for apply in self._apply[done:] if done else self._apply:
            image = apply(image, arrays, slot)
        image = image.expand(3, -1, -1)  # of one channel three that are equal: a batch has three
        if not self._channels_first:
            image = image.permute(1, 2, 0)
        if self._tail is None:
            out.copy_(image)
        else:
            self._tail.run(image, out, arrays, slot)
