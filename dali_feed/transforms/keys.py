"""Keys: what the arrays are called that go with a batch, each a row per sample. They are made here and nowhere else.

The law: no two arrays of a batch have one name. So what an array is never ends in a digit, a number follows it, and
what is said behind that begins with another character. A key is a type for a type checker, and at run time the text
that DALI knows an input by: it costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NewType

from numpy.typing import NDArray

Key = NewType("Key", str)
Arrays = Mapping[Key, NDArray[Any]]

WINDOW = Key("window")  # that a decoder takes
SIZE = Key("size")  # of what comes out, where it is an image's own
FLIPS = {"x": Key("flip_x"), "y": Key("flip_y")}  # of the finish step, as the two below
ERASE = Key("erase")
ADJUST = Key("adjust")

CANVAS = Key("canvas")  # height and width of the image before any transform
TURN = Key("turn")  # how the stored image becomes the upright one: `program.turns`


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
