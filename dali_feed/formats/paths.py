"""Paths into a record: `body.features`, `images[0].data`, `["a.b"]`, and `$` for the whole of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dali_feed.errors import ConfigError, FormatError

Steps = tuple[str | int, ...]

WHOLE = "$"
SHOWN = 8  # names that a message lists
MOST = 200  # members that are listed of one value
DEEPEST = 32  # levels that they are looked for in

_STEP = re.compile(r'(?:^|(?<!^)\.)([^.\[\]"]+)|\[([0-9]{1,9})\]|\["([^"]*)"\]')


class MissingPathError(FormatError):
    """A value has nothing at a path: where another name or a default may stand in, its record is none the worse."""


def steps_of(path: str) -> Steps:
    """Names and indices of a path, in order; none for the whole record.

    Raises:
        ConfigError: no path.
    """
    if path == WHOLE:
        return ()
    steps: list[str | int] = []
    at = 0
    while step := _STEP.match(path, at):
        name, index, quoted = step.groups()
        steps.append(int(index) if index is not None else name if name is not None else quoted)
        at = step.end()
    if at < len(path) or not steps:
        msg = f'member {path!r}: must be a path such as body.features, images[0].data or ["a.b"], or {WHOLE!r}'
        raise ConfigError(msg)
    return tuple(steps)


def path_of(steps: Steps) -> str:
    """The path that `steps_of` takes apart."""
    text = ""
    for step in steps:
        if isinstance(step, int):
            text += f"[{step}]"
        elif re.fullmatch(r'[^.\[\]"$]+', step):
            text += f".{step}" if text else step
        else:
            text += f'["{step}"]'
    return text or WHOLE


def pick(record: Any, steps: Steps, of: str) -> Any:
    """What lies at the steps in nested dicts, lists and arrays. `of`, the format, begins messages.

    Raises:
        MissingPathError: nothing does; the message says how far the path goes and what is there.
    """
    value = record
    try:
        for step in steps:
            if step.__class__ is int and value.__class__ is not list and value.__class__ is not np.ndarray:
                raise TypeError
            value = value[step]
    except (KeyError, IndexError, TypeError):
        raise MissingPathError(f"{of}: {path_of(steps)}: no such member{_lost(record, steps)}") from None
    return value.item() if isinstance(value, np.generic) else value


def _lost(record: Any, steps: Steps) -> str:
    value = record
    for done, step in enumerate(steps):
        there = "the record" if not done else path_of(steps[:done])
        if isinstance(step, str) and isinstance(value, dict):
            if step not in value:
                return f"; {there} has {_names(value)}"
        elif isinstance(step, int) and isinstance(value, list | np.ndarray):
            if step >= len(value):
                return f"; {there} has {len(value)} items"
        else:
            wanted = "a list" if isinstance(step, int) else "a record"
            return f"; {there} must be {wanted}, found {type(value).__name__}"
        value = value[step]
    return ""


def _names(record: Mapping[Any, Any]) -> str:
    names = [repr(name)[:40] for name in list(record)[:SHOWN]]
    more = f" and {len(record) - SHOWN} more" if len(record) > SHOWN else ""
    return ", ".join(names) + more if names else "none"


def flatten(record: Any) -> dict[str, Any]:
    """Members of nested dicts and lists, by path: what is no record, and lists of such. At most 200 of them."""
    members: dict[str, Any] = {}
    ahead: list[tuple[Steps, Any]] = [((), record)]
    while ahead and len(members) < MOST:
        steps, value = ahead.pop()
        below: Sequence[tuple[str | int, Any]] = ()
        if len(steps) < DEEPEST:
            if isinstance(value, dict):
                below = [(key, each) for key, each in value.items() if isinstance(key, str) and '"' not in key][:MOST]
            elif isinstance(value, list) and any(isinstance(each, dict | list) for each in value[:MOST]):
                below = list(enumerate(value[:MOST]))
        if below:
            ahead += [((*steps, step), each) for step, each in reversed(below)]
        else:
            members[path_of(steps)] = value
    return members
