"""How records are judged: as a training run would before its decoder, by the source, by their labels, by the screen.

A source without images is judged by whether its members can be read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dali_feed.columns.column import Column, Faults, Number
from dali_feed.columns.columns import Columns
from dali_feed.columns.image import Image
from dali_feed.errors import ConfigError
from dali_feed.external_sources import KafkaTopic
from dali_feed.packing import plan
from dali_feed.records.source import LABEL, Block, Extents, Snapshot, Source

CHUNK_BYTES = 64 << 20
RUN = 16  # neighbours that are read together where a single record costs a seek
IMAGE, HEADERS = "image", "headers"  # columns of a topic's records; the latter a dict of them all
NO_LABEL = int(np.iinfo(np.int64).min)  # of a topic's record without one, where it may lack it
_OF_TOPIC = f"headers.{LABEL}"
UNLABELLED = f"column {LABEL!r} of member {_OF_TOPIC!r}: the record has no such member"


@dataclass(frozen=True)
class _AsRead(Column):
    """A member as the source gives it."""

    member: str

    def read(self, values: Any, faults: Faults) -> Any:
        """All of them."""
        return values


def judging(source: Source, *, labelled: bool = False) -> Columns | None:
    """The columns by which its records are judged; None for a source that has no images.

    labelled  whether each record of a topic must have the header `label`; one that is there must be a number anyway
    """
    if isinstance(source, KafkaTopic):
        label = Number(_OF_TOPIC) if labelled else Number(_OF_TOPIC, default=NO_LABEL)
        return Columns(source, {IMAGE: Image("value"), HEADERS: _AsRead("headers.*", default={}), LABEL: label})
    try:
        preset = source.preset
    except ConfigError:
        return None
    return Columns(source) if any(isinstance(column, Image) for column in preset.values()) else None


def all_members(source: Source) -> tuple[str, ...]:
    """What is read of a source without images. ConfigError where it has no members either."""
    names = tuple(member.name for member in source.members())
    if not names:
        raise ConfigError(f"{source!r}: must have images or members to show; found neither; check the path")
    return names


def judged(source: Source, columns: Columns, snapshot: Snapshot, extents: Extents) -> Iterator[Block]:
    """The columns of these records, about 64 MB of payloads at a time."""
    before = np.cumsum(extents.lengths) - extents.lengths
    chunk = before // max(1, CHUNK_BYTES // snapshot.record_bytes)
    rows = np.split(np.arange(len(extents)), np.flatnonzero(np.diff(chunk)) + 1)
    columns.settle_by(source)
    every = (extents[some] for some in rows)
    for block in plan.blocks(source, columns.members, every, optional=columns.optional):
        yield columns(block)


def spread(snapshot: Snapshot, count: int) -> Extents:
    """`count` positions (all, where there are fewer), evenly over the partitions laid end to end.

    Single ones where that is cheap, else runs of up to 16, which cost a seek each.
    """
    total = snapshot.positions
    count = min(count, total)
    run = 1 if snapshot.random_access else RUN
    nth = np.arange(count, dtype=np.int64)
    line = nth // run * run * total // count + nth % run
    ends = np.cumsum(snapshot.stops - snapshot.starts)
    partition = np.searchsorted(ends, line, side="right").astype(np.int64)
    position = snapshot.stops[partition] - (ends[partition] - line)
    first = np.flatnonzero((nth % run == 0) | (np.diff(partition, prepend=-1) != 0))
    last = np.append(first[1:], count) - 1
    return Extents(partition[first], position[first], position[last] + 1)
