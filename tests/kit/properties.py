"""Properties: how often one is tried, by what the profile says, and documents of any shape.

`make test-long` tries each ten times as often.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

Draw = Callable[[st.SearchStrategy[Any]], Any]


def examples(times: float) -> settings:
    """So many times the profile's own number of examples: for values that are cheap to make, or costly."""
    return settings(max_examples=round(times * settings().max_examples))


def documents(
    leaf: st.SearchStrategy[Any],
    key: st.SearchStrategy[Any],
    *,
    longest: int,
    leaves: int,
    tuples: bool = False,
) -> st.SearchStrategy[Any]:
    """Lists and dictionaries of `leaf` in each other; behind so many leaves none begins.

    `st.recursive` makes the same at twice the price: it begins anew whenever there are more.
    """
    kinds = st.sampled_from(["leaf", "leaf", "leaf", "list", "map", *["tuple"] * tuples])
    sizes = st.lists(st.none(), max_size=longest)

    def one(draw: Draw, depth: int, left: list[None]) -> Any:
        kind = draw(kinds) if left and depth else "leaf"
        if kind == "leaf":
            del left[-1:]
            return draw(leaf)
        if kind == "map":
            return {draw(key): one(draw, depth - 1, left) for _ in draw(sizes)}
        values = [one(draw, depth - 1, left) for _ in draw(sizes)]
        return values if kind == "list" else tuple(values)

    return st.composite(lambda draw: one(draw, 4, [None] * leaves))()
