"""Reasons why records cannot be used: which are alike, and where in the user's code one was raised."""

from __future__ import annotations

import functools
import re
import traceback
from typing import Any

__all__ = ["kind_of", "place_of"]

_CALL = "__call__"


def kind_of(reason: str) -> str:
    """A reason without what differs from record to record: numbers and quoted bytes."""
    plain = re.sub(r" \(starts with .*\)", "", reason, flags=re.DOTALL)
    plain = re.sub(r"b?\"[^\"]*\"|b?'[^']*'", "...", plain)
    return re.sub(r"\b[0-9a-fx]*\d[0-9a-fx]*\b", "N", plain)


def place_of(error: BaseException, function: Any) -> str:
    """`file:line in name` of the user's `function`, which this frame called: where it raised, or else where it begins.

    The innermost frame of the file that the function is in, for what it calls of others is not the user's to mend.
    Empty where that is not Python.
    """
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(function, "__code__", None) or getattr(getattr(type(function), _CALL, None), "__code__", None)
    if code is None:
        return ""
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)][1:]
    inside = [(each, line) for each, line in frames if each.co_filename == code.co_filename]
    place, line = inside[-1] if inside else (code, code.co_firstlineno)
    return f"{place.co_filename}:{line} in {place.co_name}"
