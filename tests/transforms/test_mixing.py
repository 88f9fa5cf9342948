"""MixUp and CutMix: draws that are pure in the sample and as the papers say, and images and labels mixed by them."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kit.mixes import BOTH, loader
from numpy.typing import NDArray
from torchvision.transforms import v2

from dali_feed import Decode
from dali_feed.engines.finish import mixed_up, size_of
from dali_feed.errors import TransformError
from dali_feed.kernels.finish import MixArrays
from dali_feed.transforms.mixing import Mixed, Mixing, label_pairs, mixed, soft_labels

SIZE = (48, 64)


@given(
    mixup=st.one_of(st.none(), st.floats(0.05, 5)),
    cutmix=st.one_of(st.none(), st.floats(0.05, 5)),
    cut=st.integers(1, 31),
    epoch=st.integers(0, 2**32 - 1),
)
def test_a_draw_is_a_function_of_its_sample(mixup: float | None, cutmix: float | None, cut: int, epoch: int) -> None:
    """Weights, boxes and shares do not depend on what else is in the batch; boxes lie within the image."""
    if mixup is None and cutmix is None:
        return
    mixing, ids = Mixing(mixup, cutmix, p=0.8), np.arange(7, 39)
    whole = mixed(mixing, ids, 5, epoch, SIZE)
    parts = [mixed(mixing, some, 5, epoch, SIZE) for some in (ids[:cut], ids[cut:])]
    for name in ("weight", "box", "share"):
        assert np.array_equal(getattr(whole, name), np.concatenate([getattr(part, name) for part in parts]))
    assert ((whole.share >= 0) & (whole.share <= 1)).all()
    y, x, height, width = whole.box.T
    assert ((y >= 0) & (x >= 0) & (height >= 0) & (width >= 0)).all()
    assert ((y + height <= SIZE[0]) & (x + width <= SIZE[1])).all()


@pytest.mark.parametrize("alpha", [0.1, 0.2, 0.5, 1.0, 2.0, 8.0])
def test_weights_are_beta_distributed(alpha: float) -> None:
    """The empirical distribution of 20,000 weights is that of Beta(alpha, alpha): within 1.63 / sqrt(n) (1 % KS)."""
    n = 20_000
    drawn = np.sort(mixed(Mixing(mixup=alpha), np.arange(n), 1, 2, SIZE).share.astype(np.float64))
    wanted = np.sort(np.random.default_rng(0).beta(alpha, alpha, 40 * n))
    grid = np.linspace(0, 1, 400)[1:-1]
    ours, theirs = (np.searchsorted(each, grid, side="right") / len(each) for each in (drawn, wanted))
    assert np.abs(ours - theirs).max() < 1.63 / math.sqrt(n) + 0.002


def test_a_box_is_torchvisions_for_its_place_and_share() -> None:
    """Fed the same centre and the same Beta, v2.CutMix cuts the same box and gives the label the same weight."""
    n = 200
    drawn = mixed(Mixing(cutmix=1.0), np.arange(n), 3, 0, SIZE)
    from dali_feed.draws import MIXING, uniforms
    from dali_feed.transforms import mixing as subject

    place = uniforms(3, 0, np.arange(n), [MIXING[1]])
    betas = subject._betas(1.0, np.arange(n), 3, 0, MIXING[2])
    for k in range(n):
        centre = iter([torch.tensor(int(place[1, k] * SIZE[1])), torch.tensor(int(place[0, k] * SIZE[0]))])
        cutmix: Any = v2.CutMix(num_classes=2)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch, "randint", lambda *_, **__: next(centre))  # noqa: B023
            cutmix._dist = type("Fixed", (), {"sample": staticmethod(lambda _: torch.tensor([betas[k]]))})  # noqa: B023
            found = cutmix.make_params([torch.zeros(2, 3, *SIZE)])
        x1, y1, x2, y2 = found["box"]
        y, x, height, width = drawn.box[k].tolist()
        if height and width:
            assert (y, x, y + height, x + width) == (y1, x1, y2, x2)
        assert float(drawn.share[k]) == pytest.approx(float(found["lam_adjusted"]), abs=1e-6)


def test_which_samples_are_mixed_and_how() -> None:
    """About p of them, about `switch` of those by a box; the others keep their image and their label."""
    drawn = mixed(Mixing(0.5, 0.5, p=0.6, switch=0.25), np.arange(20_000), 0, 0, SIZE)
    boxed, weighted = drawn.box[:, 2:].all(axis=1), drawn.weight != 1
    assert not (boxed & weighted).any()
    assert 0.43 < weighted.mean() < 0.46
    assert 0.10 < boxed.mean() < 0.16
    assert (drawn.share[~boxed & ~weighted] == 1).all()


@pytest.mark.parametrize("lanes", [1, 2, 4, 8])
def test_partners_stay_in_their_lanes_part(lanes: int) -> None:
    """The sample before, round the lane's part of the batch: so a rank with fewer lanes mixes them alike."""
    partner = mixed(Mixing(mixup=1.0), np.arange(8), 0, 0, SIZE, lanes=lanes).partner.reshape(lanes, -1)
    part = 8 // lanes
    assert (partner // part == np.arange(lanes)[:, None]).all()
    assert (partner % part == (np.arange(part) - 1) % part).all()


def test_labels() -> None:
    """Pairs with weights, and the same as a smoothed distribution that sums to one; equal labels add up."""
    drawn = mixed(Mixing(mixup=1.0), np.arange(4), 0, 0, SIZE)
    labels = np.array([0, 2, 2, 1])
    pairs, weights = label_pairs(labels, drawn)
    assert pairs.tolist() == [[0, 1], [2, 0], [2, 2], [1, 2]]
    assert np.allclose(weights.sum(axis=1), 1)
    soft = soft_labels(labels, drawn, 3, smoothing=0.1)
    assert np.allclose(soft.sum(axis=1), 1)
    assert soft[2, 2] == pytest.approx(0.9 + 0.1 / 3)
    assert soft[1, 2] == pytest.approx(0.9 * weights[1, 0] + 0.1 / 3)
    with pytest.raises(TransformError, match=r"labels must lie in 0\.\.1; found 2"):
        soft_labels(labels, drawn, 2)


@pytest.mark.parametrize("wrong", [{}, {"mixup": 0}, {"cutmix": -1.0}, {"mixup": 1, "p": 1.5}, {"mixup": math.inf}])
def test_values_that_cannot_be(wrong: dict[str, Any]) -> None:
    """Are TransformErrors that name them."""
    with pytest.raises(TransformError, match="Mixing"):
        Mixing(**wrong)


def drawn_for(info: Any, mixing: Mixing, epoch: int = 0) -> Mixed:
    """The draws of a batch of the loader."""
    return mixed(mixing, info.ids.numpy(), 3, epoch, (12, 10))


def reference(images: torch.Tensor, drawn: Mixed) -> NDArray[np.float32]:
    """The images mixed as `finish` mixes them."""
    found: NDArray[np.float32] = mixed_up(images, MixArrays(drawn.partner, drawn.weight, drawn.box)).numpy()
    return found


@pytest.mark.parametrize("engine", ["host", "dali"])
def test_images_and_labels_are_mixed_by_the_same_draws(engine: str) -> None:
    """The pixels are the kernel's reference of the plain batch's, bit for bit; the labels its shares."""
    with (
        loader(None, info=True, decode=Decode(engine=engine)) as plain,
        loader(BOTH, info=True, decode=Decode(engine=engine)) as mixing,
    ):
        for epoch in range(2):
            for (images, labels, info), (given, soft, same) in zip(plain, mixing, strict=True):
                assert torch.equal(info.ids, same.ids)
                drawn = drawn_for(info, BOTH, epoch)
                wanted = reference(images, drawn)
                assert np.array_equal(given.numpy(), wanted)
                assert not np.array_equal(given.numpy(), images.numpy())
                assert np.array_equal(soft.numpy(), soft_labels(labels.numpy(), drawn, 30, 0.1))


class _OfDali:
    """Memory as DALI shows it: its `shape` is a method."""

    __cuda_array_interface__: ClassVar[dict[str, Any]] = {"shape": (4, 12, 10, 3)}

    def shape(self) -> list[int]:
        """As DALI has it."""
        return [4, 12, 10, 3]


def test_the_size_of_unfinished_images_is_known_on_a_gpu() -> None:
    """Of DALI's memory, and of what the host engine has sent there: boxes are drawn for it."""
    assert size_of(_OfDali()) == (12, 10)
    assert size_of(torch.zeros(4, 12, 10, 3)) == (12, 10)
