"""What our loader says of its own turn: its verdict, its stages, and its long waits, as JSON keeps them."""

from __future__ import annotations

from typing import Any

from dali_feed.feed.stats import Stats
from dali_feed.feed.verdict import verdict

__all__ = ["fits", "told_of"]

_STAGE = {"name": str, "threads": int, "samples": int, "waited": float, "worked": float, "blocked": float}


def told_of(stats: Stats) -> dict[str, Any]:
    """As JSON.

    sentence  the verdict
    advice    what may help, the best first
    stages    in the order of the way, by `StageStats`: seconds, and samples/s where they are known
    causes    cause -> seconds that the loop waited because of it, most first
    """
    said = verdict(stats)
    return {
        "sentence": said.sentence,
        "advice": list(said.advice),
        "stages": [{name: getattr(each, name) for name in (*_STAGE, "rate")} for each in stats.stages],
        "causes": {each.cause: each.seconds for each in stats.wait_causes},
    }


def fits(value: Any) -> bool:
    """Whether it has the shape of what `told_of` gives."""
    if not isinstance(value, dict) or set(value) != {"sentence", "advice", "stages", "causes"}:
        return False
    advice, stages, causes = value["advice"], value["stages"], value["causes"]
    return (
        isinstance(value["sentence"], str)
        and isinstance(advice, list)
        and all(isinstance(line, str) for line in advice)
        and isinstance(stages, list)
        and all(map(_is_stage, stages))
        and isinstance(causes, dict)
        and all(isinstance(seconds, int | float) for seconds in causes.values())
    )


def _is_stage(value: Any) -> bool:
    if not isinstance(value, dict) or set(value) != {*_STAGE, "rate"}:
        return False
    right = (isinstance(value[name], (int, float) if kind is float else kind) for name, kind in _STAGE.items())
    return all(right) and isinstance(value["rate"], int | float | None)
