"""One recipe by the DALI engine on the CPU, beside the host engine; and how far two results lie apart."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from kit.engine_runs import each
from kit.photographs import photographs
from kit.torchvision_way import ran

from dali_feed.compiler.dali import compile_dali
from dali_feed.transforms.op import Recipe


def both(recipe: Recipe, *, region_decode: bool = True) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The photographs by DALI and by the host engine."""
    ids, program = range(len(photographs())), compile_dali(recipe, region_decode=region_decode)
    return each("dali", program, photographs(), ids), ran(recipe, photographs(), ids)


def distance(ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor], edge: int = 0) -> tuple[float, float]:
    """Largest mean absolute difference of an image, and largest of a value, `edge` pixels along the border left out."""
    worst_mean = worst = 0.0
    for one, other in zip(ours, theirs, strict=True):
        assert one.shape == other.shape
        d = (one.double() - other.double()).abs()
        d = d[:, edge : d.shape[1] - edge, edge : d.shape[2] - edge]
        worst_mean, worst = max(worst_mean, float(d.mean())), max(worst, float(d.max()))
    return worst_mean, worst
