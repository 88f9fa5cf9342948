"""State of a stream: how far the training loop is on this rank, as plain JSON.

The law: a state counts what the loop was handed. It has a mark, which the source makes and reads, of this rank's
partitions, and what the pixels depend on; one of each rank is the state of a run, for any other number of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dali_feed.errors import StateError
from dali_feed.options import Decode
from dali_feed.plan.state import check_ours

__all__ = ["check", "compare", "made_for", "pack"]

VERSION = 1

State = dict[str, Any]


def made_for(seed: int, decode: Decode) -> State:
    """What the pixels of a record depend on, and whether it is a bad one."""
    return {"seed": seed, **decode.compared}


def pack(made: State, mark: Mapping[str, Any] | None, info: State) -> State:
    """A state; `mark` None: nothing has been read yet, so from where the source begins. `info` is for people."""
    return {
        "version": VERSION,
        "stream": None if mark is None else dict(mark),
        "made_for": dict(made),
        "info": dict(info),
    }


def check(states: object) -> list[State]:
    """One state, or a list of several ranks', as a list, if they are ours. Raises StateError."""
    several: list[Any] = (
        list(states) if isinstance(states, Sequence) and not isinstance(states, str | bytes) else [states]
    )
    if not several:
        msg = "state: a list of states must hold the state of every rank; found an empty list"
        raise StateError(msg)
    for each in several:
        if not isinstance(each, Mapping):
            rule = "must be the dict that state_dict() gave, or a list of those of all ranks"
            msg = f"state: {rule}; found {type(each).__name__}"
            raise StateError(msg)
        check_ours(each)
        if "epoch" in each:
            msg = "state: must be the state of a stream; found one of a source that ends, which has epochs"
            raise StateError(msg)
        if each.get("version") != VERSION:
            found = each.get("version")
            cure = "Another release wrote it; load it with that release"
            msg = f"state: version must be {VERSION}; found {found!r}. {cure}"
            raise StateError(msg)
        if not isinstance(each.get("stream", 0), Mapping | None) or not isinstance(each.get("made_for"), Mapping):
            msg = "state: must hold stream and made_for as state_dict() gave them. Give what it returned, unchanged"
            raise StateError(msg)
    return [dict(each) for each in several]


def compare(states: Sequence[State], made: State) -> None:
    """Raises StateError that lists every difference between what the states were made for and what is here."""
    lines: list[str] = []
    for number, state in enumerate(states):
        of = f"state {number}" if len(states) > 1 else "the state"
        found = state["made_for"]
        names = [*made, *(k for k in found if k not in made)]
        lines += [
            f"{k}: {of} has {found.get(k)!r}, this loader {made.get(k)!r}" for k in names if found.get(k) != made.get(k)
        ]
    if len({state["stream"] is None for state in states}) > 1:
        lines.append("stream: one of the states was taken before its rank had read anything")
    if lines:
        cure = "Make the loader with the values that the state has"
        msg = f"state: must be of a loader with the same values; {'; '.join(lines)}. {cure}"
        raise StateError(msg)
