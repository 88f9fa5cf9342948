"""Images of the user's own in every form that a bench reads: files by class, and tar shards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from dali_feed.bench.contract import Data
from dali_feed.bench.forms import data_in, write_forms
from dali_feed.engines.host.decode import Trial
from dali_feed.errors import SourceEmptyError
from dali_feed.screen.header import UnusableError
from dali_feed.screen.screen import header_of

__all__ = ["MOST_BYTES", "own"]

MOST_BYTES = 4 << 30  # of copies
# Format -> a suffix that every loader takes it under.
SUFFIXES = {"jpeg": "jpg", "png": "png", "webp": "webp"}


class _Taken:
    """What was taken, and what was left out."""

    def __init__(self) -> None:
        self.size, self.left_out, self.why = 0, 0, ""
        self.shapes: set[tuple[int, int]] = set()

    def images(self, records: Iterable[tuple[memoryview, int]], limit: int) -> Iterator[tuple[memoryview, int, str]]:
        """Those that every loader can decode, up to `limit` bytes."""
        trial = Trial()
        for payload, label in records:
            try:
                header = header_of(payload)
                why = None if header.format in SUFFIXES else f"{header.format.upper()} is not read by every loader"
            except UnusableError as error:
                why = str(error)
            why = why or trial.refusal(payload)
            if why is not None:
                self.left_out, self.why = self.left_out + 1, why
                continue
            self.size += len(payload)
            self.shapes.add((header.height, header.width))
            yield payload, label, SUFFIXES[header.format]
            if self.size > limit:
                return


def own(records: Iterable[tuple[memoryview, int]], name: str, folder: Path, *, limit: int = MOST_BYTES) -> Data:
    """Copies of (payload, label) records in `folder`; of those that cannot be decoded, only their number is given.

    Raises:
        SourceEmptyError: no image is left.
    """
    taken = _Taken()
    paths = write_forms(folder, taken.images(records, limit))
    if not paths:
        found = f"; {taken.left_out} were left out, the last because: {taken.why}" if taken.left_out else ""
        msg = f"{name}: a bench of loaders needs images that can be decoded; found none{found}; give other data"
        raise SourceEmptyError(msg)
    shape = next(iter(taken.shapes)) if len(taken.shapes) == 1 else (0, 0)
    left = f", {taken.left_out} left out ({taken.why})" if taken.left_out else ""
    return data_in(folder, f"{len(paths):,} images of {name}{left}", len(paths), taken.size, shape)
