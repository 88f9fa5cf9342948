"""torchvision's and timm's datasets that are files with a label, read from the attributes of their classes.

The law: a class is taken only where it gives its samples by its own, known code, and where some of them, read
here, are what the attributes say. Classes are known by name where they are loaded already; none is imported.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dali_feed.screen.header import UnusableError
from dali_feed.screen.screen import header_of

__all__ = ["Files", "files_of", "is_plain", "torchvisions_loader"]

LOOKED_AT = 3  # samples of a dataset


@dataclass(frozen=True, slots=True)
class Files:
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
        found = getattr(dataset, samples)
        return [path for path, _ in found], [target for _, target in found]

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


def files_of(dataset: Any) -> Files | str | None:
    """The files of a dataset; or why it cannot be taken, a clause; None for a class that is not known here."""
    for name, (module, find) in _TORCHVISION.items():
        kind = getattr(sys.modules.get(f"torchvision.datasets.{module}"), name, None)
        if isinstance(kind, type) and isinstance(dataset, kind):
            return is_plain(dataset, kind) or _torchvisions(dataset, find)
    kind = getattr(sys.modules.get("timm.data.dataset"), "ImageDataset", None)
    if isinstance(kind, type) and isinstance(dataset, kind):
        return is_plain(dataset, kind) or _timms(dataset)
    return None


def is_plain(dataset: Any, kind: type) -> str | None:
    """Why not, or None: a subclass that gives its samples in a way of its own is not what its base class is."""
    for name in ("__getitem__", "__getitems__", "__len__"):
        found = getattr(type(dataset), name, None)
        counts = name == "__len__" and str(getattr(found, "__module__", "")).startswith("torchvision.datasets.")
        if found is not getattr(kind, name, None) and not counts:
            return f"{type(dataset).__qualname__} has a {name} of its own"
    return None


def torchvisions_loader(dataset: Any) -> str | None:
    """Why not, or None: what opens its images is not torchvision's."""
    module = sys.modules.get("torchvision.datasets.folder")
    known = [getattr(module, name, None) for name in ("default_loader", "pil_loader", "accimage_loader")]
    if getattr(dataset, "loader", known[0]) in known:
        return None
    return f"its loader={getattr(dataset.loader, '__name__', dataset.loader)!r} is not torchvision's own"


def _torchvisions(dataset: Any, find: Found) -> Files | str:
    odd = torchvisions_loader(dataset)
    if odd is not None:
        return odd
    both = getattr(dataset, "transforms", None)
    if type(both).__name__ not in ("NoneType", "StandardTransform"):
        return "its transforms= take image and label together"
    try:
        paths, targets = find(dataset)
    except (AttributeError, TypeError, ValueError) as error:  # another version of torchvision keeps them elsewhere
        return f"its files are not where torchvision keeps them ({error})"
    classes = getattr(dataset, "classes", None)
    return _checked(dataset, Files(paths, targets, classes, dataset.transform, dataset.target_transform))


def _timms(dataset: Any) -> Files | str:
    reader: Any = dataset.reader
    kind: Any = getattr(sys.modules.get("timm.data.readers.reader_image_folder"), "ReaderImageFolder", None)
    if not isinstance(kind, type) or not isinstance(reader, kind):
        return f"its reader {type(reader).__name__} is not a folder's"
    odd = is_plain(reader, kind)
    if odd is not None:
        return odd
    if dataset.load_bytes or dataset.input_img_mode != "RGB" or dataset.additional_features is not None:
        return "its samples are not RGB images with a label (load_bytes, input_img_mode, additional_features)"
    paths, targets = _pairs("samples")(reader)
    numbers = dataset.reader.class_to_idx
    names = sorted(numbers, key=numbers.__getitem__)
    whole = [numbers[name] for name in names] == list(range(len(names)))
    return _checked(
        dataset, Files(paths, targets, names if whole else None, dataset.transform, dataset.target_transform)
    )


def _checked(dataset: Any, files: Files) -> Files | str:
    """The files, if a few samples are as they say; samples that cannot be opened do not count."""
    if not len(files.paths) == len(files.targets) == len(dataset):
        return "it does not have as many files and labels as samples"
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
            return f"its sample {n} is ({mode}, {target!r}), but its fields say (RGB, {files.targets[n]!r})"
        if image.size != expected.size or image.tobytes() != expected.tobytes():
            return f"its sample {n} is not the file {files.paths[n]}"
        try:
            header_of(memoryview(Path(files.paths[n]).read_bytes()))
        except UnusableError as error:
            return f"it has files that we cannot read, such as {files.paths[n]} ({error})"
    return files
