"""Which payloads a recipe can use: screened by their headers, and of a size that every op takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dali_feed.compiler.outline import unfit
from dali_feed.compiler.program import Program
from dali_feed.options import Tuning
from dali_feed.screen.screen import Screened, screen

__all__ = ["Look", "looker"]

Look = Callable[[Sequence[memoryview | None]], Screened]


def looker(program: Program, tuning: Tuning) -> Look:
    """A function that gives the sizes of payloads, and the reasons of those that cannot be used."""

    def look(payloads: Sequence[memoryview | None]) -> Screened:
        found = screen(payloads, tuning.max_pixels, tuning.max_work)
        small: dict[int, str] = {}
        for view in program.views:
            small |= unfit(view.recipe, found.sizes)
        return Screened(found.sizes, {**small, **found.reasons}, found.plain) if small else found

    return look
