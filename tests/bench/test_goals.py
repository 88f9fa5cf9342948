"""What benchmarks say of their goals."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from types import ModuleType

import pytest

PLACE = Path(__file__).parents[2] / "bench" / "_goals.py"


@pytest.fixture
def goals() -> ModuleType:
    """bench/_goals.py, which is no package that could be imported."""
    spec = importlib.util.spec_from_file_location("bench_goals", PLACE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("found", "worst", "unsure", "says"),
    [
        (0.5, None, 0.0, "GOAL met: it: 0.5 %; at most 1 was asked"),
        (0.5, 0.9, 0.0, "GOAL met: it: 0.5 %, at worst 0.9; at most 1 was asked"),
        (0.5, 1.2, 0.0, "GOAL met by the median alone: it: 0.5 %, at worst 1.2; at most 1 was asked"),
        (1.5, None, 0.3, "GOAL missed: it: 1.5 %; at most 1 was asked"),
        (0.9, None, 0.3, "GOAL open: it: 0.9 %, which may be off by 0.3; at most 1 was asked."),
        (-25.0, None, 20.0, "GOAL open: it: -25 %, which may be off by 20; at most 1 was asked."),
        (0.2, None, math.inf, "GOAL open: it: 0.2 %, which may be off by inf; at most 1 was asked."),
    ],
)
def test_a_goal_is_met_or_missed_or_open(
    goals: ModuleType, found: float, worst: float | None, unsure: float, says: str
) -> None:
    """By the median, with the worst beside it; open where the turns cannot tell."""
    assert goals.within("it", found, 1.0, worst=worst, unsure=unsure, unit=" %").startswith(says)


def test_few_turns_or_far_apart_tell_little(goals: ModuleType) -> None:
    """The median of many that lie close is sure; of two nothing is known."""
    assert goals.error_of([1.0, 2.0]) == math.inf
    assert goals.error_of([1.0] * 3) == 0
    assert goals.error_of([0.0, 1.0] * 50) < goals.error_of([0.0, 1.0] * 5)
