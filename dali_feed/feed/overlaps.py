"""What a wait of the training loop was spent on: what the feed thread was at while it lasted. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from dali_feed.feed.clock import Span

__all__ = ["CAUSES", "spent_on"]

# What the feed thread is at -> why the loop waits. While the feed thread waits for the loop, a batch is there.
CAUSES = {
    "source": "source",
    "engine": "engine",
    "dead letters": "dead letters",
    "repair": "repair",
    "mend": "repair",
    "screen": "feed",
    "deal": "feed",
    "finish": "feed",
    "trainer": "hand-over",
}


def spent_on(
    spans: Sequence[Span], pauses: Sequence[tuple[float, float]], begun: float, ended: float
) -> dict[str, float]:
    """Seconds of the wait from `begun` to `ended` by cause; they add up to it.

    spans   what the feed thread was at, in order
    pauses  of Python's garbage collector, in order, in which no thread runs: they count as nothing else
    """
    whole = max(0.0, ended - begun)
    found: dict[str, float] = {}
    for state, since, until in reversed(spans):
        if until <= begun:
            break
        # Without calls: this is done a few times for every batch.
        first = since if since > begun else begun  # noqa: FURB136
        last = until if until < ended else ended  # noqa: FURB136
        if first < last:
            cause = CAUSES.get(state, "unknown")
            found[cause] = found.get(cause, 0.0) + (last - first)
    known = sum(found.values())
    if whole > known:
        found["unknown"] = found.get("unknown", 0.0) + whole - known
    stopped = 0.0
    for since, until in reversed(pauses):
        if until <= begun:
            break
        stopped += max(0.0, min(until, ended) - max(since, begun))
    stopped = min(whole, stopped)
    if stopped > 0:
        found = {cause: seconds * (1 - stopped / whole) for cause, seconds in found.items()}
        found["garbage"] = stopped
    return found
