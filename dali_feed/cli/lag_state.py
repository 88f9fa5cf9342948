"""Where a loader's state stands in its topic. A state is JSON: a checkpoint of torch.save() may hold code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dali_feed.errors import StateError
from dali_feed.external_sources.kafka.lag import Stand
from dali_feed.external_sources.kafka.snapshot import pin_of
from dali_feed.external_sources.kafka.stream import merged_marks
from dali_feed.feed.reached import reached

__all__ = ["stand_of_state"]


def stand_of_state(path: Path, topic: str, servers: str) -> Stand | str:
    """Of a loader of `KafkaTopic` or `KafkaStream`; the file may hold the states of all ranks of a stream, as a list.

    Of a fleet the name of its group, which has the position.

    Raises StateError where it cannot be read, is no state, or is one of another source.
    """
    try:
        told = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        msg = (
            f"{path}: must be a file with a loader's state, as json.dump(loader.state_dict(), file) writes it; found "
            f"{type(error).__name__}: {error}. A checkpoint of torch.save() is not read: it may hold code"
        )
        raise StateError(msg) from error
    of = f"the state {path}"
    states = told if isinstance(told, list) else [told]
    if states and all(isinstance(each, Mapping) and "stream" in each for each in states):
        return _of_stream(of, topic, [each["stream"] for each in states])
    if not isinstance(told, Mapping) or not isinstance(told.get("source"), Mapping):
        rule = "must be what state_dict() gave, or for a stream a list of the states of all ranks"
        msg = f"{path}: {rule}; found {type(told).__name__}"
        raise StateError(msg)
    pinned = told["source"].get("pin")
    if not isinstance(pinned, Mapping) or "topic" not in pinned:
        msg = f"{path}: must be of a loader that reads a Kafka topic; found one of {told['source'].get('name')!r}"
        raise StateError(msg)
    pin = pin_of(topic, pinned)
    positions = reached(told, pin.snapshot(servers)).tolist()
    ends = dict(enumerate(pin.ends.tolist()))
    starts = {p: start for p, start in enumerate(pin.starts.tolist()) if start < ends[p]}
    return Stand(of, dict(enumerate(positions)), starts, ends, pin.topic_id)


def _of_stream(of: str, topic: str, marks: list[Any]) -> Stand | str:
    groups = {mark["fleet"] for mark in marks if isinstance(mark, Mapping) and "fleet" in mark}
    if len(groups) == 1:
        return str(groups.pop())
    read = [mark for mark in marks if mark is not None]
    if not read:
        msg = f"{of}: was taken before anything of {topic} was read, so it has no positions"
        raise StateError(msg)
    mark = merged_marks(topic, read)
    return Stand(of, mark.positions, mark.positions, topic_id=mark.topic_id)
