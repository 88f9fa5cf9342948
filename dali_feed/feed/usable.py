"""Which payloads a recipe can use: screened by their headers, and of a size that every op takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dali_feed.compiler.outline import unfit
from dali_feed.compiler.program import Program
from dali_feed.options import Tuning
from dali_feed.screen.screen import Screened, screen

__all__ = ["Look", "looker"]

Look = Callable[[Sequence[memoryview | None]], Screened]


def _unseen(payloads: Sequence[memoryview | None]) -> Screened:
    """Of payloads that are no images only whether they are there."""
    there = np.array([payload is not None for payload in payloads], np.int32)
    return Screened(np.repeat(there, 2).reshape(-1, 2), {}, {})


def looker(program: Program, tuning: Tuning) -> Look:
    """A function of payloads that tells their sizes, and of what cannot be used the reason."""
    if not program.views:
        return _unseen

    def look(payloads: Sequence[memoryview | None]) -> Screened:
        found = screen(payloads, tuning.max_pixels, tuning.max_work)
        small: dict[int, str] = {}
        for view in program.views:
            small |= unfit(view.recipe, found.sizes)
        return Screened(found.sizes, {**small, **found.reasons}, found.plain) if small else found

    return look
