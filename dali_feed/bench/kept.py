"""An outcome as JSON, and back: what `--json` prints can be shown again and compared with another."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from dali_feed.bench.contract import Outcome
from dali_feed.bench.told import fits
from dali_feed.errors import ConfigError

__all__ = ["from_json", "read", "to_json"]


def to_json(outcome: Outcome) -> str:
    """One line. What JSON does not know, such as a path, becomes text."""
    return json.dumps(dataclasses.asdict(outcome), default=str)


def read(path: Path) -> Outcome:
    """The outcome that a file holds. Raises ConfigError that names the file and what is wrong in it."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        msg = f"{path}: must be a file that `dali-feed bench ... --json` wrote; found {error}"
        raise ConfigError(msg) from error
    return from_json(text, str(path))


def from_json(text: str, name: str = "outcome") -> Outcome:
    """What `to_json` wrote. Raises ConfigError where it is something else; `name` is what the message calls it."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ConfigError(_told(name, f"text that is not JSON: {error}")) from error
    if not isinstance(found, dict):
        raise ConfigError(_told(name, f"JSON of type {type(found).__name__}, not an object"))
    known = {field.name: str(field.type) for field in dataclasses.fields(Outcome)}
    if unknown := sorted(set(found) - set(known)):
        raise ConfigError(_told(name, f"unknown fields {', '.join(unknown)}"))
    for field in ("kind", "about"):
        if field not in found:
            raise ConfigError(_told(name, f"no field {field!r}"))
    for field, value in found.items():
        if not _fits(field, value):
            raise ConfigError(_told(name, f"another type of value in {field!r}"))
    return Outcome(**found)


def _fits(field: str, value: Any) -> bool:
    number = (int, float)
    match field:
        case "kind":
            return isinstance(value, str)
        case "about":
            return isinstance(value, dict)
        case "rows":
            return isinstance(value, list) and all(isinstance(row, dict) for row in value)
        case "waits":
            lists = value.values() if isinstance(value, dict) else (None,)
            return all(isinstance(each, list) and all(isinstance(wait, number) for wait in each) for each in lists)
        case "stages":
            parts = value.values() if isinstance(value, dict) else (None,)
            return all(isinstance(each, dict) and all(isinstance(s, number) for s in each.values()) for each in parts)
        case "told":
            return isinstance(value, dict) and all(map(fits, value.values()))
        case "missing":
            return isinstance(value, dict) and all(isinstance(reason, str) for reason in value.values())
        case _:
            return isinstance(value, list) and all(isinstance(sentence, str) for sentence in value)


def _told(name: str, found: str) -> str:
    return f"{name}: must be what `dali-feed bench ... --json` prints; found {found}"
