"""Which of a batch's fields has the labels that MixUp and CutMix mix.

The law: of columns it is the one that torchvision's default `labels_getter` finds; where that takes the first of
several, it has to be said which.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dali_feed.columns.follower import Follower
from dali_feed.columns.image import Image
from dali_feed.columns.kind import Kind
from dali_feed.columns.number import Number
from dali_feed.columns.source import Columnar
from dali_feed.errors import ConfigError
from dali_feed.records.source import LABEL, Source

__all__ = ["labels_of"]

_MIX = "collate_fn: MixUp and CutMix mix"


def labels_of(source: Source) -> str:
    """The field's name. ConfigError where there is none, or where columns hold what mixing would falsify."""
    if isinstance(source, Columnar):
        return _column(source.given, as_tuple=source.as_tuple)
    if LABEL not in source.fields:
        found = ", ".join(source.fields) or "none"
        msg = f"{_MIX} labels; the source's fields must have {LABEL!r}, found {found}"
        raise ConfigError(msg)
    return LABEL


def _column(columns: Mapping[str, Kind], *, as_tuple: bool) -> str:
    images = [name for name, kind in columns.items() if isinstance(kind, Image)]
    if len(images) != 1:
        msg = f"{_MIX} images with labels; columns must have one Image, found {_named(images) or _named(columns)}"
        raise ConfigError(msg)
    followers = [name for name, kind in columns.items() if isinstance(kind, Follower)]
    if followers:
        msg = (
            f"{_MIX} images with labels, and cannot mix masks, boxes and keypoints, as torchvision's cannot; found"
            f" {_named(followers)}. Leave them out, or collate_fn"
        )
        raise ConfigError(msg)
    if as_tuple:
        name = list(columns)[1] if len(columns) > 1 else ""
        if not _is_label(columns.get(name)):
            msg = (
                f"{_MIX} labels; in a sequence of columns they are the second one, which must be a Number of "
                f"whole numbers, found {columns.get(name, 'none')}. Put it there, or give columns as a dict"
            )
            raise ConfigError(msg)
        return name
    names = [name for name in columns if name.lower() == "labels"]
    names = names or [name for name in columns if "label" in name.lower()]
    labels = [name for name in names if _is_label(columns[name])]
    if len(labels) == 1:
        return labels[0]
    found = f"{_named(labels)}, and one must be chosen. Name it 'labels'" if labels else f"{_named(names or columns)}"
    cure = "" if labels else ". Name it 'label'"
    msg = f"{_MIX} labels, a column of whole Numbers with 'label' in its name; found {found}{cure}"
    raise ConfigError(msg)


def _is_label(kind: Kind | None) -> bool:
    return isinstance(kind, Number) and np.dtype(kind.dtype).kind in "iu"


def _named(names: object) -> str:
    return ", ".join(map(repr, names))  # type: ignore[call-overload]
