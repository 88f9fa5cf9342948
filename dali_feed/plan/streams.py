"""The one map of random streams: who draws from which numbers, so that no two meet.

An op of a recipe draws from STREAMS_PER_OP streams of its own: op n from 16n to 16n + 15.
"""

from __future__ import annotations

__all__ = ["STREAMS_PER_OP"]

STREAMS_PER_OP = 16
