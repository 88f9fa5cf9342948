"""Checks of arguments that many share."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from numbers import Real
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dali_feed.errors import ConfigError

_PLAIN = (str, bytes, int, float, bool)
AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")
_SIZES = {"": 1, "B": 1}
_SIZES |= {f"{letter}B": 10 ** (3 * n) for n, letter in enumerate("kMGT", 1)} | {"KB": 1000}
_SIZES |= {f"{letter}iB": 1024**n for n, letter in enumerate("KMGT", 1)}


def whole(subject: str, value: object, least: int) -> int:
    """The value, if it is an int (Python's or NumPy's) of at least `least`; ConfigError otherwise."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        msg = f"{subject}: must be an int of at least {least}; found {value!r}"
        raise ConfigError(msg)
    return int(value)


def number(subject: str, value: object, rule: str, fits: Callable[[float], bool] = lambda value: value > 0) -> None:
    """ConfigError, with the rule, for what is no number that fits; above 0 unless that is said."""
    if isinstance(value, bool) or not isinstance(value, Real) or not fits(float(value)):
        raise ConfigError(f"{subject} must be {rule}; found {value!r}")


def flag(subject: str, value: object) -> None:
    """ConfigError for anything but True and False."""
    if not isinstance(value, bool):
        msg = f"{subject}: must be True or False; found {value!r}"
        raise ConfigError(msg)


def bytes_of(option: str, text: Any) -> int:
    """Bytes of 1500, 512MB (of 10^6 each) or 1GiB (of 2^30); what is no text stays as it is. Raises ConfigError."""
    if not isinstance(text, str):
        return text  # type: ignore[no-any-return]  # who has it checks it
    parts = AMOUNT.fullmatch(text.strip())
    size = round(float(parts[1]) * _SIZES.get(parts[2], 0)) if parts else 0
    if not size:
        msg = f"{option}: must be a size such as 1500, 512MB or 1GiB; found {text!r}"
        raise ConfigError(msg)
    return size


def dtype_of(value: DTypeLike) -> np.dtype[Any]:
    """NumPy's dtype that a user named; that of objects, which no column takes, where NumPy knows none."""
    try:
        return np.dtype(value)
    except (TypeError, ValueError, SyntaxError):  # the last of "f4,,f4"
        return np.dtype("O")


def integers_of(subject: str, value: Any) -> NDArray[Any]:
    """A user's integers as an array. ConfigError for rows of different lengths, and for places without a number."""
    rule = f"{subject} must be a flat sequence of integers"
    if isinstance(value, np.ma.MaskedArray):
        raise ConfigError(f"{rule}; found a masked array; fill it: array.filled(0)")
    try:
        return np.asarray(value)
    except ValueError as error:
        raise ConfigError(f"{rule}; found rows of different lengths") from error


def path_of(subject: str, value: object) -> str:
    """A path or address as text. Raises ConfigError for what is none, as an environment variable that is not set."""
    path = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(path, str):
        msg = f"{subject}: must be a path; found {value!r}"
        raise ConfigError(msg)
    return path


def paths_of(subject: str, paths: object) -> list[str]:
    """One path, or some in a row, as texts. Raises ConfigError for what is none."""
    if isinstance(paths, str | os.PathLike):
        return [path_of(subject, paths)]
    if isinstance(paths, bytes) or not isinstance(paths, Iterable):
        msg = f"{subject}: must be a path or a sequence of paths; found {paths!r}"
        raise ConfigError(msg)
    return [path_of(subject, each) for each in paths]


def of_kind(option: str, value: object, kind: type) -> None:
    """ConfigError for anything but None and a `kind`."""
    if not isinstance(value, kind | None):
        msg = f"{option}: must be a {kind.__name__} or None; found {value!r}"
        raise ConfigError(msg)


def name_of(function: Any) -> Any:
    """A user's function, as a journal names it: its `facts`, or else what is the same in another process.

    That is its name and code: two lambdas are not the same, nor is one that was edited. Of an object it is the class,
    and a digest of all that `copy` or `pickle` would take along: attributes, or the arguments of `functools.partial`.
    ConfigError for an object that holds what neither can take, such as a lock.
    """
    if facts := getattr(function, "facts", None):
        return facts
    if name := getattr(function, "__qualname__", ""):
        return _with_code(name, function)
    kind = type(function)
    try:
        settings = _settings(function)
    except Exception as error:
        rule = "what an object holds must be the same in another process"
        cure = "Give it an attribute facts, of plain JSON, that says what it does"
        raise ConfigError(f"map: {rule}; found a {kind.__qualname__}: {error}. {cure}") from error
    return f"{_with_code(kind.__qualname__, kind.__call__)} {_digest(settings)}"


def _with_code(name: str, function: Any) -> str:
    code = getattr(function, "__code__", None)
    return name if code is None else f"{name} {_digest(_code(code))}"


def _digest(part: Any) -> str:
    return hashlib.sha256(repr(part).encode()).hexdigest()[:16]


def _settings(part: Any) -> Any:
    """Texts and numbers alone, in lists."""
    if part is None or type(part) in _PLAIN:
        return part
    if isinstance(part, FunctionType):
        return name_of(part)
    if isinstance(part, type | ModuleType):
        return part.__name__
    if type(part) in (tuple, list):
        return [_settings(each) for each in part]
    if type(part) in (set, frozenset, dict):  # in whichever order
        return sorted(repr(_settings(each)) for each in (part.items() if isinstance(part, dict) else part))
    reduced = part.__reduce_ex__(2)
    if isinstance(reduced, str):
        return reduced
    return [_settings(list(each) if isinstance(each, Iterator) else each) for each in reduced]


def _code(part: Any) -> Any:
    if isinstance(part, frozenset):
        return sorted(map(repr, part))  # whose own order differs from process to process
    if not isinstance(part, CodeType):
        return part
    return part.co_code, part.co_names, [_code(each) for each in part.co_consts]
