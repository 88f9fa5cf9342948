"""Datasets as users of torch, torchvision, timm and Hugging Face have them, as sources of ours: files or rows.

Classes are recognised where they are loaded already, so none of these is imported here: a user who has one of their
datasets has imported it. A dataset that might give other samples is not taken: there is a reason instead.
"""

from __future__ import annotations

import copy
import functools
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from dali_feed.columns.columns import Columns
from dali_feed.errors import ConfigError, SourceEmptyError, TransformError
from dali_feed.external_sources.files import IMG_EXTENSIONS, FileList
from dali_feed.external_sources.table import Table
from dali_feed.loader.dataset_source import parts_of
from dali_feed.loader.functions import split
from dali_feed.plan.batching import length_of
from dali_feed.records.source import Source
from dali_feed.screen.header import UnusableError
from dali_feed.screen.screen import header_of
from dali_feed.transforms.lower import lower
from dali_feed.transforms.op import Recipe
from dali_feed.transforms.program import as_views

# torchvision's and timm's datasets that are files with a label, read from the attributes of their classes.
#
# The law: a class is taken only where it gives its samples by its own, known code, and where some of them, read
# here, are what the attributes say. Classes are known by name where they are loaded already; none is imported.


LOOKED_AT = 3  # samples of a dataset


class _ReasonError(Exception):
    """The reason why a dataset cannot be taken: a clause."""


def _refuse(reason: str) -> NoReturn:
    raise _ReasonError(reason)


def _kind(dataset: object, module: str, name: str) -> type | None:
    """That class, where it is loaded already and the dataset is one of it."""
    kind = getattr(sys.modules.get(module), name, None)
    return kind if isinstance(kind, type) and isinstance(dataset, kind) else None


@dataclass(frozen=True, slots=True)
class Lowered:
    """What a dataset is made of.

    source     where the samples are
    transform  what the dataset does to each image, None for nothing
    exif       whether it turns images by EXIF
    """

    source: Source
    transform: Any = None
    exif: bool = False


@dataclass(frozen=True, slots=True)
class ImageFiles:
    """What a dataset is made of: images' paths, a target for each, and the transforms of both.

    `classes` are the targets' names, where they are known.
    """

    paths: Sequence[Any]
    targets: Sequence[Any]
    classes: Sequence[str] | None
    transform: Any
    target_transform: Callable[[Any], Any] | None


def _lists(images: str, labels: str) -> Callable[[Any], tuple[Sequence[Any], Sequence[Any]]]:
    return lambda dataset: (getattr(dataset, images), getattr(dataset, labels))


def _pairs(samples: str) -> Callable[[Any], tuple[Sequence[Any], Sequence[Any]]]:
    def split(dataset: Any) -> tuple[Sequence[Any], Sequence[Any]]:
        pairs = getattr(dataset, samples)
        return [path for path, _ in pairs], [target for _, target in pairs]

    return split


Found = Callable[[Any], tuple[Sequence[Any], Sequence[Any]]]
_TORCHVISION: dict[str, tuple[str, Found]] = {  # by class: its module, and how the files are found
    "DTD": ("dtd", _lists("_image_files", "_labels")),
    "FGVCAircraft": ("fgvc_aircraft", _lists("_image_files", "_labels")),
    "Flowers102": ("flowers102", _lists("_image_files", "_labels")),
    "Food101": ("food101", _lists("_image_files", "_labels")),
    "GTSRB": ("gtsrb", _pairs("_samples")),
    "Imagenette": ("imagenette", _pairs("_samples")),
    "RenderedSST2": ("rendered_sst2", _pairs("_samples")),
    "SUN397": ("sun397", _lists("_image_files", "_labels")),
    "StanfordCars": ("stanford_cars", _pairs("_samples")),
}


def must_be_plain(dataset: Any, kind: type) -> None:
    """Refuse a subclass that gives its samples in a way of its own: it is not what its base class is."""
    for name in ("__getitem__", "__getitems__", "__len__"):
        own = getattr(type(dataset), name, None)
        counts = name == "__len__" and str(getattr(own, "__module__", "")).startswith("torchvision.datasets.")
        if own is not getattr(kind, name, None) and not counts:
            _refuse(f"{type(dataset).__qualname__} has a {name} of its own")


def _opened_by_torchvision(dataset: Any) -> None:
    """Refuse a dataset whose images are opened by another function, or changed together with their labels."""
    module = sys.modules.get("torchvision.datasets.folder")
    known = [getattr(module, name, None) for name in ("default_loader", "pil_loader", "accimage_loader")]
    if getattr(dataset, "loader", known[0]) not in known:
        _refuse(f"its loader={getattr(dataset.loader, '__name__', dataset.loader)!r} is not torchvision's own")
    if type(getattr(dataset, "transforms", None)).__name__ not in ("NoneType", "StandardTransform"):
        _refuse("its transforms= take image and label together")


def _torchvisions(dataset: Any, find: Found) -> Lowered:
    _opened_by_torchvision(dataset)
    try:
        paths, targets = find(dataset)
    except (AttributeError, TypeError, ValueError) as error:  # another version of torchvision keeps them elsewhere
        _refuse(f"its files are not where torchvision keeps them ({error})")
    classes = getattr(dataset, "classes", None)
    return _checked(dataset, ImageFiles(paths, targets, classes, dataset.transform, dataset.target_transform))


def _timms(dataset: Any) -> Lowered:
    reader: Any = dataset.reader
    kind = _kind(reader, "timm.data.readers.reader_image_folder", "ReaderImageFolder")
    if kind is None:
        _refuse(f"its reader {type(reader).__name__} is not a folder's")
    must_be_plain(reader, kind)
    if dataset.load_bytes or dataset.input_img_mode != "RGB" or dataset.additional_features is not None:
        _refuse("its samples are not RGB images with a label (load_bytes, input_img_mode, additional_features)")
    paths, targets = _pairs("samples")(reader)
    numbers = dataset.reader.class_to_idx
    names = sorted(numbers, key=numbers.__getitem__)
    whole = [numbers[name] for name in names] == list(range(len(names)))
    return _checked(
        dataset, ImageFiles(paths, targets, names if whole else None, dataset.transform, dataset.target_transform)
    )


def _checked(dataset: Any, files: ImageFiles) -> Lowered:
    """Of the files, if a few samples are as they say; samples that cannot be opened do not count."""
    if not len(files.paths) == len(files.targets) == len(dataset):
        _refuse("it does not have as many files and labels as samples")
    plain = copy.copy(dataset)
    vars(plain).update(transform=None, target_transform=None, transforms=None)
    opened = sys.modules["torchvision.datasets.folder"].pil_loader
    for n in {int(n) for n in np.linspace(0, len(dataset) - 1, LOOKED_AT).round()} if len(dataset) else ():
        try:
            image, target = plain[n]
            getattr(image, "load", bool)()  # Pillow closes the file then
            expected = opened(files.paths[n])
        except (OSError, SyntaxError, ValueError):
            continue
        mode = getattr(image, "mode", type(image).__name__)
        if target != files.targets[n] or mode != "RGB":
            _refuse(f"its sample {n} is ({mode}, {target!r}), but its fields say (RGB, {files.targets[n]!r})")
        if image.size != expected.size or image.tobytes() != expected.tobytes():
            _refuse(f"its sample {n} is not the file {files.paths[n]}")
        try:
            header_of(memoryview(Path(files.paths[n]).read_bytes()))
        except UnusableError as error:
            _refuse(f"it has files that we cannot read, such as {files.paths[n]} ({error})")
    return _of_files(files)


def lower_dataset(dataset: object, *, columns: bool = False) -> Lowered | str:
    """The dataset as a source and a transform, or why not: a clause, such as "its indices leave the dataset".

    Taken are torchvision's ImageFolder, DatasetFolder and ImageNet, and its and timm's other datasets of files with a
    label; Subset (and so random_split) and ConcatDataset
    of them; a list of paths, or of (path, label) pairs;
    Hugging Face's Dataset with a column of images, and Subset of it; with `columns` any of its columns.
    """
    try:
        return (_members(dataset) if columns else None) or _lowered(dataset)
    except _ReasonError as reason:
        return str(reason)
    except SourceEmptyError:
        return "it is empty, or a part of it is"


def _lowered(dataset: Any) -> Lowered:
    for module, name, take in _TAKEN:
        if kind := _kind(dataset, module, name):
            must_be_plain(dataset, kind)
            return take(dataset)
    rows = _rows(dataset)
    if rows is not None:
        return rows
    if isinstance(dataset, list | tuple):
        return Lowered(_listed(dataset))
    if _kind(dataset, "torch.utils.data.dataset", "IterableDataset"):
        _refuse("it is iterable-style, so its samples have no positions")
    _refuse(f"{type(dataset).__module__}.{type(dataset).__qualname__} has a __getitem__ of its own")


def _folder(dataset: Any) -> Lowered:
    _opened_by_torchvision(dataset)
    paths, targets = [path for path, _ in dataset.samples], [target for _, target in dataset.samples]
    return _of_files(ImageFiles(paths, targets, dataset.classes, dataset.transform, dataset.target_transform))


def _of_files(files: ImageFiles) -> Lowered:
    if not len(files.paths):
        _refuse("it is empty")
    labels = _labels(files.targets, files.target_transform)
    classes = tuple(files.classes or ())
    whole = all(isinstance(name, str) for name in classes) and 0 <= min(labels) <= max(labels) < len(classes)
    whole = whole and files.target_transform is None
    return Lowered(FileList(files.paths, labels, classes=classes if whole else None), files.transform)


def _labels(targets: Sequence[Any], change: Callable[[Any], Any] | None) -> list[int]:
    """The labels as ints; `change`, a function of the class, is called once per class."""
    try:
        labels = {target: target if change is None else change(target) for target in dict.fromkeys(targets)}
    except TypeError as error:
        _refuse(f"its labels are not ints ({error})")
    for target, label in labels.items():
        plain = label.item() if getattr(label, "shape", None) == () else label
        if isinstance(plain, bool) or not isinstance(plain, int | np.integer):
            _refuse(f"its target_transform gives {label!r} for class {target!r}, but an int is needed")
        labels[target] = int(plain)
    return [labels[target] for target in targets]


def _subset(dataset: Any) -> Lowered:
    whole = _lowered(dataset.dataset)
    source, indices = whole.source, np.asarray(dataset.indices)
    if not isinstance(source, Table):
        source = _files(whole)
    if indices.dtype.kind not in "iu" or not indices.size:
        _refuse("it has no indices, or they are not ints")
    if indices.min() < -len(source) or indices.max() >= len(source):
        _refuse("some of its indices are outside the dataset")
    return Lowered(source.chosen(indices.astype(np.int64)), whole.transform, whole.exif)


def _joined(dataset: Any) -> Lowered:
    parts = [_lowered(part) for part in dataset.datasets]
    first = parts[0].transform
    if not all(_alike(part.transform, first) for part in parts[1:]):
        _refuse("its parts have different transforms")
    files = [_files(part) for part in parts]
    if len({each.labels is None for each in files}) != 1:
        _refuse("some of its parts have labels and others have none")
    labels = None if files[0].labels is None else np.concatenate([each.labels for each in files])
    same = len({each.classes for each in files}) == 1
    paths = [path for each in files for path in each.paths]
    return Lowered(FileList(paths, labels, classes=files[0].classes if same else None), first)


_TAKEN: list[tuple[str, str, Callable[[Any], Lowered]]] = [  # module, class, and how it is taken
    ("torchvision.datasets.folder", "DatasetFolder", _folder),
    ("torch.utils.data.dataset", "Subset", _subset),
    ("torch.utils.data.dataset", "ConcatDataset", _joined),
    *(
        (f"torchvision.datasets.{module}", name, functools.partial(_torchvisions, find=find))
        for name, (module, find) in _TORCHVISION.items()
    ),
    ("timm.data.dataset", "ImageDataset", _timms),
]


def _alike(one: object, other: object) -> bool:
    """Whether two transforms do the same: by the ops they are lowered to, as their texts leave out settings."""
    if one is other:
        return True
    try:
        (first, own), (second, others) = split(one), split(other)
        return own == others and _recipes(first) == _recipes(second)
    except TransformError:
        return False


def _recipes(transform: object) -> list[Recipe]:
    views = as_views(transform)
    return [lower(each) for each in (views or [transform])]


def _files(lowered: Lowered) -> FileList:
    if not isinstance(lowered.source, FileList):
        _refuse("it is not made of files (Hugging Face's are joined by their own concatenate_datasets)")
    return lowered.source


def _listed(items: Sequence[Any]) -> FileList:
    if not items:
        msg = f"dataset: a list must hold paths of images, or (path, label) pairs; found {items!r}. Check what made it"
        raise ConfigError(msg)
    if all(map(_is_path, items)):
        return FileList(items)
    pairs = all(isinstance(item, list | tuple) and len(item) == 2 for item in items)
    if pairs and all(_is_path(path) for path, _ in items):
        for path, label in items:
            if isinstance(label, str):
                msg = f"dataset: labels of (path, label) must be ints; found {label!r} of {path}. Number the classes"
                raise ConfigError(msg)
        return FileList([path for path, _ in items], _labels([label for _, label in items], None))
    _refuse("a list must hold paths of images, or (path, label) pairs")


def _is_path(item: object) -> bool:
    """Whether a text is a path: it must end like an image's name, so a list of sentences is no list of paths."""
    return isinstance(item, os.PathLike) or (isinstance(item, str) and item.lower().endswith(IMG_EXTENSIONS))


# Hugging Face's `datasets.Dataset` with images, as rows of its Arrow table.
#
# The law: a batch holds what torch's loader would collate from the dataset's samples, images decoded. Where that is not
# certain the dataset is not taken.


_FLOATS = {"halffloat", "float", "double"}


def _rows(dataset: Any) -> Lowered | None:
    """The dataset as rows; None for an object that is not of `datasets`. Refuses one that cannot be read.

    Raises:
        ConfigError: it is a DatasetDict.
        SourceEmptyError: it has no row.
    """
    if not _is_readable(dataset):
        return None
    form = dataset.format
    if form["type"] not in (None, "torch") or form["format_kwargs"]:
        cure = "(with_format('torch') can be read)"
        _refuse(f"it has the format {form['type']!r} {form['format_kwargs'] or ''} {cure}")
    names = [name for name in dataset.column_names if name in form["columns"] or form["output_all_columns"]]
    images = _images(dataset, names)
    if len(images) != 1:
        cure = (
            "select_columns chooses"
            if images
            else "cast_column(name, datasets.Image()) makes an image column of paths or bytes"
        )
        _refuse(f"it has {len(images)} columns of images, but one is needed ({cure})")
    feature = dataset.features[images[0]]
    if feature.mode not in (None, "RGB"):
        _refuse(f"it has images of mode {feature.mode!r}, but we make RGB")
    table = dataset.data.table.select(names)
    for k, name in enumerate(names):
        if str(table.schema.types[k]) in _FLOATS:  # torch makes float64 of Python's floats, its format float32
            formatted = form["type"] == "torch" and name in form["columns"]
            table = table.set_column(k, name, table[name].cast("float" if formatted else "double"))
    try:
        source = _table(dataset, table, images[0])
        Columns(source)
    except ConfigError as error:
        _refuse(f"it cannot be read as rows ({error})")
    return Lowered(source, exif=feature.decode)


def _members(dataset: Any) -> Lowered | None:
    """The dataset, or a Subset of one, for `columns=`: all its columns are members, of whatever type.

    None for an object that is not of `datasets`. Refuses and raises as `_rows` does.
    """
    if type(dataset).__module__ == "torch.utils.data.dataset" and type(dataset).__name__ == "Subset":
        whole, indices = _members(dataset.dataset), np.asarray(dataset.indices, np.int64)
        if whole is None or not indices.size:
            return whole
        return Lowered(whole.source.chosen(indices), exif=whole.exif)  # type: ignore[attr-defined]  # of rows
    if not _is_readable(dataset):
        return None
    images = _images(dataset, dataset.column_names)
    source = _table(dataset, dataset.data.table, images[0] if images else None)
    return Lowered(source, exif=any(dataset.features[each].decode for each in images))


def _is_readable(dataset: Any) -> bool:
    """Whether it is a dataset of `datasets`. Refuses one that cannot be read as rows."""
    for name in ("DatasetDict", "IterableDatasetDict"):
        if _kind(dataset, "datasets.dataset_dict", name):
            splits = ", ".join(map(repr, dataset)) or "none"
            raise ConfigError(f"dataset: must be one dataset; found a {name} of the splits {splits}; give one of them")
    if _kind(dataset, "datasets.iterable_dataset", "IterableDataset"):
        cure = "(load_dataset without streaming=True gives a dataset that has them)"
        _refuse(f"it is iterable-style, so it has no positions {cure}")
    kind = _kind(dataset, "datasets.arrow_dataset", "Dataset")
    if kind is None:
        return False
    must_be_plain(dataset, kind)
    if dataset.format["type"] == "custom":
        cure = "(give torchvision's as transform= of the loader, and the dataset with_format(None))"
        _refuse(f"it has a Python function as its transform {cure}")
    return True


def _images(dataset: Any, names: Sequence[str]) -> list[str]:
    return [name for name in names if _kind(dataset.features[name], "datasets.features.image", "Image")]


def _table(dataset: Any, table: Any, image: str | None) -> Table:
    rows = None if dataset._indices is None else dataset._indices.column(0).to_numpy()
    return Table(table, image, rows=rows, name=str(dataset.split or "dataset"))


# Whether a dataset that was taken apart when its loader was made is still what it was.
#
# The law: what would change the data is honoured or refused. Torch asks a dataset for every sample, so a script
# may give it another transform between two epochs. Ours has taken the files and the transform with it: it says so.


_ACTS = ("transform", "target_transform", "transforms")  # what it does to a sample: another object is another one
_HOLDS = ("samples", "imgs", "targets", "indices")  # which samples there are
_COUNT = "number of samples"
_NUMBERS = ("_fingerprint",)  # of a Hugging Face dataset, which has another one after set_transform() and its kind


class Unchanged:
    """A dataset as it is now, with those inside it."""

    def __init__(self, dataset: object) -> None:
        self._parts = [(part, _seen(part, counted=part is dataset)) for part in parts_of(dataset)]

    def check(self) -> None:
        """Raise a ConfigError where something has been put in another's place since, or samples came or went."""
        for part, before in self._parts:
            now = _seen(part, counted=_COUNT in before)
            for name in before | now:
                if not _same(name, before.get(name), now.get(name)):
                    raise ConfigError(
                        f"dataset: the {name} of {type(part).__qualname__} was changed after the loader was "
                        "made, and the loader uses the old one; make a new DataLoader (it can load the state of "
                        "this one)"
                    )


def _seen(part: object, *, counted: bool) -> dict[str, Any]:
    """What is compared of it; `counted`: its length too, if it has one. That of what it is made of decides nothing."""
    attributes = getattr(part, "__dict__", {})
    seen = {name: attributes[name] for name in (*_ACTS, *_HOLDS, *_NUMBERS) if name in attributes}
    seen |= {f"number of {name}": length_of(seen[name]) for name in _HOLDS if name in seen}  # cut in place
    return seen | {_COUNT: length_of(part)} if counted else seen


def _same(name: str, before: Any, now: Any) -> bool:
    if before is now:
        return True
    if name in _ACTS or before is None or now is None:
        return False
    if name in _HOLDS and length_of(before) is not None and length_of(now) is not None:
        return len(before) == len(now) and all(map(_equal, before, now))
    return _equal(before, now)


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except (ValueError, RuntimeError):  # arrays and tensors of several values
        return np.array_equal(one, other)
