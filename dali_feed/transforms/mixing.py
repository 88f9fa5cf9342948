"""MixUp and CutMix: which sample is mixed into which, how much of it and where, and what becomes of the labels.

The law: weights and boxes depend on (seed, epoch, sample id) alone, as all random numbers do. The partner is the
sample before in the same lane's part of the batch, so that a global batch is mixed alike at every world size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.draws import MIXING, uniforms
from dali_feed.errors import TransformError
from dali_feed.transforms.colour import GAMMA_TRIES, STEP, log_gammas
from dali_feed.transforms.lower import is_torchvision
from dali_feed.transforms.settings import refuse

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Mixing:
    """What is done to a batch.

    mixup      alpha of Beta(alpha, alpha), from which the weight of each sample is drawn; None: no MixUp
    cutmix     alpha of Beta(alpha, alpha), from which the share of the image that stays is drawn; None: no CutMix
    p          how likely a sample is mixed at all
    switch     how likely CutMix is taken where there are both
    classes    labels become a distribution over so many classes; None: pairs of labels and weights
    smoothing  how much of that distribution is spread evenly over all classes, as in label smoothing

    Zhang et al., mixup, ICLR 2018; Yun et al., CutMix, ICCV 2019. Each sample has random numbers of its own, where
    torchvision's v2.MixUp and v2.CutMix draw once for the batch. Raises TransformError for values that are not allowed.
    """

    mixup: float | None = None
    cutmix: float | None = None
    p: float = 1.0
    switch: float = 0.5
    classes: int | None = None
    smoothing: float = 0.0

    @classmethod
    def lowered(cls, transform: Any) -> Mixing | None:
        """A `Mixing`, or one of v2.MixUp, v2.CutMix, or a RandomChoice of both; None for anything else."""
        if isinstance(transform, Mixing):
            return transform
        several = is_torchvision(transform) and type(transform).__name__ == "RandomChoice"
        inner = transform.transforms if several else [transform]
        names = [type(each).__name__ if is_torchvision(each) else "" for each in inner]
        if not names or not set(names) <= {"CutMix", "MixUp"}:
            return None
        if len(set(names)) < len(names) or len({each.num_classes for each in inner}) > 1:
            refuse(transform, "must hold one v2.MixUp and one v2.CutMix with the same num_classes", inner)
        getters = {getattr(each._labels_getter, "__name__", "") for each in inner}
        if getters != {"_find_labels_default_heuristic"}:
            msg = f"{names[0]}: labels_getter must be left out, as labels come from the source; found one"
            raise TransformError(msg)
        if inner[0].num_classes is None:
            refuse(names[0], "num_classes must be given, as labels are indices", None)
        alphas = {name.lower(): float(each.alpha) for name, each in zip(names, inner, strict=True)}
        switch = float(transform.p[names.index("CutMix")]) if len(names) > 1 else 0.5
        return cls(**alphas, switch=switch, classes=inner[0].num_classes)

    def __post_init__(self) -> None:
        for name in ("mixup", "cutmix"):
            alpha = getattr(self, name)
            if alpha is not None and not 0 < alpha < float("inf"):
                refuse(f"Mixing({name}=...)", "must be a number above 0, or None", alpha)
        if self.classes is not None and not (isinstance(self.classes, int) and self.classes > 0):
            refuse("Mixing(classes=...)", "must be a number of classes, or None", self.classes)
        if self.smoothing and self.classes is None:
            raise TransformError(f"Mixing(smoothing=...): needs classes= too; found {self.smoothing!r} without it")
        for name in ("p", "switch", "smoothing"):
            if not 0 <= getattr(self, name) <= 1:
                refuse(f"Mixing({name}=...)", "must lie in 0..1", getattr(self, name))
        if self.mixup is None and self.cutmix is None:
            raise TransformError("Mixing: mixup, cutmix or both must be given; found neither")


@dataclass(frozen=True, slots=True)
class Mixed:
    """The random numbers of a batch, a row per sample.

    partner  int32 (n,): the sample mixed in
    weight   float32 (n,): of the sample itself outside the box
    box      int32 (n, 4): y, x, height, width where the partner shows instead
    share    float32 (n,): how much of the image is the sample's own: the weight of its label
    """

    partner: NDArray[np.int32]
    weight: NDArray[np.float32]
    box: NDArray[np.int32]
    share: NDArray[np.float32]


def mixed(mixing: Mixing, ids: Ints, seed: int, epoch: int, size: tuple[int, int], lanes: int = 1) -> Mixed:
    """The random numbers of a batch of samples `ids` whose images are `size` (height, width).

    The batch is `lanes` parts of equal length, end to end.
    """
    n, (height, width) = len(ids), size
    chance, place = np.split(uniforms(seed, epoch, ids, MIXING[:2]).astype(np.float64), 2)
    on = chance[0] < mixing.p
    both = mixing.mixup is not None and mixing.cutmix is not None
    cut = on & ((chance[1] < mixing.switch) if both else np.full(n, mixing.cutmix is not None))
    up = on & ~cut
    weight, stays = np.ones(n), np.ones(n)
    for chosen, alpha, drawn in ((up, mixing.mixup, weight), (cut, mixing.cutmix, stays)):
        if alpha is not None and chosen.any():
            drawn[chosen] = _betas(alpha, ids[chosen], seed, epoch, MIXING[2])
    box = _boxes(np.sqrt(1 - stays), place, height, width)
    area = box[:, 2].astype(np.float64) * box[:, 3]
    share = np.where(cut, 1 - area / (height * width), weight)
    slots, part = np.arange(n), n // lanes
    partner = slots - slots % part + (slots - 1) % part if part else slots
    return Mixed(partner.astype(np.int32), weight.astype(np.float32), box, share.astype(np.float32))


def _boxes(side: NDArray[np.float64], place: NDArray[np.float64], height: int, width: int) -> NDArray[np.int32]:
    """Boxes of `side` (0..1) times the image's edges, about a random pixel, cut at the border, as in v2.CutMix."""
    y, x = np.floor(place[0] * height), np.floor(place[1] * width)
    half_y, half_x = np.floor(side * height / 2), np.floor(side * width / 2)
    top, left = np.maximum(y - half_y, 0), np.maximum(x - half_x, 0)
    bottom, right = np.minimum(y + half_y, height), np.minimum(x + half_x, width)
    return np.stack([top, left, bottom - top, right - left], axis=1).astype(np.int32)


def _betas(alpha: float, ids: Ints, seed: int, epoch: int, first: int) -> NDArray[np.float64]:
    """Beta(alpha, alpha) of each sample: a gamma variate over the sum of two, by their logarithms."""
    drawn = uniforms(seed, epoch, ids, range(first, first + 2 * GAMMA_TRIES + 1)).astype(np.float64) + 2.0**-25
    boosts, tries = drawn[:2], drawn[4:].reshape(2, GAMMA_TRIES, 4, len(ids))
    one, other = (log_gammas(alpha, tries[k], boosts[k]) for k in range(2))
    beta = 1 / (1 + np.exp(np.clip(other - one, -700, 700)))
    rounded: NDArray[np.float64] = np.round(beta / STEP) * STEP
    return rounded


def label_pairs(labels: Ints, drawn: Mixed) -> tuple[Ints, NDArray[np.float32]]:
    """Each sample's label and its partner's, int64 (n, 2), and the weights of the two, float32 (n, 2)."""
    return np.stack([labels, labels[drawn.partner]], axis=1), np.stack([drawn.share, 1 - drawn.share], axis=1)


def soft_labels(labels: Ints, drawn: Mixed, classes: int, smoothing: float = 0.0) -> NDArray[np.float32]:
    """Both labels' weights as a distribution, float32 (n, classes), `smoothing` of it spread over all classes.

    Raises TransformError where a label is outside 0..classes-1.
    """
    outside = (labels < 0) | (labels >= classes)
    if outside.any():
        raise TransformError(f"soft labels: labels must lie in 0..{classes - 1}; found {int(labels[outside][0])}")
    pairs, weights = label_pairs(labels, drawn)
    soft = np.full((len(labels), classes), smoothing / classes, np.float32)
    for k in range(2):
        np.add.at(soft, (np.arange(len(labels)), pairs[:, k]), np.float32(1 - smoothing) * weights[:, k])
    return soft
