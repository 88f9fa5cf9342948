"""Hugging Face's `datasets.Dataset` with images, as rows of its Arrow table.

The law: a batch holds what torch's loader would collate from the dataset's samples, images decoded. Where
that is not certain the dataset is not taken: there is a reason instead. Classes are known where `datasets` is loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import Any

import numpy as np

from dali_feed.errors import ConfigError
from dali_feed.external_sources.arrow_rows import ArrowRows
from dali_feed.records.source import Extents
from dali_feed.screen.header import UnusableError
from dali_feed.screen.screen import header_of

__all__ = ["hf_rows"]

LOOKED_AT = 64
_FLOATS = {"halffloat", "float", "double"}


def hf_rows(dataset: Any, members: Collection[str] | None = None) -> ArrowRows | str | None:
    """The dataset as a source, or why not: a clause. None for an object that is not of `datasets`.

    members  the columns that are asked for, of which several may be images; None: all of them, with one of images

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
    return _rows(dataset, form, members)


def _is(dataset: object, module: str, name: str) -> bool:
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(dataset, kind)


def _rows(dataset: Any, form: dict[str, Any], members: Collection[str] | None) -> ArrowRows | str:
    names = [name for name in dataset.column_names if name in form["columns"] or form["output_all_columns"]]
    names = [name for name in names if members is None or name in members]
    images = [name for name in names if _is(dataset.features[name], "datasets.features.image", "Image")]
    if not images or (members is None and len(images) > 1):
        cure = "select_columns chooses" if images else "cast_column(name, datasets.Image()) makes one of paths or bytes"
        return f"it has {len(images)} columns of images, where one is read ({cure})"
    for feature in map(dataset.features.get, images):
        if feature.mode not in (None, "RGB"):
            return f"it has images of mode {feature.mode!r}, where ours are RGB"
    table = dataset.data.table.select(names)
    for k, name in enumerate(names):
        if str(table.schema.types[k]) in _FLOATS:  # torch makes float64 of Python's floats, its format float32
            formatted = form["type"] == "torch" and name in form["columns"]
            table = table.set_column(k, name, table[name].cast("float" if formatted else "double"))
    rows = None if dataset._indices is None else dataset._indices.column(0).to_numpy()
    try:
        source = ArrowRows(table, images, rows, name=str(dataset.split or "dataset"))
    except ConfigError as error:
        return f"it cannot be read as rows ({error})"
    for image in images:
        turned = _turned(source, image) if dataset.features[image].decode else None
        if turned is not None:
            return (
                f"it has images with an EXIF orientation, such as {turned}, which it applies and we do not"
                f" (cast_column({image!r}, datasets.Image(decode=False)) takes pixels as they are stored)"
            )
    return source


def _turned(source: ArrowRows, image: str) -> str | None:
    """The first image of that column that is not upright, of a few looked at."""
    spread = np.unique(np.linspace(0, len(source) - 1, LOOKED_AT).round().astype(np.int64))
    block = source.giving(image, ()).reader().read(Extents(np.zeros_like(spread), spread, spread + 1))
    try:
        for position, payload in zip(spread.tolist(), block.payloads, strict=True):
            try:
                if header_of(payload or b"").orientation != 1:
                    return source.where(0, position)
            except UnusableError:  # the feed will report it as a bad record
                continue
    finally:
        block.lease.release()
    return None
