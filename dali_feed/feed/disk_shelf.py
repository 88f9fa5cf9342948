"""Rows in memory first, then in files: what has no room in memory, and what other processes or runs have kept.

The law is that of `shelf` and of `row_files` together: a row is given as it was read, or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from dali_feed.feed.row_bytes import row_of, told
from dali_feed.feed.row_files import RowFiles
from dali_feed.feed.shelf import Row, Shelf

__all__ = ["DiskShelf"]


class DiskShelf(Shelf):
    """As `Shelf`, up to `limit` bytes in memory and what `files` has room for. `files` is closed with it."""

    def __init__(self, limit: int, files: RowFiles) -> None:
        super().__init__(limit)
        self.files = files
        self._adopt()

    def look(self) -> None:
        """See what others have kept since."""
        self.files.look()
        self._adopt()

    def rows(self, ids: Sequence[int]) -> list[Row | None]:
        """What is kept of these records, in memory or in files."""
        held = super().rows(ids)
        return [self._from_files(sample) if row is None else row for sample, row in zip(ids, held, strict=True)]

    def has_room(self, size: int) -> bool:
        """In one of the two."""
        return super().has_room(size) or self.files.has_room(size)

    def keep(self, sample: int, payload: memoryview | None, values: Sequence[Any], size: int) -> None:
        """In both, where there is room."""
        super().keep(sample, payload, values, size)
        if self._forms is None or sample in self.files or not self.files.has_room(size):
            return
        try:
            body = told(payload, values)
        except TypeError:  # a number of a kind that has no form in files
            return
        self.files.keep(sample, _as_text(self._forms), body)

    def close(self) -> None:
        """Let the files go."""
        self.files.close()

    def _adopt(self) -> None:
        if self._forms is None and self.files.form is not None:
            self._forms = _from_text(self.files.form)

    def _from_files(self, sample: int) -> Row | None:
        body = self.files.find(sample)
        if body is None or self._forms is None:
            return None
        try:
            payload, values = row_of(body)
        except ValueError:
            return None
        return Row(payload, values, len(body)) if len(values) == len(self._forms) else None


def _as_text(forms: Any) -> str:
    return json.dumps([[name, None if form is None else [form[0].str, list(form[1])]] for name, form in forms.items()])


def _from_text(text: str) -> Any:
    return {name: None if form is None else (np.dtype(form[0]), tuple(form[1])) for name, form in json.loads(text)}
