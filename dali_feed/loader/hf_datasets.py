"""Hugging Face's `datasets.Dataset` with images, as rows of its Arrow table.

The law: a batch holds what torch's loader would collate from the dataset's samples, images decoded. Where
that is not certain the dataset is not taken: there is a reason instead. Classes are known where `datasets` is loaded.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from dali_feed.errors import ConfigError
from dali_feed.external_sources.arrow_rows import ArrowRows

__all__ = ["Rows", "hf_rows"]

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
    for name in ("DatasetDict", "IterableDatasetDict"):
        if _is(dataset, "datasets.dataset_dict", name):
            splits = ", ".join(map(repr, dataset)) or "none"
            msg = f"dataset: must be one dataset; found a {name} of the splits {splits}; give one of them"
            raise ConfigError(msg)
    if _is(dataset, "datasets.iterable_dataset", "IterableDataset"):
        return "it is iterable-style, so it has no positions (load_dataset without streaming=True gives one that has)"
    if not _is(dataset, "datasets.arrow_dataset", "Dataset"):
        return None
    whole, form = sys.modules["datasets.arrow_dataset"].Dataset, dataset.format
    for name in ("__getitem__", "__getitems__", "__len__"):
        if getattr(type(dataset), name, None) is not getattr(whole, name, None):
            return f"it has a {name} of its own"
    if form["type"] == "custom":
        return (
            "it has a Python function as its transform (give torchvision's as transform= of the loader, and the dataset"
            " with_format(None))"
        )
    if form["type"] not in (None, "torch") or form["format_kwargs"]:
        return f"it has the format {form['type']!r} {form['format_kwargs'] or ''} (with_format('torch') can be read)"
    return _rows(dataset, form)


def _is(dataset: object, module: str, name: str) -> bool:
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(dataset, kind)


def _rows(dataset: Any, form: dict[str, Any]) -> Rows | str:
    names = [name for name in dataset.column_names if name in form["columns"] or form["output_all_columns"]]
    images = [name for name in names if _is(dataset.features[name], "datasets.features.image", "Image")]
    if len(images) != 1:
        cure = "select_columns chooses" if images else "cast_column(name, datasets.Image()) makes one of paths or bytes"
        return f"it has {len(images)} columns of images, where one is read ({cure})"
    feature = dataset.features[images[0]]
    if feature.mode not in (None, "RGB"):
        return f"it has images of mode {feature.mode!r}, where ours are RGB"
    table = dataset.data.table.select(names)
    for k, name in enumerate(names):
        if str(table.schema.types[k]) in _FLOATS:  # torch makes float64 of Python's floats, its format float32
            formatted = form["type"] == "torch" and name in form["columns"]
            table = table.set_column(k, name, table[name].cast("float" if formatted else "double"))
    rows = None if dataset._indices is None else dataset._indices.column(0).to_numpy()
    try:
        source = ArrowRows(table, images[0], rows, name=str(dataset.split or "dataset"))
    except ConfigError as error:
        return f"it cannot be read as rows ({error})"
    return Rows(source, feature.decode)
