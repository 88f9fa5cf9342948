"""The stages of a loader out of what its parts have counted."""

from __future__ import annotations

from dali_feed.engines.clock import EngineWork
from dali_feed.feed.meter import Meter
from dali_feed.feed.reading import ReaderWork
from dali_feed.feed.stages import StageStats

__all__ = ["loop_stages", "stages"]


def _stage(
    name: str,
    threads: int,
    samples: int,
    *,
    worked: float,
    waited: float = 0.0,
    blocked: float = 0.0,
    busy: float | None = None,
    least: int = 1,
) -> StageStats:
    """`busy`: what the samples took of a thread's time, where that is not `worked`; `least` samples tell a rate."""
    took = worked if busy is None else busy
    rate = samples * threads / took if samples >= least and took > 0 else None
    return StageStats(name, threads, samples, max(0.0, waited), max(0.0, worked), max(0.0, blocked), rate)


def stages(meter: Meter, readers: ReaderWork | None, engine: EngineWork | None, threads: int) -> tuple[StageStats, ...]:
    """In the order of the way.

    readers  None: a stream's one reader, which waits for records that do not exist yet
    engine   None: it does not say what its threads, so many of them, do
    """
    spent, wall, service = meter.spent(), meter.passes.stats().seconds, meter.service
    starved, full = spent["source"], spent["trainer"] + spent["dead letters"]
    found = []
    if readers is not None:
        waited, idle = readers.seconds - readers.cpu, readers.threads * wall - readers.seconds
        found.append(
            _stage(
                *("read", readers.threads, readers.records),
                waited=waited,
                worked=readers.cpu,
                blocked=idle,
                busy=readers.seconds,
            )
        )
    found += [
        _stage("screen", 1, meter.screened, worked=spent["screen"]),
        _stage("deal", 1, service.dealt, worked=spent["deal"], waited=starved),
    ]
    if engine is None:
        idle, seconds, samples = max(0.0, wall - service.seconds), service.seconds, service.samples
    else:
        idle, seconds, samples = engine.threads * wall - engine.seconds, engine.seconds, engine.images
    hungry = starved / (starved + full) if starved + full > 0 else 0.0
    made = _stage(
        *("engine", threads if engine is None else engine.threads, samples),
        worked=seconds,
        waited=idle * hungry,
        blocked=idle * (1 - hungry),
        busy=seconds * threads if engine is None else None,
    )
    finish = _stage(
        *("finish", 1, service.landed),
        worked=spent["finish"] + spent["mend"],
        waited=spent["engine"] + spent["repair"],
        blocked=full,
    )
    return (*found, made, finish, *loop_stages(meter))


def loop_stages(meter: Meter) -> tuple[StageStats, ...]:
    """Those in the training loop's thread."""
    loop = meter.loop
    return (
        _stage("handover", 1, meter.samples, worked=loop.handover),
        _stage("train", 1, loop.samples, worked=loop.worked, waited=meter.steps.total),
    )
