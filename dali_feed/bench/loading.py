"""`dali-feed bench loader`: our loader, who stands above it, and other loaders over the same images."""

from __future__ import annotations

from collections.abc import Sequence

from dali_feed.bench.data import BenchJob
from dali_feed.bench.ours import bare, ceiling, engine_of, our_contestants
from dali_feed.bench.runner import CHANCE, Contestant, Race, Turnout

UNIT = "images"
SHOWN = [
    *("who", "way", "images/s", "least", "most", "of ceiling", "of bare", "of torch"),
    *("cpu us", "p50 ms", "p99 ms", "peak MB", "server us", "busy"),
]
NEAR = 0.9  # of the ceiling: what limits is the decoder
SPREAD = 1.25  # most over least of a contestant's turns above which a machine is not quiet


def contestants(job: BenchJob, *, reads: Sequence[str] = ("tar", "folder"), peers: bool = True) -> list[Contestant]:
    """In the order of their turns."""
    chosen = [*our_contestants(job, *reads), ceiling(job)]
    if engine_of(job.engine, job.device) == "host":
        chosen.append(bare(job))
    if peers:
        from dali_feed.bench.peers import image_peers  # which loads torchvision's datasets

        chosen += image_peers(job)
    return chosen


def findings(race: Race) -> list[str]:
    """Who is faster, and what limits us. Empty where ours was not measured."""
    ours = [row for row in race.rows if row.role == "ours"]
    if not ours:
        return []
    best = max(ours, key=lambda row: float(race.cell(row, race.figure) or 0))
    return [*_beside_peers(race, best), *_limits(race, best), *verdicts(race), *restless(race)]


def verdicts(race: Race) -> list[str]:
    """What each loader of ours says of itself."""
    return [f"{row.who}'s own verdict: {row.extra['verdict']}." for row in race.rows if "verdict" in row.extra]


def restless(race: Race) -> list[str]:
    """Whether the machine was quiet enough."""
    rows = [row.who for row in race.rows if row.busy or max(row.rates) > SPREAD * min(row.rates)]
    if not rows:
        return []
    advice = "trust the ratios, and measure again with more --rounds and --seconds"
    return [f"The turns of {', '.join(dict.fromkeys(rows))} differ, or other programs were busy: {advice}."]


def _beside_peers(race: Race, best: Turnout) -> list[str]:
    ratios = {row.who: ratio for row in race.rows if row.role == "peer" and (ratio := race.ratio(best, row.who))}
    if not ratios:
        return []
    fastest = min(ratios, key=lambda who: ratios[who].median)
    row = race.row(fastest)
    way = f" ({row.way})" if row is not None and row.way else ""
    chance = f"; their turns overlap, so the difference {CHANCE}" if ratios[fastest].chance else ""
    rate = f"dali_feed over {best.who} gives {race.cell(best, race.figure):,.0f} images/s, "
    return [rate + f"{ratios[fastest].median:.2f} times the fastest other loader, {fastest}{way}{chance}."]


def _limits(race: Race, best: Turnout) -> list[str]:
    ratio = race.ratio(best, "ceiling")
    if ratio is None:
        return []
    start = f"{best.who} reaches {ratio.median:.2f} of the ceiling, which is the same engine fed from memory: "
    if ratio.chance:
        says = (
            f"their turns overlap, so the difference {CHANCE}: decoding is about the limit, and more --rounds say more."
        )
        return [start + says]
    if ratio.median >= NEAR:
        return [start + "decoding is the limit, and a faster source would change little."]
    return [start + "its own verdict says where the rest goes; `dali-feed bench storage` measures a disk alone."]
