"""The batch that was handed over last, as long as somebody else holds it."""

from __future__ import annotations

import weakref
from typing import Any

__all__ = ["Last"]

_FEW = 16  # items of a list that are looked at one by one; a longer one is a column of values, held as it is
_GONE = object()


class _Held:
    """A value without weak references: text, a number, a list of them."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class Last:
    """Holds arrays weakly: when the user drops a batch, its memory is free at once."""

    def __init__(self) -> None:
        self._kept: Any = None

    def keep(self, item: Any) -> None:
        """A batch: an object, or tuples, dicts and short lists of some. A few weak references are made."""
        self._kept = _weak(item)

    def item(self) -> Any | None:
        """It, made of the same arrays; None where there is none, or one of its arrays is gone."""
        made = None if self._kept is None else _strong(self._kept)
        return None if made is _GONE else made


def _weak(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _weak(each) for key, each in value.items()}
    if type(value) is tuple:
        return tuple(map(_weak, value))
    if type(value) is list and len(value) <= _FEW:
        return list(map(_weak, value))
    try:
        return weakref.ref(value)
    except TypeError:
        return _Held(value)


def _strong(kept: Any) -> Any:
    """The value, or `_GONE`."""
    if isinstance(kept, _Held):
        return kept.value
    if isinstance(kept, weakref.ref):
        value = kept()
        return _GONE if value is None else value
    made = [_strong(each) for each in (kept.values() if isinstance(kept, dict) else kept)]
    if any(each is _GONE for each in made):
        return _GONE
    return dict(zip(kept, made, strict=True)) if isinstance(kept, dict) else type(kept)(made)
