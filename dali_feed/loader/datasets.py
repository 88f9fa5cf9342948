"""Datasets as torch and torchvision users have them, as sources of ours, where they are files with labels.

Classes are recognised where they are loaded already, so torchvision is never imported here: a user who has one of
its datasets has imported it. A dataset that might give other samples is not taken: there is a reason instead.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from dali_feed.compiler.views import as_views
from dali_feed.errors import ConfigError, SourceEmptyError, TransformError
from dali_feed.external_sources.arrow_rows import ArrowRows
from dali_feed.external_sources.files import IMG_EXTENSIONS, FileList
from dali_feed.loader.functions import split
from dali_feed.loader.hf_datasets import hf_members, hf_rows
from dali_feed.loader.image_datasets import Files, files_of, is_plain, torchvisions_loader
from dali_feed.records.source import Source, lacking
from dali_feed.transforms.lower import lower
from dali_feed.transforms.recipe import Recipe

__all__ = ["Lowered", "is_source", "lower_dataset"]


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


class _ReasonError(Exception):
    """The reason why a dataset cannot be taken."""


def _refuse(reason: str) -> NoReturn:
    raise _ReasonError(reason)


def is_source(dataset: object) -> bool:
    """Whether it is a source of ours already."""
    return not lacking(dataset)


def lower_dataset(dataset: object, *, columns: bool = False) -> Lowered | str:
    """The dataset as a source and a transform, or why not: a clause, such as "its indices leave the dataset".

    Taken are torchvision's ImageFolder, DatasetFolder and ImageNet, and its and timm's other datasets of files with a
    label; Subset (and so random_split) and ConcatDataset
    of them; a list of paths, or of (path, label) pairs;
    Hugging Face's Dataset with a column of images, and Subset of it; with `columns` any of its columns.
    """
    try:
        members = hf_members(dataset) if columns else None
        if members is not None:
            return members if isinstance(members, str) else Lowered(members.source, exif=members.decodes)
        return _lowered(dataset)
    except _ReasonError as reason:
        return str(reason)
    except SourceEmptyError:
        return "it is empty, or a part of it is"


def _lowered(dataset: Any) -> Lowered:
    folder = _loaded("torchvision.datasets.folder", "DatasetFolder")
    if folder is not None and isinstance(dataset, folder):
        return _folder(dataset, folder)
    for name, take in (("Subset", _subset), ("ConcatDataset", _joined)):
        kind = _loaded("torch.utils.data.dataset", name)
        if kind is not None and isinstance(dataset, kind):
            _must_be_plain(dataset, kind)
            return take(dataset)
    files = files_of(dataset)
    if files is not None:
        return _refuse(files) if isinstance(files, str) else _made(files)
    rows = hf_rows(dataset)
    if rows is not None:
        return _refuse(rows) if isinstance(rows, str) else Lowered(rows.source, exif=rows.decodes)
    if isinstance(dataset, list | tuple):
        return Lowered(_listed(dataset))
    _refuse(f"{type(dataset).__module__}.{type(dataset).__qualname__} has a __getitem__ of its own")


def _loaded(module: str, name: str) -> type | None:
    found: type | None = getattr(sys.modules.get(module), name, None)
    return found


def _must_be_plain(dataset: Any, kind: type) -> None:
    odd = is_plain(dataset, kind)
    if odd is not None:
        _refuse(odd)


def _folder(dataset: Any, kind: type) -> Lowered:
    _must_be_plain(dataset, kind)
    odd = torchvisions_loader(dataset)
    if odd is not None:
        _refuse(odd)
    if type(dataset.transforms).__name__ not in ("NoneType", "StandardTransform"):
        _refuse("its transforms= take image and label together")
    paths, targets = [path for path, _ in dataset.samples], [target for _, target in dataset.samples]
    return _made(Files(paths, targets, dataset.classes, dataset.transform, dataset.target_transform))


def _made(files: Files) -> Lowered:
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
        made = {target: target if change is None else change(target) for target in dict.fromkeys(targets)}
    except TypeError as error:
        _refuse(f"its labels are not ints ({error})")
    for target, label in made.items():
        plain = label.item() if getattr(label, "shape", None) == () else label
        if isinstance(plain, bool) or not isinstance(plain, int | np.integer):
            _refuse(f"its target_transform gives {label!r} for class {target!r}, but an int is needed")
        made[target] = int(plain)
    return [made[target] for target in targets]


def _subset(dataset: Any) -> Lowered:
    whole = _lowered(dataset.dataset)
    source, indices = whole.source, np.asarray(dataset.indices)
    if not isinstance(source, ArrowRows):
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
    return [lower(each) for each in (views.transforms if views else [transform])]


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
