"""State: the position of a run as plain JSON, the same on every rank.

The law: a state counts what the training loop received. One number, the samples each lane has given in this
epoch, is the whole position; everything else in it says what that number was counted in, and is checked. That of a
stream is a rank's own: a mark, which the source makes and reads, of this rank's partitions; one of each rank is the
state of a run, for any other number of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dali_feed.errors import StateError
from dali_feed.options import Decode
from dali_feed.plan.batching import MAX_EPOCH, Shares, world_sizes
from dali_feed.plan.mixed import MixedPlan
from dali_feed.plan.order import EpochPlan, Order
from dali_feed.records.source import Int64s, Snapshot

VERSION = 1
_LISTED = 4096  # lanes of a state whose world sizes are
_SHOWN = 8  # keys that a message names

State = dict[str, Any]


def made_for(
    snapshot: Snapshot,
    order: Order,
    *,
    seed: int,
    lanes: int,
    drop_last: bool,
    sampler: str | None,
    decode: Decode | None = None,
) -> State:
    """What a position, its pixels and its bad records depend on; a state is refused where any of it differs.

    `decode`: None where another loader makes the samples.
    """
    values = {
        "source": snapshot.fingerprint,
        "seed": seed,
        "lanes": lanes,
        "shuffle": order.shuffled,
        "extent": _extents(order),
        "window": order.window,
        "drop_last": drop_last,
        "sampler": sampler,
    }
    if snapshot.mix is not None:
        values["mix"] = snapshot.mix.to_json()
        values["window"] = [part.window for part in order.parts]
    return values if decode is None else values | decode.compared


def _extents(order: Order) -> int | list[Any]:
    """Positions per extent, of each part of a source made of several where they differ."""
    return [_extents(part) for part in order.parts] or order.extent


def pack(values: State, info: State, **position: Any) -> State:
    """A state: a position, what it was counted in (`values`), and what is for people and never checked (`info`)."""
    return {"version": VERSION, **position, "made_for": dict(values), "info": dict(info)}


def source_of(snapshot: Snapshot) -> State:
    """What a state says of its source."""
    pin = None if snapshot.pin is None else dict(snapshot.pin)
    return {"name": snapshot.source, "samples": len(snapshot), "pin": pin}


def _check_ours(state: Mapping[str, Any], *, stream: bool = False) -> None:
    """Raise StateError for what no loader of this release wrote, as a whole checkpoint that has a state in it.

    `stream`: for one of a source that ends, too.
    """
    if "version" in state or "made_for" in state:
        if stream and "epoch" in state:
            msg = "state: must be the state of a stream; found one of a source that ends, which has epochs"
            raise StateError(msg)
        if state.get("version") != VERSION:
            cure = "Another release wrote it; load it with that release"
            msg = f"state: version must be {VERSION}; found {state.get('version')!r}. {cure}"
            raise StateError(msg)
        return
    inside = [k for k, value in state.items() if isinstance(value, Mapping) and "made_for" in value]
    cure = f"Give what is at {inside[0]!r} in it" if inside else "Give what state_dict() of a loader returned"
    keys = ", ".join(repr(k)[:40] for k in list(state)[:_SHOWN]) or "no keys"
    msg = f"state: must be the dict that state_dict() gave; found one with {keys}. {cure}"
    raise StateError(msg)


def check(state: object) -> State:
    """The state as it is, if it is one of ours at all. Raises StateError."""
    if not isinstance(state, Mapping):
        msg = f"state: must be the dict that state_dict() gave; found {type(state).__name__}"
        raise StateError(msg)
    _check_ours(state)
    whole = {"epoch": int, "consumed": int, "made_for": Mapping, "source": Mapping}
    wrong = [k for k, kind in whole.items() if not isinstance(state.get(k), kind) or isinstance(state.get(k), bool)]
    bounds = {"epoch": MAX_EPOCH, "consumed": 1 << 62}
    wrong += [k for k, end in bounds.items() if k not in wrong and not 0 <= state[k] < end]
    if "source" not in wrong and not isinstance(state["source"].get("pin"), Mapping | None):
        wrong.append("source")
    if wrong:
        names = ", ".join(wrong)
        rule = "must hold epoch, consumed, made_for and source as state_dict() gave them"
        msg = f"state: {rule}; found others in: {names}. Give what state_dict() returned, unchanged"
        raise StateError(msg)
    return dict(state)


def compare(state: State, own: State, snapshot: Snapshot, lane_length: int) -> None:
    """Raises StateError that lists every difference between what the state was made for and what is here."""
    lines = _differences("the state", state["made_for"], own)
    if state["made_for"].get("source") != own["source"]:
        of, samples = state["source"].get("name"), state["source"].get("samples")
        lines[0] += (
            f" (fingerprints: it was {of} with {samples} samples, now it is {snapshot.source} with {len(snapshot)})"
        )
    more, lanes = "; world_size may change within a run, lanes may not", state["made_for"].get("lanes")
    if isinstance(lanes, int) and lanes != own["lanes"] and 0 < lanes <= _LISTED:
        more += (
            f": one of lanes={lanes} goes to world size {world_sizes(lanes)}, with batch_size * world_size a multiple"
            f" of {lanes}. For others give lanes=, a multiple of each world size, when a run begins"
        )
    _refuse(lines, more)
    if state["consumed"] > lane_length:
        rule = (
            f"consumed must be at most {lane_length}, the samples of an epoch in each lane (an equal part of its order)"
        )
        msg = f"state: {rule}; found {state['consumed']}. Give what state_dict() returned, unchanged"
        raise StateError(msg)


def _refuse(lines: Sequence[str], more: str = "") -> None:
    if lines:
        cure = f"Make the loader with the values that the state has{more}"
        msg = f"state: must be of a loader with the same values; {'; '.join(lines)}. {cure}"
        raise StateError(msg)


def _differences(of: str, stated: Mapping[str, Any], own: State) -> list[str]:
    """A line for each value of `of`, which says `stated`, that is another one here."""
    names = [*own, *(k for k in stated if k not in own)]
    return [
        f"{k}: {of} has {stated.get(k)!r}, this loader {own.get(k)!r}" for k in names if stated.get(k) != own.get(k)
    ]


# The state of a stream.


def check_streams(states: object) -> list[State]:
    """One state, or a list of several ranks', as a list, if they are a stream's. Raises StateError."""
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
        _check_ours(each, stream=True)
        if not isinstance(each.get("stream", 0), Mapping | None) or not isinstance(each.get("made_for"), Mapping):
            msg = "state: must hold stream and made_for as state_dict() gave them. Give what it returned, unchanged"
            raise StateError(msg)
    return [dict(each) for each in several]


def compare_streams(states: Sequence[State], own: State) -> None:
    """Raises StateError that lists every difference between what the states were made for and what is here."""
    lines: list[str] = []
    for number, state in enumerate(states):
        of = f"state {number}" if len(states) > 1 else "the state"
        lines += _differences(of, state["made_for"], own)
    if len({state["stream"] is None for state in states}) > 1:
        lines.append("stream: one of the states was taken before its rank had read anything")
    _refuse(lines)


# The state of a dataset that has no positions: its own.


def iterable(dataset: Any, *, epoch: int, own: Any, info: State) -> State:
    """A state of an iterable-style dataset: what it says of itself, or None, which is refused when it is loaded."""
    name = _name_of(dataset)
    source = {"name": name, "samples": None, "pin": None}
    return pack({"dataset": name}, info, epoch=epoch, consumed=0, source=source, dataset=own)


def _name_of(dataset: Any) -> str:
    return f"{type(dataset).__module__}.{type(dataset).__qualname__}"


def iterable_of(state: State, dataset: Any) -> Any:
    """The dataset's own state in one that `iterable` made. StateError for another's, and where there is none."""
    name = _name_of(dataset)
    name_before = state["made_for"].get("dataset")
    if name_before != name:
        msg = f"state: must be of the iterable-style dataset {name}; found one of {state['source'].get('name')}"
        raise StateError(msg)
    if state.get("dataset") is None:
        msg = (
            f"state: {name} is iterable-style and has no state of its own, so there is nothing to go on from. Give it"
            " state_dict() and load_state_dict() (in worker processes with torchdata installed), make it a map-style"
            " one, or use a source of dali_feed.external_sources"
        )
        raise StateError(msg)
    return state["dataset"]


# How far a run has come in each partition: for people who watch; only the position itself is ever gone on from.


def progress(snapshot: Snapshot, plan: EpochPlan | MixedPlan, epoch: int, consumed: int, *, left: bool) -> Int64s:
    """Per partition its first position and the number of its positions that the trainer has consumed, int64.

    Where the snapshot knows its holes, the position of the first record that would be left had they come in order.
    Between two epochs, and when no batch is `left`, that is the partition's end. Records that fill up the last slots
    of the lanes a second time do not lead beyond it.
    """
    if (epoch and not consumed) or not left:
        return snapshot.stops.copy()
    dealt = plan.dealt(consumed, len(snapshot.starts))
    if snapshot.present is None:
        return np.asarray(np.minimum(snapshot.starts + dealt, snapshot.stops), np.int64)
    return snapshot.present.reached(dealt, snapshot.starts, snapshot.stops)


def reached(state: Mapping[str, Any], snapshot: Snapshot) -> Int64s:
    """Per partition of the state's own snapshot where the run stands, int64; see `progress`.

    Raises StateError where it is no state, is of another snapshot, or has its order from a sampler, which it does not
    hold.
    """
    checked = check(state)
    values, info = checked["made_for"], checked.get("info", {})
    if values.get("sampler") is not None:
        msg = (
            "state: its order came from a sampler, which a state does not hold; ask for the group whose offsets "
            "commit() sets"
        )
        raise StateError(msg)
    if values.get("source") != snapshot.fingerprint:
        msg = f"state: it must fit its own pin; the fingerprints are {values.get('source')!r}, {snapshot.fingerprint!r}"
        raise StateError(msg)
    try:
        order = Order(bool(values["shuffle"]), int(values["extent"]), int(values["window"]))
        lanes, drop_last = int(values["lanes"]), bool(values["drop_last"])
        shares = Shares(int(info["batch_size"]), 0, int(info["world_size"]), lanes)
        seed = int(values["seed"])
        epoch, consumed = checked["epoch"], checked["consumed"]
        plan = EpochPlan(snapshot, order, seed=seed, epoch=epoch, lanes=lanes, drop_last=drop_last, indices=None)
        left = bool(shares.counts(plan.lane_length - consumed, drop_last=drop_last))
        return progress(snapshot, plan, epoch, consumed, left=left)
    except (KeyError, TypeError, ValueError, OverflowError, ZeroDivisionError) as error:
        msg = f"state: must be the dict that state_dict() gave; {type(error).__name__}: {error}"
        raise StateError(msg) from error
