"""Which payloads a recipe can use: screened by their headers, and of a size that every op takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dali_feed.options import Decode
from dali_feed.screen.screen import Screened, screen, turned
from dali_feed.transforms.program import Program

__all__ = ["Look", "looker"]

Look = Callable[[Sequence[memoryview | None], Mapping[str, Any]], Screened]


def _unseen(payloads: Sequence[memoryview | None], fields: Mapping[str, Any]) -> Screened:
    """Of payloads that are no images only whether they are there."""
    del fields
    there = np.ones(len(payloads), np.int32)
    if type(None) in set(map(type, payloads)):  # seldom; a look at each in Python costs more than all else here
        there[:] = [payload is not None for payload in payloads]
    return Screened(np.repeat(there, 2).reshape(-1, 2), {}, bare=True)


def looker(program: Program, decode: Decode) -> Look:
    """A function of a read's payloads and fields that tells their sizes, and of what cannot be used the reason.

    Of several image columns the first one's images are the payloads. Sizes are then int32 (n, 2 * columns), or 3 *
    where images are turned.
    """
    if not program.outputs:
        return _unseen
    columns = program.columns
    first, *further = columns
    called = columns[first][0].called

    def look(payloads: Sequence[memoryview | None], fields: Mapping[str, Any]) -> Screened:
        found = screen(payloads, decode.max_pixels, decode.max_work)
        if program.recipe.exif:
            found = turned(found, payloads)
        sizes, width = found.sizes, found.sizes.shape[1]
        for name in further:  # screened when they were read
            kept = [(0,) * width if image is None else image.size for image in fields[name]]
            sizes = np.concatenate([sizes, np.array(kept, np.int32).reshape(-1, width)], axis=1)
        small = program.unfit(sizes)
        if not small and not further:
            return found
        reasons = {row: called + why for row, why in found.reasons.items()}
        return Screened(sizes, {**small, **reasons}, found.plain)

    return look
