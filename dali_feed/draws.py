"""Draws: the random numbers of a run, and the one map of who owns which stream of them.

The law: a random number is a pure function of (seed, epoch, sample id, stream). No generator has a state, so a
batch's augmentation does not depend on the batches before it, on batch borders, threads or ranks.

The generator is Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3,
SC 2011), vectorised in NumPy. Counter words: (stream, epoch, id low, id high); key words: the seed.
A stream is one block of four 32-bit words. All values of a draw's first counter word are assigned below, each to one
owner, so that no two use the same, and no other file writes one down: it takes its numbers from here, or from its
caller.

    PROGRAM  what is done to each image: the ops of a recipe, or a user's graph, or a user's pipeline; never two of them
    MIXING   MixUp and CutMix
    VIEWS    the seeds of views, which then draw as programs do
    COLUMNS  the seeds of further image columns, by their names, which then draw as programs do
    ORDER    which sample comes in which slot, and the seeds of a mixture's parts and of samples that come again

Op number n of a recipe draws from streams 16n to 16n + 15. The lowest 8 bits of its number are its place in the recipe,
or that of the nest that it stands in; in a nest, its place there is in the 6 bits above those, up to three nests deep.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dali_feed.errors import ConfigError

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

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_ROUNDS = 10


def check_seed(seed: int) -> int:
    """The seed as it is, if it fits the key's 64 bits; ConfigError otherwise."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 1 << 64:
        raise ConfigError(f"seed: must be an int in 0..2**64-1; found {seed!r}")
    return int(seed)


def philox4x32(counter: Sequence[ArrayLike], key: tuple[int, int]) -> tuple[NDArray[np.uint64], ...]:
    """Philox4x32-10 of four counter words (uint32 values, broadcast against each other) under one key.

    Returns four uint64 arrays that hold 32-bit words.
    """
    c0, c1, c2, c3 = (np.asarray(word, np.uint64) for word in counter)
    k0, k1 = key
    for _ in range(_ROUNDS):
        p0, p1 = c0 * _M0, c2 * _M1
        c0 = (p1 >> _HALF) ^ c1 ^ np.uint64(k0)
        c2 = (p0 >> _HALF) ^ c3 ^ np.uint64(k1)
        c1, c3 = p1 & _LOW, p0 & _LOW
        k0, k1 = (k0 + _W0) & 0xFFFFFFFF, (k1 + _W1) & 0xFFFFFFFF
    return c0, c1, c2, c3


def _words(
    seed: int, epoch: int, ids: NDArray[np.int64], streams: NDArray[np.uint64]
) -> tuple[NDArray[np.uint64], ...]:
    ids = ids.astype(np.uint64)
    counter = (streams[:, None], np.uint64(epoch & 0xFFFFFFFF), ids & _LOW, ids >> _HALF)
    return philox4x32(counter, (seed & 0xFFFFFFFF, seed >> 32))


def uniforms(seed: int, epoch: int, ids: NDArray[np.int64], streams: Sequence[int]) -> NDArray[np.float32]:
    """Uniform numbers in [0, 1), float32 (4 * len(streams), len(ids)): rows 4k..4k+3 are stream k's words.

    Each is a multiple of 2**-24, so that it is exact in float32.
    """
    if not len(streams):
        return np.empty((0, len(ids)), np.float32)
    words = _words(seed, epoch, ids, np.asarray(streams, np.uint64))
    stacked = np.stack(words, axis=1).reshape(4 * len(streams), len(ids))
    return (stacked >> np.uint64(8)).astype(np.float32) * np.float32(2**-24)


def seed_within(seed: int, stream: int, number: int) -> int:
    """The seed of a part of a run that draws for itself: of 64 bits, and another one for each 64-bit `number`."""
    low, high, _, _ = philox4x32((stream, 0, number & 0xFFFFFFFF, number >> 32), (seed & 0xFFFFFFFF, seed >> 32))
    return int(low) | int(high) << 32


def seed_of_turn(seed: int, turn: int) -> int:
    """The seed of what is done to samples that have come `turn` times before in an epoch: the run's the first time."""
    return seed_within(seed, REPEATS, turn) if turn else seed


def permutation(seed: int, epoch: int, size: int, stream: int, first: int = 0) -> NDArray[np.int64]:
    """A uniform permutation of 0..size-1, int64 (size,), that no NumPy release can change.

    Permutations of one stream are independent where their ranges first..first+size-1 do not overlap.
    Items are sorted by 64 random bits each; equal bits (one pair in 2**64) keep their order.
    """
    pairs = first + np.arange((size + 1) // 2, dtype=np.int64)
    w0, w1, w2, w3 = (word[0] for word in _words(seed, epoch, pairs, np.asarray([stream], np.uint64)))
    keys = np.stack([(w0 << _HALF) | w1, (w2 << _HALF) | w3], axis=1).ravel()[:size]
    return np.argsort(keys, kind="stable")
