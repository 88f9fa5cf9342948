"""`dali-feed bench loader`: loaders over the same images in turns, and a row of figures for each.

Columns of a row:

    who, way             the contestant, and which of its settings was the fastest
    img/s, least, most   median of the turns, and the others
    of ceiling           images/s over those of the ceiling in the same round: median, least, most of the rounds
    of loop              the same over those of the bare loop, which has the bytes in memory
    of loop-read         the same over those of the bare loop that reads them from the tar shards, as ours does
    of NAME              the same over those of each other contestant that took part
    of its CPU           CPU time per image of the ceiling over ours, in the same round: what `of ceiling` comes to
                         where other programs do not get in the way
    cpu us               CPU time per image, of all threads and workers
    feed us              of it the feed thread's (Stats.feed_cpu)
    own us               of that our Python: screen, draws, hand-over, metadata; the rest is DALI's own Run and Outputs
    take us              and that of the thread that takes the batches
    p50 ms, p99 ms       how long a step waits for its batch
    peak MB              most memory held, the interpreter and its libraries included
    slab peak MB         of it the encoded images that our loader held
    broker us            CPU time per image of a broker on this machine, which is not in `cpu us`
    waits                what our feed thread waited for, as shares
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from dali_feed.bench.contract import Contestant, Job, Outcome
from dali_feed.bench.findings import findings
from dali_feed.bench.turns import Listener, Make, Measured, Turn, quantiles, ratios, spread, take_turns

__all__ = ["COLUMNS", "SHOWN", "measure", "row_of", "told_in_csv"]

COLUMNS = (  # of a CSV; ratios to others than these are text in the column `beside`
    *("who", "way", "img/s", "least", "most", "of ceiling", "of ceiling, least", "of ceiling, most"),
    *("of loop", "of loop, least", "of loop, most", "of loop-read", "of loop-read, least", "of loop-read, most"),
    *("of its CPU", "cpu us", "feed us", "own us", "take us"),
    *("p50 ms", "p99 ms", "peak MB", "slab peak MB", "broker us", "waits"),
)
SHOWN = (
    *("who", "way", "img/s", "least", "most", "of ceiling", "of loop", "of loop-read", "of its CPU", "cpu us"),
    *("p50 ms", "p99 ms"),
)
STAGES = {"read": "source", "engine": "decode", "trainer": "trainer"}
_WAIT = "_wait"


def measure(
    contestants: Sequence[Contestant],
    job: Job,
    outcome: Outcome,
    *,
    repeats: int,
    seconds: float,
    listener: Listener | None = None,
    until: float = math.inf,
) -> None:
    """Let them take turns at the job; `outcome` holds what was found, also where it is interrupted.

    Args:
        contestants: in the order of their turns, each name once.
        job: what all do.
        outcome: gets rows, waits, stages, who is missing and findings.
        repeats: turns of each.
        seconds: of a turn.
        listener: hears of each turn.
        until: as of `take_turns`.
    """
    makers: dict[str, Mapping[str, Make]] = {}
    for each in contestants:
        try:
            reason = each.missing(job)
            ways = () if reason else each.ways(job)
        except Exception as error:  # noqa: BLE001  whatever it fails on, the others are measured
            reason, ways = f"{type(error).__name__}: {error}", ()
        if reason is None:
            makers[each.name] = {way: functools.partial(each.turn, job, way) for way in ways}
        else:
            outcome.missing[each.name] = reason
    found = Measured()
    try:
        take_turns(makers, found, repeats=repeats, seconds=seconds, listener=listener, until=until)
    finally:
        _tell(found, outcome, {each.name: each for each in contestants})


def _tell(found: Measured, outcome: Outcome, contestants: Mapping[str, Contestant]) -> None:
    outcome.missing |= found.missing
    for who, turns in found.turns.items():
        row = row_of(who, found.ways[who], turns, found.turns)
        outcome.rows.append(row | {"version": contestants[who].version})
        outcome.waits[who] = turns[-1].waits
        if turns[-1].told:
            outcome.told[who] = turns[-1].told
        stages = {name: turns[-1].notes.get(note + _WAIT) for note, name in STAGES.items()}
        if any(value is not None for value in stages.values()):
            outcome.stages[who] = {name: value or 0.0 for name, value in stages.items()}
    outcome.findings += findings(outcome)


def row_of(who: str, way: str, turns: Sequence[Turn], everybody: Mapping[str, Sequence[Turn]]) -> dict[str, Any]:
    """What is told of a contestant, beside all that took part; numbers are numbers, and None is not known."""
    rate, least, most = spread(turn.rate for turn in turns)
    cpu = spread(turn.cpu / turn.images for turn in turns)[0]
    notes = {name: spread(turn.notes[name] for turn in turns)[0] for name in turns[0].notes}
    beside_cpu = spread(turn.beside_cpu / turn.images for turn in turns)[0]
    p50, p99 = quantiles(turns)
    return {
        "who": who,
        "way": way,
        "img/s": round(rate),
        "least": round(least),
        "most": round(most),
        **_beside("ceiling", turns, everybody),
        **_beside("loop", turns, everybody),
        **_beside("loop-read", turns, everybody),
        "of its CPU": _of_its_cpu(turns, everybody.get("ceiling")),
        "cpu us": round(cpu * 1e6),
        "feed us": _rounded(notes.get("feed_us")),
        "own us": _rounded(notes.get("own_us")),
        "take us": round(spread(turn.consumer_cpu / turn.images * 1e6 for turn in turns)[0], 1),
        "p50 ms": round(p50 * 1e3, 1),
        "p99 ms": round(p99 * 1e3, 1),
        "peak MB": round(max(turn.peak for turn in turns) / 1e6),
        "slab peak MB": round(notes["slab_peak"] / 1e6) if "slab_peak" in notes else None,
        "broker us": round(beside_cpu * 1e6) if beside_cpu else None,
        "waits": _shares(notes),
        **{
            column: value
            for other in everybody
            if other not in {"ceiling", "loop", "loop-read", who}
            for column, value in _beside(other, turns, everybody).items()
        },
    }


def told_in_csv(row: Mapping[str, Any]) -> dict[str, object]:
    """A row as a CSV has it: the same columns whoever took part."""
    told: dict[str, object] = {column: _cell(column, row.get(column)) for column in COLUMNS}
    others = [name for name in row if name.startswith("of ") and "," not in name and name not in COLUMNS]
    return told | {"version": row.get("version", ""), "beside": " ".join(f"{n[3:]}={row[n]:.3f}" for n in others)}


def _cell(column: str, value: Any) -> object:
    if value is None:
        return ""
    if column.startswith("of "):
        return f"{value:.3f}"
    return f"{value:.1f}" if isinstance(value, float) else value


def _beside(other: str, turns: Sequence[Turn], everybody: Mapping[str, Sequence[Turn]]) -> dict[str, float | None]:
    theirs = everybody.get(other)
    found = [round(ratio, 3) for ratio in ratios(turns, theirs)] if theirs else [None] * 3
    return dict(zip((f"of {other}", f"of {other}, least", f"of {other}, most"), found, strict=True))


def _of_its_cpu(turns: Sequence[Turn], ceiling: Sequence[Turn] | None) -> float | None:
    pairs = zip(turns, ceiling or (), strict=False)
    found = [top.cpu / top.images / (turn.cpu / turn.images) for turn, top in pairs if turn.cpu]
    return round(spread(found)[0], 3) if found else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def _shares(notes: Mapping[str, float]) -> str:
    waits = {name.removesuffix(_WAIT): value for name, value in notes.items() if name.endswith(_WAIT)}
    total = sum(waits.values())
    return " ".join(f"{name}={value / total:.2f}" for name, value in waits.items()) if total else ""
