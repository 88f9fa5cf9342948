"""How often a property is tried, by what the profile says: `make test-long` tries each ten times as often."""

from __future__ import annotations

from hypothesis import settings


def examples(times: float) -> settings:
    """So many times the profile's own number of examples: for values that are cheap to make, or costly."""
    return settings(max_examples=round(times * settings().max_examples))
