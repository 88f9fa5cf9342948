"""What the figures of a bench of loaders say, in sentences, the most useful one first."""

from __future__ import annotations

from typing import Any

from dali_feed.bench.chance import CHANCE, overlap
from dali_feed.bench.contract import Outcome

__all__ = ["OURS", "OWN_VERDICT", "findings"]

OURS = ("tar", "folder", "kafka")
OWN_VERDICT = "'s own verdict"  # of a sentence that the page has in a part of its own
NOT_PEERS = (*OURS, "ceiling", "loop", "loop-read")
NEAR = 0.9  # of the ceiling: what limits is the decoder
SPREAD = 1.25  # most over least of a contestant's turns above which a machine is not quiet


def findings(outcome: Outcome) -> list[str]:
    """Sentences about who is faster and what limits us. Empty where ours was not measured."""
    ours = [row for row in outcome.rows if row["who"] in OURS]
    if not ours:
        return []
    best = max(ours, key=lambda row: float(row["img/s"]))
    found = [*_beside_peers(best, outcome), *_limits(best, outcome)]
    if (told := outcome.told.get(best["who"])) is not None:
        found.append(f"{best['who']}{OWN_VERDICT}: {told['sentence']}.")
    restless = [row["who"] for row in outcome.rows if row["least"] and row["most"] / row["least"] > SPREAD]
    if restless:
        found.append(
            f"The turns of {', '.join(restless)} differ by more than {SPREAD - 1:.0%}: other programs were busy, or "
            "turns were short; trust the ratios, and measure again with more --repeats and --seconds."
        )
    return found


def _beside_peers(best: dict[str, Any], outcome: Outcome) -> list[str]:
    peers = [row for row in outcome.rows if row["who"] not in NOT_PEERS and best.get(f"of {row['who']}")]
    if not peers:
        return []
    fastest = min(peers, key=lambda row: float(best[f"of {row['who']}"]))
    ratio, way = best[f"of {fastest['who']}"], f" ({fastest['way']})" if fastest["way"] else ""
    start = f"dali_feed over {best['who']} gives {best['img/s']:,} images/s, "
    chance = f"; their turns overlap, so the difference {CHANCE}" if overlap(best, fastest) else ""
    return [start + f"{ratio:.2f} times the fastest other loader, {fastest['who']}{way}{chance}."]


def _limits(best: dict[str, Any], outcome: Outcome) -> list[str]:
    ratio = best["of ceiling"]
    if ratio is None:
        return []
    start = f"{best['who']} reaches {ratio:.2f} of the ceiling, which is the same engine fed from memory: "
    if ratio >= NEAR:
        return [start + "decoding is the limit, and a faster source would change little."]
    waits = outcome.stages.get(best["who"], {})
    most = max(waits, key=lambda name: waits[name], default=None)
    what = {
        "source": "its feed thread waits most for the source; try Tuning(readers=...).",
        "decode": "its feed thread waits for the decoder most, and the rest is lost between the decoder and the loop.",
    }
    return [start + what.get(most or "", "its batches wait most for the loop that takes them.")]
