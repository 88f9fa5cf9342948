"""AugMix: an image mixed with versions of itself that went through chains of operations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from dali_feed.draws.philox import uniforms
from dali_feed.draws.streams import STREAMS_PER_OP
from dali_feed.transforms.auto_operations import LEVELS, MOVES, SIGNED, Auto, Space, Turning
from dali_feed.transforms.base import Arrays, Ints, OnImage
from dali_feed.transforms.batch_draws import BatchDraws
from dali_feed.transforms.fields import background, turning
from dali_feed.transforms.gammas import GAMMA_TRIES
from dali_feed.transforms.keys import Key, further
from dali_feed.transforms.mixture import mixture
from dali_feed.transforms.numbering import inner_numbers
from dali_feed.transforms.rules import Fill, refuse

__all__ = ["AugMix"]

_GRADES = 10  # how many strengths there are; the `severity` weakest are used
_MOST_STEPS = 8  # of a chain
_COLOURS = SIGNED[len(MOVES) :]
_PART = Space((*MOVES, *LEVELS), lambda edge: edge / 3.0, bits=(4, 4))
_WHOLE = Space((*MOVES, *LEVELS, *_COLOURS), lambda edge: edge / 3.0, bits=(4, 4))


@dataclass(frozen=True, slots=True)
class AugMix(Auto):
    """The image mixed with `width` chains of `depth` operations (1 to 3 where it is not positive).

    Weights are drawn by Dirichlet's distribution of `alpha`; without `all_ops` none changes colours.
    """

    severity: int = 3
    width: int = 3
    depth: int = -1
    alpha: float = 1.0
    all_ops: bool = True
    interpolation: Turning = "bilinear"
    fill: Fill | None = None

    streams: ClassVar[int] = 0  # it draws its own numbers, since it needs more streams than an op has
    inner_words: ClassVar[tuple[str, str]] = ("chains", "transforms that hold others")

    def __post_init__(self) -> None:
        if not isinstance(self.severity, int) or not 1 <= self.severity <= _GRADES:
            refuse("AugMix", f"severity must be an int in 1..{_GRADES}", self.severity)
        if not isinstance(self.width, int) or self.width < 1:
            refuse("AugMix", "mixture_width must be an int of at least 1", self.width)
        if not isinstance(self.depth, int) or self.depth > _MOST_STEPS:
            refuse("AugMix", f"chain_depth must be an int of at most {_MOST_STEPS}", self.depth)
        if not 0 < self.alpha < float("inf"):
            refuse("AugMix", "alpha must be a number above 0", self.alpha)

    @classmethod
    def of(cls, transform: Any) -> Self:
        t = transform
        width, depth, alpha = t.mixture_width, t.chain_depth, float(t.alpha)
        return cls(t.severity, width, depth, alpha, bool(t.all_ops), turning(t), background(t))

    def inner(self) -> int:
        return self.width

    @property
    def space(self) -> Space:
        return _WHOLE if self.all_ops else _PART

    @property
    def grades(self) -> int:
        return _GRADES

    def rows(self, draws: BatchDraws, first: int, h: Ints, w: Ints) -> NDArray[np.int32]:
        """Each chain's steps draw from its streams 8 on; the fourth number of stream 8 is how many steps there are."""
        numbers = inner_numbers(self, first // STREAMS_PER_OP, self.width)
        most = self.depth if self.depth > 0 else 3
        streams = [number * STREAMS_PER_OP + GAMMA_TRIES + k for number in numbers for k in range(most)]
        drawn = uniforms(draws.seed, draws.epoch, draws.ids, streams).reshape(self.width, most, 4, len(draws.ids))
        chains = []
        for chain in drawn:
            steps = np.stack([self.chosen(u, None, self.severity) for u in chain], axis=1)
            if self.depth <= 0:
                count = 1 + (chain[0, 3].astype(np.float64) * 3).astype(np.int64)
                steps[np.arange(most) >= count[:, None], 0] = -1
            chains.append(steps)
        return np.stack(chains, axis=1).astype(np.int32)

    def more(self, draws: BatchDraws, first: int) -> dict[str, NDArray[Any]]:
        return {"_weights": mixture(self, self.width, self.alpha, draws, first)}

    def on_image(self, key: Key) -> OnImage:
        """Image and chains added up by the weights (float32) of row `key` + "_weights"."""
        import torch

        names = further(key, "_weights")

        def apply(image: Any, arrays: Arrays, slot: int) -> Any:
            batch = image[None]
            weights = torch.from_numpy(arrays[names][slot]).to(image.device)
            mixed = weights[:1].view(1, 1, 1, 1) * batch
            for k, chain in enumerate(arrays[key][slot].tolist()):
                mixed.add_(weights[1 + k].view(1, 1, 1, 1) * self.run(batch, chain))
            return mixed[0].to(image.dtype)

        return apply
