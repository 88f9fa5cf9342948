"""What a loader counted between two looks at it: a turn's warm-up, with its first batch, is not in the verdict."""

from __future__ import annotations

from dataclasses import replace

from dali_feed.feed.stages import CpuStats, StageStats, WaitCause
from dali_feed.feed.stats import Stats

__all__ = ["since"]


def since(before: Stats, after: Stats) -> Stats:
    """The later one, less what the earlier one had, as far as a verdict is made of it. Quantiles stay as they are."""
    earlier = {stage.name: stage for stage in before.stages}
    causes = {each.cause: each.seconds for each in before.wait_causes}
    left = [WaitCause(each.cause, each.seconds - causes.get(each.cause, 0.0)) for each in after.wait_causes]
    return replace(
        after,
        samples=after.samples - before.samples,
        batches=after.batches - before.batches,
        stages=tuple(_stage(earlier.get(stage.name), stage) for stage in after.stages),
        cpu=_cpu(before.cpu, after.cpu),
        step_wait=after.step_wait - before.step_wait,
        wait_causes=tuple(sorted((each for each in left if each.seconds > 0), key=lambda each: -each.seconds)),
    )


def _stage(before: StageStats | None, after: StageStats) -> StageStats:
    if before is None:
        return after
    samples, busy = after.samples - before.samples, _busy(after) - _busy(before)
    return StageStats(
        after.name,
        after.threads,
        samples,
        max(0.0, after.waited - before.waited),
        max(0.0, after.worked - before.worked),
        max(0.0, after.blocked - before.blocked),
        samples / busy if samples > 0 and busy > 0 else None,
    )


def _busy(stage: StageStats) -> float:
    """Seconds that its samples took it with all its threads; 0 where nobody knows."""
    return stage.samples / stage.rate if stage.rate else 0.0


def _cpu(before: CpuStats | None, after: CpuStats | None) -> CpuStats | None:
    if before is None or after is None or after.seconds <= before.seconds:
        return after
    seconds = after.seconds - before.seconds
    busy = (after.busy * after.seconds - before.busy * before.seconds) / seconds
    return CpuStats(after.cores, busy, seconds)
