"""One recipe by the DALI engine on the CPU, beside the host engine; and how far two results lie apart."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import torch
from kit.photographs import photographs
from kit.torchvision_way import ran
from PIL import Image

from dali_feed.compiler.dali import compile_dali
from dali_feed.compiler.program import Program
from dali_feed.engines.choose import make_engine
from dali_feed.engines.engine import Work
from dali_feed.options import Tuning
from dali_feed.transforms.op import Recipe


def run(program: Program, payloads: Sequence[bytes], ids: Sequence[int]) -> list[torch.Tensor]:
    """The images of all payloads, one after the other through one engine."""
    sizes = np.array([Image.open(io.BytesIO(p)).size[::-1] for p in payloads])
    engine = make_engine("dali", program, batch_size=1, device=None, tuning=Tuning(threads=2))
    made = program.parameters(sizes, np.array(ids, np.int64), seed=0, epoch=0)
    out: list[torch.Tensor] = []
    for n, payload in enumerate(payloads):
        view = engine.prepare([memoryview(payload)])
        engine.submit(Work(view, {name: values[n : n + 1] for name, values in made.arrays.items()}))
        result = engine.take()
        assert not result.bad
        out += list(torch.utils.dlpack.from_dlpack(result.images).clone())
    engine.close()
    return out


def both(recipe: Recipe, *, region_decode: bool = True) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The photographs by DALI and by the host engine."""
    ids = range(len(photographs()))
    return run(compile_dali(recipe, region_decode=region_decode), photographs(), ids), ran(recipe, photographs(), ids)


def distance(ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor], edge: int = 0) -> tuple[float, float]:
    """Largest mean absolute difference of an image, and largest of a value, `edge` pixels along the border left out."""
    worst_mean = worst = 0.0
    for one, other in zip(ours, theirs, strict=True):
        assert one.shape == other.shape
        d = (one.double() - other.double()).abs()
        d = d[:, edge : d.shape[1] - edge, edge : d.shape[2] - edge]
        worst_mean, worst = max(worst_mean, float(d.mean())), max(worst, float(d.max()))
    return worst_mean, worst
