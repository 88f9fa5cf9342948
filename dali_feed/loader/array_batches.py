"""What a loader gives of arrays when nobody says: their rows as they are, and the labels where there are some."""

from __future__ import annotations

from typing import Any

import numpy as np

from dali_feed.columns.arrays import Array
from dali_feed.columns.kind import Kind
from dali_feed.columns.number import Number
from dali_feed.errors import ConfigError
from dali_feed.external_sources.array_shards import ArrayShards

__all__ = ["array_columns"]


def array_columns(source: Any, transform: object) -> list[Kind] | None:
    """The columns of an `ArrayShards`, as torch's TensorDataset would give them; None for another source.

    ConfigError where a transform is given, which needs images.
    """
    if not isinstance(source, ArrayShards):
        return None
    if transform is not None:
        msg = (
            f"transform: is for images; {source!r} gives rows without change. If its rows are images, give"
            " columns={'image': Image('row', transform)}"
        )
        raise ConfigError(msg)
    dtype, shape = np.dtype(source.dtype).name, source.shape[1:]
    row: Kind = Array("row", dtype, shape) if shape else Number("row", dtype)
    return [row, *(Number(name) for name in source.fields)]
