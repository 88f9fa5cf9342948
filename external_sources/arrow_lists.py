"""Lists of an Arrow table, a row of numbers per record: views of the table's buffer where they lie flat in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.records.source import Int64s

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Lists", "is_list"]

SAMPLED = 64  # rows of which a fingerprint takes the contents


def is_list(kind: Any) -> bool:
    """Whether a column's values are lists, however deep, of numbers or booleans."""
    from pyarrow import types

    kind = getattr(kind, "storage_type", kind)  # Hugging Face's Array2D and the like
    if not (types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)):
        return False
    inner = kind.value_type
    return types.is_integer(inner) or types.is_floating(inner) or types.is_boolean(inner) or is_list(inner)


class Lists:
    """A column of lists. A row of numbers is an array, a view; lists in lists, and lists with nulls, are Python's."""

    def __init__(self, chunks: Sequence[pa.Array]) -> None:
        plain = [getattr(chunk, "storage", chunk) for chunk in chunks if len(chunk)]  # an extension's
        self._chunks = [(chunk, _flat(chunk)) for chunk in plain]
        self._starts = np.cumsum([0, *(len(chunk) for chunk in plain)])[:-1]

    def of(self, rows: Int64s) -> Iterator[Any]:
        """The lists of these rows; None for a null."""
        which = np.searchsorted(self._starts, rows, side="right") - 1
        for part, k in zip(which.tolist(), (rows - self._starts[which]).tolist(), strict=True):
            chunk, flat = self._chunks[part]
            if flat is None:
                yield chunk[k].as_py()
            elif chunk.null_count and not chunk[k].is_valid:
                yield None
            else:
                offsets, numbers = flat
                yield numbers[offsets[k] : offsets[k + 1]]

    def told(self, rows: Int64s) -> Iterator[bytes]:
        """What is different in other rows, for a fingerprint: the contents of some."""
        spread = np.linspace(0, len(rows) - 1, min(SAMPLED, len(rows))).round().astype(np.int64)
        for value in self.of(rows[spread]):
            yield repr(value.tolist() if isinstance(value, np.ndarray) else value).encode()


def _flat(chunk: pa.Array) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """Where each row's numbers begin, and where the last's end, and all numbers; None where they lie otherwise."""
    from pyarrow import types

    numbers = chunk.values
    primitive = types.is_integer(numbers.type) or types.is_floating(numbers.type)
    if not primitive or numbers.null_count:  # booleans are bits
        return None
    if types.is_fixed_size_list(chunk.type):
        offsets = (np.arange(len(chunk) + 1) + chunk.offset) * chunk.type.list_size
    else:
        offsets = np.asarray(chunk.offsets)
    return offsets, numbers.to_numpy()
