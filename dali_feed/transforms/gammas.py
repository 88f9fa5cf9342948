"""Gamma variates from uniform numbers; the weights of mixed samples and of AugMix's chains are made of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["GAMMA_TRIES", "STEP", "log_gammas"]

GAMMA_TRIES = 8  # each is taken with a probability above 0.95
STEP = 2.0**-20  # weights are multiples of it, so that machines whose log and cos differ in the last bits agree


def log_gammas(alpha: float, tries: NDArray[np.float64], boost: NDArray[np.float64]) -> NDArray[np.float64]:
    """Logarithms of Gamma(alpha) variates, of uniforms (tries, 4, n) and (n,).

    Marsaglia and Tsang, A Simple Method for Generating Gamma Variables, 2000, for alpha + 1, and their boost down.
    """
    d = alpha + 1 - 1 / 3
    normal = np.sqrt(-2 * np.log(tries[:, 0])) * np.cos(2 * np.pi * tries[:, 1])
    v = np.maximum(1 + normal / np.sqrt(9 * d), 1e-9) ** 3
    taken = np.log(tries[:, 2]) < normal**2 / 2 + d - d * v + d * np.log(v)
    taken[-1] = True
    first = np.argmax(taken, axis=0)
    v = np.take_along_axis(v, first[None], axis=0)[0]
    logs: NDArray[np.float64] = np.log(d * v) + np.log(boost) / alpha
    return logs
