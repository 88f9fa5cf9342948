"""Where in the user's code a reason why a record cannot be used was raised."""

from __future__ import annotations

import functools
import traceback
from typing import Any

__all__ = ["place_of"]

_CALL = "__call__"


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
