"""The plan: which sample comes in which slot, and the position of a run. Arithmetic.

Never: I/O, clocks, threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dali_feed.packages import lazily

if TYPE_CHECKING:
    from dali_feed.plan.order import EpochPlan, Order, Shuffle, WindowPlan, canonical, resolve

__all__ = ["EpochPlan", "Order", "Shuffle", "WindowPlan", "canonical", "resolve"]

__getattr__ = lazily(
    __name__,
    {
        "EpochPlan": "order",
        "Order": "order",
        "Shuffle": "order",
        "WindowPlan": "order",
        "canonical": "order",
        "resolve": "order",
    },
)
