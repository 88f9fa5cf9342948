"""Ops that fit images into one size, for the compiler of DALI's graphs."""

from __future__ import annotations

from typing import Any

import numpy as np

from dali_feed.compiler.steps import Slice
from dali_feed.transforms.fit import CropOrPad, Fit, ResizeKeepRatio
from dali_feed.transforms.geometry_fit import kept_ratio, placed, trimmed
from dali_feed.transforms.recipe import RandomResizedCrop
from dali_feed.transforms.run import Run

__all__ = ["fit", "modes"]


def modes(compiler: Any, op: RandomResizedCrop | ResizeKeepRatio, first: int) -> None:
    """The interpolation that each sample draws, for the resize that was opened last."""
    if op.interpolation == "random":
        key = f"mode{compiler.k}"
        compiler.maker(lambda run: run.arrays.update({key: run.interpolations(op, first)[0].astype(np.int32)}))


def fit(compiler: Any, op: Fit, first: int) -> None:
    """Add the op, which draws from stream `first` on. TransformError where DALI cannot pad so."""
    if isinstance(op, ResizeKeepRatio):
        compiler.resample(op, sizes=lambda run, h, w: kept_ratio(op, h, w, run.draw(first)))
        modes(compiler, op, first)
    elif isinstance(op, CropOrPad):

        def place(run: Run) -> Any:
            return placed(op, run.h, run.w, run.draw(first))

        compiler.crop(op.size, place, inside=False, fill=compiler.fill(op, op.fill, op.mode))
    else:
        compiler.least = None
        cut = compiler.slicer(lambda run: trimmed(op, run.h, run.w), shape=True)
        compiler.step(lambda k: Slice(k, None), cut)
