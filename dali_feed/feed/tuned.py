"""`Tuning.auto()`: what was kept for a feed's machine, data and program, or what is measured now, or the defaults.

The law: a tuning is never the reason why a run fails or gives other batches. What was kept and cannot be here, a
measurement that fails, and a folder that cannot be written are a line in the log and the defaults.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dali_feed.errors import ConfigError, DaliFeedError
from dali_feed.feed.measuring import measured
from dali_feed.options import AutoTuning, Tuning
from dali_feed.tuner.alone import alone
from dali_feed.tuner.kept import Kept, Key, keep, kept, path_of
from dali_feed.tuner.machine import machine
from dali_feed.tuner.race import changes
from dali_feed.tuner.search import Outcome

__all__ = ["kept_away", "key_of", "settled", "told"]

log = logging.getLogger("dali_feed")

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_GRACE = 30.0  # seconds that others wait beyond the time that a measurement should take

Settled = tuple[Tuning, str]  # and where it comes from


def key_of(feed: Any, asked: AutoTuning) -> Key:
    """What a tuning of that `Feed` is found for. Looks at the source.

    Data that grows is still the same, and so is data elsewhere under the same name: no batch depends on it.
    """
    snapshot, columns = feed.snapshot, getattr(feed.source, "columns", ())
    views = [(type(view).__name__, view.recipe) for view in (feed.program, *feed.program.views)]
    pinned = {name: getattr(asked, name) for name in sorted(asked.pinned)}
    return Key(
        machine=machine(gpu=feed.device is not None, cpus=asked.cpus),
        data={
            "source": _ADDRESS.sub("", snapshot.source),
            "record_bytes_below": 1 << int(snapshot.record_bytes).bit_length(),
            "random_access": bool(snapshot.random_access),
        },
        program={
            "engine": feed.engine_name,
            "batch_size": int(feed.batch_size),
            "images": hashlib.sha256(_ADDRESS.sub("", repr(views)).encode()).hexdigest()[:16],
            "columns": [str(name) for name in columns],
            "shuffled": bool(feed.order.shuffled or feed.has_sampler),
            "pinned": {name: repr(value) for name, value in pinned.items()},
        },
    )


def settled(feed: Any, asked: AutoTuning, take: Callable[[Tuning], None]) -> Settled:
    """The tuning for that feed's passes; `take` sets it, and raises ConfigError for one that cannot be set."""
    key, start = key_of(feed, asked), asked.defaults(gpu=feed.device is not None)
    keys = [key, replace(key, program={**key.program, "pinned": {}})]
    held = next((found for each in keys[: 1 + bool(asked.pinned)] if (found := kept(each)) is not None), None)
    if held is not None:
        return _of_kept(held, asked, start, take, feed.device is not None), f"kept in {path_of(key).parent}"
    if not asked.seconds:
        log.info(
            "tuning: nothing is saved for this machine, %s and this program, so the defaults are used. To find "
            "what is faster: dali-feed tune SOURCE --batch %d, or Tuning.auto(seconds=60)",
            feed.snapshot.source,
            feed.batch_size,
        )
        return start, "the defaults: nothing is saved for this machine, data and program"
    with alone(path_of(key).with_suffix(".lock"), 2 * asked.seconds + _GRACE) as place:
        held = kept(key)  # by who was first
        if held is None and (place == "first" or (place == "no lock" and feed.world_size == 1)):
            return _measured_now(feed, key, asked, start, take)
    if held is not None:
        return _of_kept(held, asked, start, take, feed.device is not None), "measured by another process just now"
    log.info("tuning: another process measured, and saved nothing; the defaults are used")
    return start, "the defaults: another process measured, and saved nothing"


def told(asked: AutoTuning, tuning: Tuning, origin: str) -> str:
    """A line of `describe()`: the tuning, and where it comes from; before the first pass what will be done."""
    if not origin:
        soon = f", else measured for about {asked.seconds:g} s" if asked.seconds else ""
        return f"tuning: what is kept for this machine, data and program{soon}, from the first pass on"
    values = [f"{name} {value}" for name, value in changes(Tuning(), tuning).items()]
    return f"tuning: {', '.join(values) or 'as Tuning()'}; {origin}"


def kept_away(key: Key, outcome: Outcome) -> str | None:
    """Keep what a search found; the path, or None, with a warning, where that cannot be."""
    if not outcome.rate or (outcome.broken and not outcome.fields):
        return None
    try:
        return str(keep(key, Kept(outcome.fields, outcome.rate, outcome.rate_before)))
    except OSError as error:
        log.warning("tuning: cannot be saved in %s (%s); set XDG_CACHE_HOME", path_of(key).parent, error)
        return None


def _measured_now(feed: Any, key: Key, asked: AutoTuning, start: Tuning, take: Callable[[Tuning], None]) -> Settled:
    log.info("tuning: measuring for about %.0f s", asked.seconds)
    try:
        outcome = measured(feed, asked, asked.seconds)
    except DaliFeedError as error:
        log.warning("tuning: could not be measured (%s); the defaults are used", error)
        return start, "the defaults: the measurement failed"
    place = kept_away(key, outcome)
    if outcome.broken:
        raise KeyboardInterrupt
    log.info("tuning: %s, %.0f samples/s with it, %.0f without", outcome.fields, outcome.rate, outcome.rate_before)
    origin = "measured now" if place is None else f"measured now, kept in {place}"
    found = replace(start, **outcome.fields)
    take(found)
    return found, origin


def _of_kept(held: Kept, asked: AutoTuning, start: Tuning, take: Callable[[Tuning], None], gpu: bool) -> Tuning:
    """As much of it as is not pinned and may be here."""
    values = {name: value for name, value in held.fields.items() if name not in asked.pinned}
    if values.get("threads", 0) > asked.most_threads(gpu=gpu):
        del values["threads"]
    if values.get("cache") is not None and values["cache"].limit + start.memory > (asked.cap or 0):
        del values["cache"]
    found = replace(start, **values)
    try:
        take(found)
    except ConfigError as error:
        log.info("tuning: what was saved does not fit (%s); the defaults are used", error)
        return start
    log.info("tuning: %s, as kept", changes(start, found) or "the defaults")
    return found
