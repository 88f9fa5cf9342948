"""A stream's mark: how far a run is in each partition, in plain JSON, and whose partitions these are.

The law: a mark lacks nothing that its run had, or that is an error. Partition p is rank p % world_size's, and a rank's
position has all that it knew of: one that is absent, and whose rank is among the mark's, came to the topic later and
is read from its beginning; one whose rank is not among them may have been read, and nobody knows how far.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.errors import ConfigError, SourceChangedError, SourceEmptyError, StateError

__all__ = ["Mark", "Told", "check_stretch", "made_mark", "mark_of", "merged_marks"]

Told = Mapping[str, Any] | Sequence[Mapping[str, Any]]
_STATE = "stream"  # where a loader's state has its mark


@dataclass(frozen=True, slots=True)
class Mark:
    """Positions by partition, of these ranks of a run of `world_size`."""

    topic: str
    topic_id: str
    world_size: int
    ranks: tuple[int, ...]
    positions: dict[int, int]

    def told(self) -> dict[str, Any]:
        """As plain JSON."""
        return {
            "topic": self.topic,
            "id": self.topic_id,
            "world_size": self.world_size,
            "ranks": list(self.ranks),
            "positions": {str(p): self.positions[p] for p in sorted(self.positions)},
        }

    def of_rank(self, rank: int, world_size: int, count: int) -> dict[int, int]:
        """The positions of a rank's partitions of a topic that has `count`.

        Raises:
            StateError: how far the run was in some of them is not known.
            SourceChangedError: the topic has fewer partitions than the mark.
        """
        most = max(self.positions, default=-1)
        if most >= count:
            msg = (
                f"{self.topic}: the state has {most + 1} partitions and the topic now {count}: it was deleted and "
                "made again"
            )
            raise SourceChangedError(msg)
        mine = range(rank, count, world_size)
        lacking = [p for p in mine if p not in self.positions and p % self.world_size not in self.ranks]
        if lacking:
            ranks = ", ".join(str(r) for r in sorted({p % self.world_size for p in lacking}))
            shown = ", ".join(map(str, lacking[:8])) + (f" and {len(lacking) - 8} more" if len(lacking) > 8 else "")
            msg = (
                f"{self.topic}: a state must have the position of each partition of rank {rank} of {world_size}; "
                f"it lacks {shown}, because it is of ranks {', '.join(map(str, self.ranks))} of "
                f"{self.world_size}; give the states of ranks {ranks} too"
            )
            raise StateError(msg)
        return {p: self.positions.get(p, 0) for p in mine}


def mark_of(topic: str, told: Told) -> Mark:
    """A mark read back from JSON: by itself, in a loader's state, or those of several ranks.

    Raises StateError where it is not one of this topic.
    """
    if isinstance(told, Sequence) and not isinstance(told, str | bytes):
        return merged_marks(topic, told)
    if not isinstance(told, Mapping):
        msg = (
            f"{topic}: a state must be what a loader's state_dict() gave, a list of all ranks', or a mark; found"
            f" {type(told).__name__}"
        )
        raise StateError(msg)
    mark = told.get(_STATE, told)
    if mark is None:
        msg = (
            f"{topic}: a state must say how far a stream is; this one was taken before anything was read. Take it"
            " after the first batch"
        )
        raise StateError(msg)
    if "fleet" in mark:
        group = mark["fleet"]
        msg = (
            f"{topic}: a state must have the position of each partition; found a fleet's state: its group "
            f"{group!r} has it"
        )
        raise StateError(msg)
    try:
        positions = {int(p): int(v) for p, v in mark["positions"].items()}
        ranks, world_size = tuple(sorted(int(r) for r in mark["ranks"])), int(mark["world_size"])
        of, topic_id = str(mark["topic"]), str(mark.get("id", ""))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        said = f"it has no {error}" if isinstance(error, KeyError) else f"{type(error).__name__}: {error}"
        msg = (
            f"{topic}: a state must be what a loader of a stream of this topic gave by state_dict(), or a mark; {said}"
        )
        raise StateError(msg) from error
    if of != topic:
        msg = f"{topic}: the state must be of the same topic; it is of {of}. Make the stream with that topic"
        raise StateError(msg)
    fits = world_size > 0 and all(0 <= r < world_size for r in ranks)
    if not fits or any(p < 0 or v < 0 or p % world_size not in ranks for p, v in positions.items()):
        msg = f"{topic}: a state must be of a stream of this topic; its ranks and positions do not fit together"
        raise StateError(msg)
    return Mark(of, topic_id, world_size, ranks, positions)


def check_stretch(topic: str, starts: NDArray[np.int64], ends: NDArray[np.int64], last: Mark) -> None:
    """That records may lie between two marks, the second of which is `last`.

    Raises:
        StateError: the second stands before the first in some partition.
        SourceEmptyError: both stand at the same place.
    """
    behind = np.flatnonzero(ends < starts).tolist()
    if behind:
        p = behind[0]
        found = f"at {starts[p]} and at {ends[p]}" if p in last.positions else f"at {starts[p]} and without it"
        cure = "Give the states of one run, the earlier one first"
        if len(behind) == np.count_nonzero(starts != ends):
            cure = "They are the wrong way round: give the earlier one first"
        more = f", and {len(behind) - 1} more" if len(behind) > 1 else ""
        msg = (
            f"{topic}: replay(a, b): b must stand at or behind a in each partition; found them {found} in partition"
            f" {p}{more}. {cure}"
        )
        raise StateError(msg)
    if not (ends > starts).any():
        msg = (
            f"{topic}: replay(a, b): there must be a record between the two; found both at the same place in each of"
            f" {len(starts)} partitions. Give a later state as b"
        )
        raise SourceEmptyError(msg)


def made_mark(topic: str, topic_id: str, positions: Mapping[int, int], rank: int, world_size: int) -> Mark:
    """A rank's. Raises ConfigError where its partitions are not those that the rank has."""
    if sorted(positions) != list(range(rank, rank + len(positions) * world_size, world_size)):
        msg = (
            f"{topic}: a state must have all partitions of rank {rank} of {world_size}, as its reader's blocks "
            f"say; found {sorted(positions)}"
        )
        raise ConfigError(msg)
    return Mark(topic, topic_id, world_size, (rank,), {int(p): int(v) for p, v in positions.items()})


def merged_marks(topic: str, marks: Sequence[Mapping[str, Any]]) -> Mark:
    """One mark, made from those of several ranks. StateError: they are not of one run, or two are of one rank."""
    found = [mark_of(topic, told) for told in marks]
    if not found:
        msg = f"{topic}: a state of at least one rank is needed; found none"
        raise StateError(msg)
    ranks = sorted(rank for mark in found for rank in mark.ranks)
    for name, kinds in (
        ("of one topic's id", {mark.topic_id for mark in found}),
        ("of ranks of one world size", {mark.world_size for mark in found}),
    ):
        if len(kinds) > 1:
            msg = f"{topic}: states must be {name}; found {', '.join(map(str, sorted(kinds)))}"
            raise StateError(msg)
    if len(set(ranks)) < len(ranks):
        msg = f"{topic}: states must be of different ranks of one run; found ranks {', '.join(map(str, ranks))}"
        raise StateError(msg)
    positions = {p: v for mark in found for p, v in mark.positions.items()}
    return Mark(topic, found[0].topic_id, found[0].world_size, tuple(ranks), positions)
