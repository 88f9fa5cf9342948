"""The one map of random streams: each use of random numbers has its own, so that no two use the same.

The law: all values of a draw's first counter word are assigned below, each to one owner, and no other file writes one
down: it takes its numbers from here, or from its caller.

    PROGRAM  what is done to each image: the ops of a recipe, or a user's graph, or a user's pipeline; never two of them
    MIXING   MixUp and CutMix
    VIEWS    the seeds of views, which then draw as programs do
    COLUMNS  the seeds of further image columns, by their names, which then draw as programs do
    ORDER    which sample comes in which slot, and the seeds of a mixture's parts and of samples that come again

Op number n of a recipe draws from streams 16n to 16n + 15. The lowest 8 bits of its number are its place in the recipe,
or that of the nest that it stands in; in a nest, its place there is in the 6 bits above those, up to three nests deep.
"""

from __future__ import annotations

__all__ = [
    "COLUMNS",
    "DEEPEST",
    "EXTENT_ORDER",
    "MIXING",
    "NEST_BITS",
    "ORDER",
    "PROGRAM",
    "REPEATS",
    "STRANDS",
    "STREAMS_PER_OP",
    "TOP_BITS",
    "VIEWS",
    "WINDOW_ORDER",
]

PROGRAM = range(1 << 30)
MIXING = range(1 << 30, 3 << 29)
VIEWS = range(3 << 29, 7 << 28)
COLUMNS = range(7 << 28, 1 << 31)
ORDER = range(1 << 31, 1 << 32)

STREAMS_PER_OP = 16
TOP_BITS, NEST_BITS, DEEPEST = 8, 6, 3  # of an op's number: its place in the recipe, in a nest; nests in nests

EXTENT_ORDER = ORDER[0]  # of a source's extents, among each other
WINDOW_ORDER = ORDER[1]  # of the samples of a window
REPEATS = ORDER[2]  # the seeds of what is done to a sample that comes again within an epoch
STRANDS = ORDER[3]  # the seeds of the orders of a mixture's parts, of each pass over one
