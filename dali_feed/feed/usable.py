"""Which payloads a recipe can use: screened by their headers, and of a size that every op takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dali_feed.compiler.program import Program, unfit
from dali_feed.options import Decode
from dali_feed.screen.screen import Screened, screen, turned

__all__ = ["Look", "looker"]

Look = Callable[[Sequence[memoryview | None], Mapping[str, Any]], Screened]


def _unseen(payloads: Sequence[memoryview | None], fields: Mapping[str, Any]) -> Screened:
    """Of payloads that are no images only whether they are there."""
    del fields
    there = np.ones(len(payloads), np.int32)
    if type(None) in set(map(type, payloads)):  # seldom; a look at each in Python costs more than all else here
        there[:] = [payload is not None for payload in payloads]
    return Screened(np.repeat(there, 2).reshape(-1, 2), {}, bare=True)


def looker(program: Program, decode: Decode, columns: Sequence[tuple[str, str]] = ()) -> Look:
    """A function of a read's payloads and fields that tells their sizes, and of what cannot be used the reason.

    columns  of several image columns the names, and what stands before a reason; the first one's is the payload. Sizes
             are then int32 (n, 2 * columns), or 3 * where images are turned
    """
    if not program.views:
        return _unseen

    def look(payloads: Sequence[memoryview | None], fields: Mapping[str, Any]) -> Screened:
        found = screen(payloads, decode.max_pixels, decode.max_work)
        if program.recipe.exif:
            found = turned(found, payloads)
        small: dict[int, str] = {}
        if columns:
            return _several(found, program, columns, fields)
        for view in program.views:
            small |= unfit(view.recipe, found.sizes)
        return Screened(found.sizes, {**small, **found.reasons}, found.plain) if small else found

    return look


def _several(
    found: Screened, program: Program, columns: Sequence[tuple[str, str]], fields: Mapping[str, Any]
) -> Screened:
    """With the sizes of further image columns, which were screened when they were read."""
    sizes, width = [found.sizes], found.sizes.shape[1]
    for name, _ in columns[1:]:
        kept = [(0,) * width if image is None else image.size for image in fields[name]]
        sizes.append(np.array(kept, np.int32).reshape(-1, width))
    reasons = {row: columns[0][1] + why for row, why in found.reasons.items()}
    for (_, called), view, its in zip(columns, program.views, sizes, strict=True):
        for row, why in unfit(view.recipe, its).items():
            reasons.setdefault(row, called + why)
    return Screened(np.concatenate(sizes, axis=1), reasons, found.plain)
