"""What each sample of a batch chooses of timm's AutoAugment and its kind: arithmetic on arrays, pure in its draws."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dali_feed.plan.draws import uniforms
from dali_feed.plan.streams import STREAMS_PER_OP
from dali_feed.transforms.batch_draws import BatchDraws
from dali_feed.transforms.mixing import GAMMA_TRIES
from dali_feed.transforms.numbering import inner_numbers
from dali_feed.transforms.pillow import LayerAugment, MixAugment, Part, Pillow, PolicyAugment

__all__ = ["parts_of", "pillow_choices"]

Floats = NDArray[np.float64]
_WORDS = 2  # streams of a step: which, whether, strength twice, sign, filter, one more, how many steps


def parts_of(op: Pillow) -> tuple[Part, ...]:
    """All parts, by whose place in it a step names one."""
    return sum(op.policies, ()) if isinstance(op, PolicyAugment) else op.parts


def pillow_choices(op: Pillow, run: BatchDraws, first: int) -> Floats:
    """Steps of each chain: part (-1: none), strength, sign, filter, a uniform number; float64 (n, chains, steps, 5)."""
    parts = parts_of(op)
    if isinstance(op, MixAugment):
        which, drawn = _of_chains(op, run, first)
    elif isinstance(op, PolicyAugment):
        which, drawn = _of_policies(op, run, first)
    else:
        which, drawn = _of_layers(op, run, first)
    p, magnitude, spread, most = (np.array([getattr(part, name) for part in parts]) for name in Part.__slots__[1:])
    at = np.maximum(which, 0)
    none = (which < 0) | ((p[at] < 1) & (drawn[..., 1, :] > p[at]))
    radius = np.sqrt(-2 * np.log(np.maximum(1 - drawn[..., 2, :], 2.0**-25)))
    normal = radius * np.cos(2 * math.pi * drawn[..., 3, :])  # Box and Muller's
    finite = np.where(np.isfinite(spread), spread, 0.0)[at]
    strong = np.where(np.isinf(spread[at]), drawn[..., 2, :] * magnitude[at], magnitude[at] + finite * normal)
    strong = np.clip(strong, 0.0, most[at])
    sign = np.where(drawn[..., 4, :] > 0.5, -1.0, 1.0)
    chosen = np.floor(drawn[..., 5, :] * len(op.look.filters))
    steps = np.stack([np.where(none, -1, which).astype(np.float64), strong, sign, chosen, drawn[..., 6, :]], axis=-1)
    return np.moveaxis(steps, 2, 0)  # chains, steps, n -> n first


def _drawn(run: BatchDraws, starts: list[int], steps: int) -> Floats:
    """Eight uniforms of each step: (len(starts), steps, 8, n)."""
    streams = [start + _WORDS * step + k for start in starts for step in range(steps) for k in range(_WORDS)]
    flat = uniforms(run.seed, run.epoch, run.ids, streams).astype(np.float64)
    return flat.reshape(len(starts), steps, 4 * _WORDS, len(run.ids))


def _streams(op: Pillow, first: int, count: int) -> list[int]:
    return [number * STREAMS_PER_OP for number in inner_numbers(op, first // STREAMS_PER_OP, count)]


def _of_policies(op: PolicyAugment, run: BatchDraws, first: int) -> tuple[NDArray[np.int64], Floats]:
    longest = max(map(len, op.policies))
    places, table = iter(range(len(parts_of(op)))), np.full((len(op.policies), longest), -1)
    for row, policy in zip(table, op.policies, strict=True):
        row[: len(policy)] = [next(places) for _ in policy]
    mine = (run.draw(first)[0].astype(np.float64) * len(table)).astype(np.int64)
    return table[mine].T[None], _drawn(run, _streams(op, first, 1), longest)


def _of_layers(op: LayerAugment, run: BatchDraws, first: int) -> tuple[NDArray[np.int64], Floats]:
    drawn = np.moveaxis(_drawn(run, _streams(op, first, op.layers), 1), 1, 0)  # one chain of all layers
    if not op.weights:
        return (drawn[:, :, 0] * len(op.parts)).astype(np.int64), drawn
    left = np.tile(np.array(op.weights, np.float64), (len(run.ids), 1))
    which = np.empty(drawn.shape[:2] + drawn.shape[3:], np.int64)
    for layer in range(op.layers):
        edges = np.cumsum(left, axis=1) / left.sum(axis=1, keepdims=True)
        last = len(op.parts) - 1 - np.argmax(left[:, ::-1] > 0, axis=1)  # rounding may leave the last edge below 1
        which[0, layer] = np.minimum((edges <= drawn[0, layer, 0][:, None]).sum(axis=1), last)
        left[np.arange(len(left)), which[0, layer]] = 0.0
    return which, drawn


def _of_chains(op: MixAugment, run: BatchDraws, first: int) -> tuple[NDArray[np.int64], Floats]:
    most = op.depth if op.depth > 0 else 3
    drawn = _drawn(run, [start + GAMMA_TRIES for start in _streams(op, first, op.width)], most)
    which = (drawn[:, :, 0] * len(op.parts)).astype(np.int64)
    if op.depth <= 0:
        count = 1 + (drawn[:, 0, 7] * 3).astype(np.int64)
        which[np.arange(most)[None, :, None] >= count[:, None]] = -1
    return which, drawn
