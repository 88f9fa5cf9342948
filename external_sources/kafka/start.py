"""Where a stream begins: what `start=` may be, and the offsets that it stands for."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from dali_feed.errors import ConfigError, SourceError
from dali_feed.external_sources.kafka.cluster import Cluster
from dali_feed.external_sources.kafka.commit import committed_offsets
from dali_feed.external_sources.kafka.mark import Told
from dali_feed.external_sources.kafka.options import KafkaOptions

__all__ = ["Start", "begun", "checked_start"]

Start = str | float | datetime | Told

_GROUP = "group"
_TOO_LATE = 1e11  # seconds: the year 5138; as milliseconds it was in 1973, when there was no Kafka
_NAMES = ("earliest", "latest", _GROUP, "group or earliest", "group or latest")


def checked_start(topic: str, start: Any, group: str | None) -> str | float | Told:
    """`start` as it is, a datetime as seconds since 1970. Raises ConfigError for what is none."""
    if isinstance(start, str) and start in _NAMES:
        if start.startswith(_GROUP) and group is None:
            msg = f'{topic}: start={start!r} begins at the offsets of a consumer group; give its name, group="..."'
            raise ConfigError(msg)
        return start
    if isinstance(start, datetime):
        if start.tzinfo is None:
            msg = (
                f"{topic}: start= as a datetime must have a time zone; found {start!r}; "
                "datetime.now(timezone.utc) has one"
            )
            raise ConfigError(msg)
        return start.timestamp()
    if isinstance(start, int | float) and not isinstance(start, bool) and math.isfinite(start) and start >= 0:
        if start >= _TOO_LATE:
            msg = (
                f"{topic}: start= counts seconds since 1970, and {start!r} of them are thousands of years; Kafka "
                f"counts milliseconds: give start={start / 1000!r}"
            )
            raise ConfigError(msg)
        return float(start)
    if isinstance(start, Mapping) or (isinstance(start, Sequence) and not isinstance(start, str | bytes)):
        return start
    names = ", ".join(f'"{name}"' for name in _NAMES)
    msg = f"{topic}: start must be {names}, a datetime, seconds since 1970 or a state; found {start!r}"
    raise ConfigError(msg)


def begun(
    options: KafkaOptions,
    asked: Cluster,
    start: str | float,
    group: str | None,
    partitions: list[int],
    stop: threading.Event,
) -> dict[int, int]:
    """The next offset to read of each of these partitions.

    Raises SourceError where the group has none, and what its requests raise.
    """
    if not partitions:
        return {}
    if not isinstance(start, str):
        return dict(zip(partitions, asked.since(partitions, math.ceil(start * 1000)).tolist(), strict=True))
    found: dict[int, int] = {}
    if start.startswith(_GROUP):
        found = committed_offsets(options, group or "", partitions, stop)
    lacking = [p for p in partitions if p not in found]
    if lacking and start == _GROUP:
        shown = ", ".join(map(str, lacking[:8])) + (f" and {len(lacking) - 8} more" if len(lacking) > 8 else "")
        msg = (
            f"{options.topic}: the group {group!r} must have an offset of each partition; it has none of {shown}; "
            'commit them, or begin with start="group or earliest" or "group or latest"'
        )
        raise SourceError(msg)
    if lacking:
        lows, highs = asked.watermarks(lacking)
        found |= dict(zip(lacking, (lows if start.endswith("earliest") else highs).tolist(), strict=True))
    return found
