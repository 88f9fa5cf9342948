"""AugMix's weights of the image and of each chain: Dirichlet's distribution, from the sample's random numbers alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dali_feed.draws.philox import uniforms
from dali_feed.draws.streams import STREAMS_PER_OP
from dali_feed.transforms.base import Effect
from dali_feed.transforms.batch_draws import BatchDraws
from dali_feed.transforms.gammas import GAMMA_TRIES, STEP, log_gammas
from dali_feed.transforms.numbering import inner_numbers

__all__ = ["mixture"]


def mixture(op: Effect, width: int, alpha: float, run: BatchDraws, first: int) -> NDArray[np.float32]:
    """Weights of the image and of each of `width` chains, from the op's random numbers: float32 (n, 1 + width)."""
    own = range(first, first + 2 * GAMMA_TRIES)
    inner = [number * STREAMS_PER_OP for number in inner_numbers(op, first // STREAMS_PER_OP, width)]
    streams = [*own, *(start + k for start in inner for k in range(GAMMA_TRIES))]
    drawn = uniforms(run.seed, run.epoch, run.ids, streams).astype(np.float64) + 2.0**-25
    tries = drawn.reshape(2 + width, GAMMA_TRIES, 4, len(run.ids))
    logs = [log_gammas(alpha, each, each[0, 3]) for each in tries]
    image, _ = _dirichlet(logs[:2])
    parts = np.stack(_dirichlet(logs[2:]), axis=1)
    return np.concatenate([image[:, None], (1 - image)[:, None] * parts], axis=1)


def _dirichlet(logs: list[NDArray[np.float64]]) -> list[NDArray[np.float32]]:
    """Gamma variates, given by their logarithms, divided by their sum; the last is 1 minus the others."""
    gammas = np.exp(np.maximum(np.stack(logs) - np.max(logs, axis=0), -700))
    shares = np.round(gammas / gammas.sum(axis=0) / STEP)[:-1] * STEP
    rest = np.maximum(1 - shares.sum(axis=0), 0)
    return [share.astype(np.float32) for share in (*shares, rest)]
