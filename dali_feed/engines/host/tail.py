"""The tail: what nearly every recipe ends in, run in the memory of the batch itself.

To float, scaled to 0..1, then normalized, then erased: torchvision's operations in its order, so its bits, without
a copy of the image between them.
"""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray

from dali_feed.compiler.host import HostProgram, HostStep
from dali_feed.compiler.host_effects import OfOp
from dali_feed.engines.dtypes import DTYPES
from dali_feed.transforms.base import OnPlanes
from dali_feed.transforms.recipe import Normalize, ToFloat

__all__ = ["Tail", "split_tail"]

_SCALE = torch.tensor(1 / 255)  # a tensor: torch makes one of a number at each call


class Tail:
    """To `dtype`, by 1/255 where `scale` says so, normalized, erased. Used by many threads at once."""

    def __init__(self, program: HostProgram, norms: list[Normalize], erasures: list[OnPlanes], *, scale: bool) -> None:
        self._scale, self._norms, self._erasures = scale, norms, erasures
        self._dtype, self._planes = DTYPES[program.dtype], program.layout == "NCHW"
        self._factors: dict[tuple[int, torch.device], list[tuple[torch.Tensor, torch.Tensor]]] = {}

    def run(self, image: torch.Tensor, out: torch.Tensor, arrays: dict[str, NDArray[Any]], slot: int) -> None:
        """One image, in the layout of the batch, into its place there, with row `slot` of the parameters."""
        if self._scale and out.dtype == torch.float32:
            torch.mul(image, _SCALE, out=out)
        else:
            out.copy_(image)
            if self._scale:
                out.mul_(1 / 255)
        if self._norms:
            height, width = out.shape[:2]
            rows = out if self._planes else out.view(height, 3 * width)
            for mean, std in self._made(0 if self._planes else width, out.device):
                rows.sub_(mean).div_(std)
        for erase in self._erasures:
            erase(out if self._planes else out.permute(2, 0, 1), arrays, slot)

    def _made(self, width: int, device: torch.device) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Means and deviations as they meet the image: a number per plane, or one row of pixels."""
        made = self._factors.get((width, device))
        if made is None:
            made = [(self._shaped(op.mean, width, device), self._shaped(op.std, width, device)) for op in self._norms]
            self._factors[width, device] = made
        return made

    def _shaped(self, values: tuple[float, ...], width: int, device: torch.device) -> torch.Tensor:
        three = torch.tensor(values, dtype=self._dtype, device=device).expand(3)
        return three.repeat(width) if width else three.view(3, 1, 1)


def split_tail(program: HostProgram) -> tuple[list[HostStep], Tail | None]:
    """The steps, and the tail behind them where they end in one."""
    steps = list(program.steps)
    cut = next((n for n, step in enumerate(steps) if isinstance(step, ToFloat)), len(steps))
    first, rest = steps[cut : cut + 1], steps[cut + 1 :]
    norms = [step for step in rest if isinstance(step, Normalize)]
    erasures = [step.op.on_planes(step.key) for step in rest if isinstance(step, OfOp)]
    behind = rest[len(norms) :]
    if not first or len(behind) != len(erasures) or not all(isinstance(step, OfOp) for step in behind):
        return steps, None
    in_place = [erase for erase in erasures if erase is not None]
    to = first[0]
    if not isinstance(to, ToFloat) or to.dtype != program.dtype or to.dtype == "uint8":
        return steps, None
    if len(in_place) < len(erasures):
        return steps, None
    return steps[:cut], Tail(program, norms, in_place, scale=to.scale)
