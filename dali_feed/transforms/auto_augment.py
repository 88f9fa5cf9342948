"""AutoAugment and its kind: the operations each sample chooses, and the weights of AugMix.

A choice is an operation, the number of its strength and a sign. What a strength comes to is left to the engine, which
asks torch as torchvision does; so choices are the same on every machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dali_feed.plan.draws import uniforms
from dali_feed.plan.streams import STREAMS_PER_OP
from dali_feed.transforms.auto import (
    POLICY_BINS,
    SEVERITIES,
    SIGNED,
    AugMix,
    Auto,
    AutoAugment,
    RandAugment,
    TrivialAugmentWide,
)
from dali_feed.transforms.batch_draws import BatchDraws
from dali_feed.transforms.mixing import GAMMA_TRIES, STEP, log_gammas
from dali_feed.transforms.numbering import inner_numbers
from dali_feed.transforms.pillow import MixAugment

__all__ = ["Space", "bins_of", "choices", "mixture", "space_of"]

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Space:
    """Operations to choose from, and how strong the strongest of each is.

    shift   pixels, of an image's width or height
    shear   pixels per pixel
    turn    degrees
    colour  how far a factor is from 1
    bits    that the weakest Posterize leaves, and by how many fewer the strongest does
    """

    names: tuple[str, ...]
    shift: Callable[[int], float]
    shear: float = 0.3
    turn: float = 30.0
    colour: float = 0.9
    bits: tuple[int, int] = (8, 4)


_MOVES, _COLOURS = SIGNED[:5], SIGNED[5:]
_LEVELS = ("Posterize", "Solarize", "AutoContrast", "Equalize")
_AUTO = Space((*SIGNED, *_LEVELS, "Invert"), lambda edge: 150.0 / 331.0 * edge)
_RAND = Space(("Identity", *SIGNED, *_LEVELS), lambda edge: 150.0 / 331.0 * edge)
_WIDE = Space(("Identity", *SIGNED, *_LEVELS), lambda _: 32.0, 0.99, 135.0, 0.99, (8, 6))
_PART = Space((*_MOVES, *_LEVELS), lambda edge: edge / 3.0, bits=(4, 4))
_WHOLE = Space((*_MOVES, *_LEVELS, *_COLOURS), lambda edge: edge / 3.0, bits=(4, 4))


def space_of(op: Auto) -> Space:
    """What the op chooses from."""
    match op:
        case AutoAugment():
            return _AUTO
        case RandAugment():
            return _RAND
        case TrivialAugmentWide():
            return _WIDE
        case AugMix():
            return _WHOLE if op.all_ops else _PART


def bins_of(op: Auto) -> int:
    """How many strengths there are."""
    match op:
        case RandAugment() | TrivialAugmentWide():
            return op.bins
        case AugMix():
            return SEVERITIES
        case AutoAugment():
            return POLICY_BINS


def choices(op: Auto, run: BatchDraws, first: int) -> NDArray[np.int32]:
    """Operation (-1: none), strength and sign of each step of each chain: int32 (n, chains, steps, 3)."""
    match op:
        case AutoAugment():
            steps = _of_policies(op, run.draw(first), run.draw(first + 1))
        case RandAugment():
            every = [_chosen(op, run.draw(first + k), op.magnitude) for k in range(op.num_ops)]
            steps = np.stack(every, axis=1) if every else np.empty((len(run.ids), 0, 3), np.int64)
        case TrivialAugmentWide():
            steps = _chosen(op, run.draw(first), None)[:, None]
        case AugMix():
            return _chains(op, run, first).astype(np.int32)
    return steps[:, None].astype(np.int32)


def _chosen(op: Auto, drawn: NDArray[np.float32], strength: int | None, bins: int = 0) -> Ints:
    """An operation, a sign, and one of `bins` strengths or the given one, of uniforms (4, n): (n, 3)."""
    u, names = drawn.astype(np.float64), space_of(op).names
    which = (u[0] * len(names)).astype(np.int64)
    strong = (u[1] * (bins or bins_of(op))).astype(np.int64) if strength is None else np.full_like(which, strength)
    return np.stack([which, strong, _signs(op, which, u[2])], axis=1)


def _signs(op: Auto, which: Ints, u: NDArray[np.float64]) -> Ints:
    """Half of them -1 where the operation has a sign."""
    signed = np.isin(space_of(op).names, SIGNED)[which]
    return np.where(signed & (u < 0.5), -1, 1)


def _of_policies(op: AutoAugment, drawn: NDArray[np.float32], signs: NDArray[np.float32]) -> Ints:
    """Both parts of the policy that each sample takes: (n, 2, 3)."""
    names = space_of(op).names
    table = np.array([[(names.index(name), p, k or 0) for name, p, k in policy] for policy in op.policies])
    mine = table[(drawn[0].astype(np.float64) * len(table)).astype(np.int64)]
    steps = []
    for k in range(2):
        which, p, strong = mine[:, k].T
        which, strong = which.astype(np.int64), strong.astype(np.int64)
        sign = _signs(op, which, signs[k].astype(np.float64))
        steps.append(np.stack([np.where(drawn[1 + k] < p, which, -1), strong, sign], axis=1))
    return np.stack(steps, axis=1)


def _chains(op: AugMix, run: BatchDraws, first: int) -> Ints:
    """Streams 8.. of each chain's own are its steps; the fourth number of the first of them says how many there are."""
    numbers = inner_numbers(op, first // STREAMS_PER_OP, op.width)
    most = op.depth if op.depth > 0 else 3
    streams = [number * STREAMS_PER_OP + GAMMA_TRIES + k for number in numbers for k in range(most)]
    drawn = uniforms(run.seed, run.epoch, run.ids, streams).reshape(op.width, most, 4, len(run.ids))
    chains = []
    for chain in drawn:
        steps = np.stack([_chosen(op, u, None, op.severity) for u in chain], axis=1)
        if op.depth <= 0:
            count = 1 + (chain[0, 3].astype(np.float64) * 3).astype(np.int64)
            steps[np.arange(most) >= count[:, None], 0] = -1
        chains.append(steps)
    return np.stack(chains, axis=1)


def mixture(op: AugMix | MixAugment, run: BatchDraws, first: int) -> NDArray[np.float32]:
    """Weights of the image itself and of each chain: float32 (n, 1 + width)."""
    own = range(first, first + 2 * GAMMA_TRIES)
    inner = [number * STREAMS_PER_OP for number in inner_numbers(op, first // STREAMS_PER_OP, op.width)]
    streams = [*own, *(start + k for start in inner for k in range(GAMMA_TRIES))]
    drawn = uniforms(run.seed, run.epoch, run.ids, streams).astype(np.float64) + 2.0**-25
    tries = drawn.reshape(2 + op.width, GAMMA_TRIES, 4, len(run.ids))
    logs = [log_gammas(op.alpha, each, each[0, 3]) for each in tries]
    image, _ = _dirichlet(logs[:2])
    parts = np.stack(_dirichlet(logs[2:]), axis=1)
    return np.concatenate([image[:, None], (1 - image)[:, None] * parts], axis=1)


def _dirichlet(logs: list[NDArray[np.float64]]) -> list[NDArray[np.float32]]:
    """Gamma variates, given by their logarithms, over their sum; the last is what the others leave of 1."""
    gammas = np.exp(np.maximum(np.stack(logs) - np.max(logs, axis=0), -700))
    shares = np.round(gammas / gammas.sum(axis=0) / STEP)[:-1] * STEP
    rest = np.maximum(1 - shares.sum(axis=0), 0)
    return [share.astype(np.float32) for share in (*shares, rest)]
