"""Tunings that were found, kept as JSON in the user's cache folder: one file per machine, data and program.

The law: what is read is whole and of this very machine, data and program, or it is not used, and a warning names it.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dali_feed.errors import ConfigError
from dali_feed.options import Cache, Tuning
from dali_feed.storage.durable import user_cache, write_whole
from dali_feed.tuner.ladders import FIELDS

__all__ = ["VERSION", "Kept", "Key", "keep", "kept", "path_of"]

VERSION = 1
log = logging.getLogger("dali_feed")


@dataclass(frozen=True, slots=True)
class Key:
    """What a tuning was found for, as JSON holds it: strings and numbers by name."""

    machine: Mapping[str, Any]
    data: Mapping[str, Any]
    program: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Kept:
    """Fields of `Tuning` that differ from the defaults, and samples per second with them and without."""

    fields: Mapping[str, Any]
    rate: float
    rate_before: float


def path_of(key: Key) -> Path:
    """Where it is kept."""
    told = json.dumps(asdict(key), sort_keys=True).encode()
    return user_cache() / "tuning" / f"{hashlib.sha256(told).hexdigest()[:32]}.json"


def keep(key: Key, found: Kept) -> Path:
    """Write it so that nobody sees half of it. Raises OSError."""
    path = path_of(key)
    path.parent.mkdir(parents=True, exist_ok=True)
    values = {name: asdict(value) if isinstance(value, Cache) else value for name, value in found.fields.items()}
    held = {
        "version": VERSION,
        **asdict(key),
        "tuning": values,
        "samples_per_second": found.rate,
        "samples_per_second_before": found.rate_before,
    }
    write_whole(path, (json.dumps(held, indent=1, sort_keys=True) + "\n").encode())
    return path


def kept(key: Key) -> Kept | None:
    """What is kept; None for nothing, and, with a warning, for a file that is not ours, or not whole."""
    path = path_of(key)
    try:
        held = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):  # the latter where a home is /dev/null
        return None
    except OSError as error:
        found: object = error
    else:
        try:
            return _read(json.loads(held), key)
        except (ValueError, TypeError, KeyError, RecursionError) as error:  # ConfigError is a ValueError
            found = error
    log.warning(
        "%s: a tuning that was kept must be whole, and as this version writes it; found %s: %s. The defaults are used;"
        " delete the file, or measure again",
        path,
        type(found).__name__,
        found,
    )
    return None


def _read(held: Any, key: Key) -> Kept:
    """ValueError, TypeError and KeyError for anything that `keep` did not write for this key."""
    if not isinstance(held, dict) or held.get("version") != VERSION:
        msg = f"version {held.get('version')!r}, not {VERSION}" if isinstance(held, dict) else type(held).__name__
        raise ConfigError(msg)
    names = {"version", *asdict(key), "tuning", "samples_per_second", "samples_per_second_before"}
    if set(held) != names:
        msg = f"the names {sorted(held)}, not {sorted(names)}"
        raise ConfigError(msg)
    if foreign := [name for name, value in asdict(key).items() if held[name] != value]:
        msg = f"another {' and '.join(foreign)}"
        raise ConfigError(msg)
    values = held["tuning"]
    if not isinstance(values, dict) or set(values) - set(FIELDS):
        msg = f"the tuning {values!r}"
        raise ConfigError(msg)
    rates = held["samples_per_second"], held["samples_per_second_before"]
    if any(isinstance(rate, bool) or not isinstance(rate, int | float) or not rate > 0 for rate in rates):
        msg = f"the rates {rates}"
        raise ConfigError(msg)
    if values.get("cache") is not None:
        values |= {"cache": Cache(**values["cache"])}
    Tuning(**values)
    return Kept(values, *rates)
