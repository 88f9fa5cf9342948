"""Keys: what the arrays are called that go with a batch, each a row per sample. They are made here and nowhere else.

The law: no two arrays of a batch have one name. So what an array is never ends in a digit, a number follows it, and
what is said behind that begins with another character. A key is a type for a type checker, and at run time the text
that DALI knows an input by: it costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NewType

from numpy.typing import NDArray

__all__ = [
    "ADJUST",
    "CANVAS",
    "ERASE",
    "FLIPS",
    "SIZE",
    "TURN",
    "WINDOW",
    "Arrays",
    "Key",
    "as_column",
    "as_followed",
    "by_column",
    "by_view",
    "numbered",
    "of_followed",
    "of_images",
    "of_op",
    "viewed",
]


Key = NewType("Key", str)
Arrays = Mapping[Key, NDArray[Any]]

WINDOW = Key("window")  # that a decoder takes
SIZE = Key("size")  # of what comes out, where it is an image's own
FLIPS = {"x": Key("flip_x"), "y": Key("flip_y")}  # of the finish step, as the two below
ERASE = Key("erase")
ADJUST = Key("adjust")

CANVAS = Key("canvas")  # height and width of the image before any transform
TURN = Key("turn")  # how the stored image becomes the upright one: `program.turns`

_FOLLOW = "follow_"  # images: what moves masks, boxes and points
_COLUMN = "of_column"  # and the number of a further image column: its images' own


def numbered(what: str, n: int) -> Key:
    """Of op number n of the host engine, or of step number n of a DALI graph: `what` it takes."""
    return Key(f"{what}{n}")


def of_op(name: str, n: int) -> Key:
    """Of op number n, by the name of its rows: those of "effect_weights" are called "effect3_weights"."""
    what, under, part = name.partition("_")
    return Key(f"{what}{n}{under}{part}")


def viewed(key: Key, view: int) -> Key:
    """What an array of a view is called among those of all."""
    return Key(f"{key}@{view}") if view else key


def by_view(arrays: Arrays, count: int) -> list[Arrays]:
    """Each view's arrays by their own names, out of those of all."""
    if count == 1:
        return [arrays]
    split: list[dict[Key, NDArray[Any]]] = [{} for _ in range(count)]
    for known, rows in arrays.items():
        name, _, view = known.partition("@")
        split[int(view or 0)][Key(name)] = rows
    return list(split)


def as_column(arrays: Arrays, column: int) -> dict[Key, NDArray[Any]]:
    """Arrays of image column number `column`, by what they are called among those of all; 0 is the first."""
    return {Key(f"{_COLUMN}{column}_{name}") if column else name: rows for name, rows in arrays.items()}


def by_column(arrays: Arrays, count: int) -> list[Arrays]:
    """Each image column's arrays by their own names, out of those of all."""
    if count == 1:
        return [arrays]
    split: list[dict[Key, NDArray[Any]]] = [{} for _ in range(count)]
    for known, rows in arrays.items():
        if known.startswith(_COLUMN):
            column, _, name = known.removeprefix(_COLUMN).partition("_")
            split[int(column)][Key(name)] = rows
        else:
            split[0][known] = rows
    return list(split)


def as_followed(arrays: Arrays) -> dict[Key, NDArray[Any]]:
    """Arrays of what follows images, by what they are called among the images' own."""
    return {Key(_FOLLOW + name): rows for name, rows in arrays.items()}


def of_followed(arrays: Arrays) -> dict[Key, NDArray[Any]]:
    """Those again, by their own names."""
    return {Key(name.removeprefix(_FOLLOW)): rows for name, rows in arrays.items() if name.startswith(_FOLLOW)}


def of_images(arrays: Arrays) -> dict[Key, NDArray[Any]]:
    """All but those."""
    return {name: rows for name, rows in arrays.items() if not name.startswith(_FOLLOW)}
