"""Hugging Face's `datasets.Dataset` with images, as rows of its Arrow table.

The law: a batch holds what torch's loader would collate from the dataset's samples, images decoded. Where
that is not certain the dataset is not taken: there is a reason instead. Classes are known where `datasets` is loaded.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from dali_feed.errors import ConfigError
from dali_feed.external_sources.table import ArrowRows

__all__ = ["hf_members", "hf_rows"]


_FLOATS = {"halffloat", "float", "double"}


@dataclass(frozen=True, slots=True)
class Rows:
    """source: the dataset's rows; decodes: whether its images are decoded by `datasets`, which turns them by EXIF."""

    source: ArrowRows
    decodes: bool


def hf_rows(dataset: Any) -> Rows | str | None:
    """The dataset as a source, or why not: a clause. None for an object that is not of `datasets`.

    Raises:
        ConfigError: it is a DatasetDict.
        SourceEmptyError: it has no row.
    """
    why = _unreadable(dataset)
    if why is not None or not _is(dataset, "datasets.arrow_dataset", "Dataset"):
        return why
    form = dataset.format
    if form["type"] not in (None, "torch") or form["format_kwargs"]:
        return f"it has the format {form['type']!r} {form['format_kwargs'] or ''} (with_format('torch') can be read)"
    return _rows(dataset, form)


def hf_members(dataset: Any) -> Rows | str | None:
    """The dataset, or a Subset of one, for `columns=`: all its columns are members, of whatever type.

    A clause where it cannot be read, None for an object that is not of `datasets`. Raises as `hf_rows` does.
    """
    if type(dataset).__module__ == "torch.utils.data.dataset" and type(dataset).__name__ == "Subset":
        whole = hf_members(dataset.dataset)
        indices = np.asarray(dataset.indices, np.int64)
        return Rows(whole.source.chosen(indices), whole.decodes) if isinstance(whole, Rows) and indices.size else whole
    why = _unreadable(dataset)
    if why is not None or not _is(dataset, "datasets.arrow_dataset", "Dataset"):
        return why
    images = [n for n in dataset.column_names if _is(dataset.features[n], "datasets.features.image", "Image")]
    rows = None if dataset._indices is None else dataset._indices.column(0).to_numpy()
    name = str(dataset.split or "dataset")
    source = ArrowRows(dataset.data.table, images[0] if images else None, rows, name=name)
    return Rows(source, any(dataset.features[each].decode for each in images))


def _unreadable(dataset: Any) -> str | None:
    """Why no dataset of `datasets` can be read as rows; None where it can, or is none of those."""
    for name in ("DatasetDict", "IterableDatasetDict"):
        if _is(dataset, "datasets.dataset_dict", name):
            splits = ", ".join(map(repr, dataset)) or "none"
            msg = f"dataset: must be one dataset; found a {name} of the splits {splits}; give one of them"
            raise ConfigError(msg)
    if _is(dataset, "datasets.iterable_dataset", "IterableDataset"):
        return (
            "it is iterable-style, so it has no positions (load_dataset without streaming=True gives a dataset that "
            "has them)"
        )
    if not _is(dataset, "datasets.arrow_dataset", "Dataset"):
        return None
    whole = sys.modules["datasets.arrow_dataset"].Dataset
    for name in ("__getitem__", "__getitems__", "__len__"):
        if getattr(type(dataset), name, None) is not getattr(whole, name, None):
            return f"it has a {name} of its own"
    if dataset.format["type"] == "custom":
        return (
            "it has a Python function as its transform (give torchvision's as transform= of the loader, and the dataset"
            " with_format(None))"
        )
    return None


def _is(dataset: object, module: str, name: str) -> bool:
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(dataset, kind)


def _rows(dataset: Any, form: dict[str, Any]) -> Rows | str:
    names = [name for name in dataset.column_names if name in form["columns"] or form["output_all_columns"]]
    images = [name for name in names if _is(dataset.features[name], "datasets.features.image", "Image")]
    if len(images) != 1:
        cure = (
            "select_columns chooses"
            if images
            else "cast_column(name, datasets.Image()) makes an image column of paths or bytes"
        )
        return f"it has {len(images)} columns of images, but one is needed ({cure})"
    feature = dataset.features[images[0]]
    if feature.mode not in (None, "RGB"):
        return f"it has images of mode {feature.mode!r}, but we make RGB"
    table = dataset.data.table.select(names)
    for k, name in enumerate(names):
        if str(table.schema.types[k]) in _FLOATS:  # torch makes float64 of Python's floats, its format float32
            formatted = form["type"] == "torch" and name in form["columns"]
            table = table.set_column(k, name, table[name].cast("float" if formatted else "double"))
    rows = None if dataset._indices is None else dataset._indices.column(0).to_numpy()
    try:
        source = ArrowRows(table, images[0], rows, name=str(dataset.split or "dataset"))
        source.check()
    except ConfigError as error:
        return f"it cannot be read as rows ({error})"
    return Rows(source, feature.decode)
