"""transforms: AutoAugment and its kind of v1 and v2, what they lower to, what is refused, and what is drawn."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import Any

import numpy as np
import pytest
import torch
from both_versions import BOTH, MEAN, STD
from numpy.typing import NDArray
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import AutoAugmentPolicy as Policies
from torchvision.transforms import InterpolationMode as Mode
from torchvision.transforms import v2

from dali_feed.compiler.host import compile_host
from dali_feed.compiler.program import outline
from dali_feed.errors import TransformError
from dali_feed.transforms.auto_augment import OPERATIONS, AugMix, Auto, AutoAugment, RandAugment, TrivialAugmentWide
from dali_feed.transforms.crops import Flip
from dali_feed.transforms.lower import lower
from dali_feed.transforms.nest import RandomApply
from dali_feed.transforms.op import BatchDraws, Recipe

SAME_IN_BOTH: list[tuple[Any, Auto]] = [
    (lambda T: T.RandAugment(), RandAugment(2, 9, 31, "nearest", None)),
    (
        lambda T: T.RandAugment(3, 4, 11, interpolation=Mode.BILINEAR, fill=[1, 2, 3]),
        RandAugment(3, 4, 11, "bilinear", (1.0, 2.0, 3.0)),
    ),
    (lambda T: T.RandAugment(num_ops=0), RandAugment(0)),
    (lambda T: T.TrivialAugmentWide(), TrivialAugmentWide(31, "nearest", None)),
    (lambda T: T.TrivialAugmentWide(7, Mode.BILINEAR, fill=[128]), TrivialAugmentWide(7, "bilinear", 128.0)),
    (lambda T: T.AugMix(), AugMix(3, 3, -1, 1.0, all_ops=True, interpolation="bilinear", fill=None)),
    (
        lambda T: T.AugMix(10, 4, 2, 0.5, all_ops=False, interpolation=Mode.NEAREST, fill=[0]),
        AugMix(10, 4, 2, 0.5, all_ops=False, interpolation="nearest", fill=0.0),
    ),
]


@BOTH
@pytest.mark.parametrize(("make", "op"), SAME_IN_BOTH)
def test_each_transform(T: Any, make: Any, op: Auto) -> None:
    """Each transform of v1 and v2 becomes its op with all its settings; no fill is not a fill of 0."""
    assert lower(make(T)) == Recipe((op,))


@BOTH
@pytest.mark.parametrize("policy", list(Policies))
def test_policies(T: Any, policy: Policies) -> None:
    """All 25 policies are taken from the transform, the same ones from v1 and v2, and other policies are others."""
    (op,) = lower(T.AutoAugment(policy, Mode.BILINEAR, [7])).ops
    assert isinstance(op, AutoAugment)
    assert (len(op.policies), op.interpolation, op.fill) == (25, "bilinear", 7.0)
    assert lower(v1.AutoAugment(policy)) == lower(v2.AutoAugment(policy))
    assert len({lower(T.AutoAugment(other)) for other in Policies}) == 3
    assert lower(T.AutoAugment()) == lower(T.AutoAugment(Policies.IMAGENET))


def test_v2_settings() -> None:
    """Interpolation by name, fill by type."""
    fill = {tv_tensors.Image: 3, "others": 0}
    assert lower(v2.RandAugment(interpolation="bilinear", fill=fill)).ops == (RandAugment(2, 9, 31, "bilinear", 3.0),)


REFUSED: list[tuple[Any, str]] = [
    (lambda T: T.AutoAugment(interpolation=Mode.BICUBIC), "AutoAugment: interpolation must be NEAREST or BILINEAR"),
    (lambda T: T.AutoAugment(fill=[1, 2]), "AutoAugment: fill must be one number, or one for each of three channels"),
    (lambda T: T.RandAugment(17), "RandAugment: num_ops must be an int in 0..16; found 17"),
    (lambda T: T.RandAugment(magnitude=31), "RandAugment: magnitude must be an int in 0..30; found 31"),
    (lambda T: T.RandAugment(magnitude=0, num_magnitude_bins=1), "RandAugment: num_magnitude_bins must be an int of"),
    (lambda T: T.TrivialAugmentWide(1), "TrivialAugmentWide: num_magnitude_bins must be an int of at least 2; found 1"),
    (lambda T: T.AugMix(mixture_width=0), "AugMix: mixture_width must be an int of at least 1; found 0"),
    (lambda T: T.AugMix(chain_depth=9), "AugMix: chain_depth must be an int of at most 8; found 9"),
    (lambda T: T.AugMix(alpha=0), "AugMix: alpha must be a number above 0; found 0.0"),
]


@BOTH
@pytest.mark.parametrize(("make", "told"), REFUSED)
def test_settings_refused(T: Any, make: Any, told: str) -> None:
    """A setting that cannot be kept is an error with the transform's name, the rule and the value."""
    with pytest.raises(TransformError, match=f"^{re.escape(told)}"):
        lower(make(T))


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: AutoAugment(()), "AutoAugment: needs at least one policy"),
        (lambda: AutoAugment(((("Rotate", 2.0, 1), ("Invert", 0.5, None)),)), "AutoAugment: p must lie in 0..1"),
        (
            lambda: AutoAugment(((("Turn", 0.5, 1), ("Invert", 0.5, None)),)),
            "AutoAugment: a policy must name operations",
        ),
        (lambda: AutoAugment(((("Rotate", 0.5, 10), ("Invert", 0.5, None)),)), "AutoAugment: a policy must name"),
        (lambda: AutoAugment(((("Rotate", 0.5, None), ("Invert", 0.5, None)),)), "AutoAugment: a policy must name"),
        (lambda: AugMix(severity=11), "AugMix: severity must be an int in 1..10; found 11"),
    ],
)
def test_ops_refuse(make: Any, told: str) -> None:
    """A wrong value never becomes an op."""
    with pytest.raises(TransformError, match=f"^{re.escape(told)}"):
        make()


@BOTH
@pytest.mark.parametrize("name", ["AutoAugment", "RandAugment", "TrivialAugmentWide", "AugMix"])
@pytest.mark.parametrize("nested", [False, True])
def test_floats_are_refused(T: Any, name: str, nested: bool) -> None:
    """Torchvision names uint8 as what these take; of floats they are refused, in a nest too, and behind Normalize."""
    one = T.RandomApply([getattr(T, name)()]) if nested else getattr(T, name)()
    with pytest.raises(TransformError, match=f"^{name}: must have uint8 pixels, .*; found float32. Put it before"):
        outline(lower(v1.Compose([v1.ToTensor(), one])))
    with pytest.raises(TransformError, match=f"^{name}: .*"):
        outline(lower(v1.Compose([v1.ToTensor(), T.Normalize(MEAN, STD), one])))


def test_numbers_of_chains_are_their_own() -> None:
    """Chains of AugMix are numbered as the ops of a nest are; what runs out of numbers is refused beforehand."""
    mix, deep = AugMix(width=63), RandomApply((RandomApply((RandomApply((AugMix(),)),)),))
    assert outline(Recipe((mix, RandomApply((mix,))))).size is None
    with pytest.raises(
        TransformError,
        match="^AugMix: must have fewer than 64 chains and lie in fewer than 3 transforms that hold others",
    ):
        compile_host(Recipe((AugMix(width=64),)))
    with pytest.raises(
        TransformError,
        match="^AugMix: must have fewer than 64 chains and lie in fewer than 3 transforms that hold others",
    ):
        compile_host(Recipe((deep,)))
    with pytest.raises(TransformError, match="^AugMix: must be in a list of at most 256 transforms; found 257"):
        compile_host(Recipe((*[Flip("x")] * 256, AugMix())))


COUNT = 20_000


def rows(op: Auto, count: int = COUNT) -> NDArray[np.int32]:
    """What so many samples choose."""
    edge = np.full(count, 9)
    return op.rows(BatchDraws(np.arange(count), 0, 0, range(16)), 0, edge, edge)


def near(found: Any, wanted: Any) -> None:
    """Shares of twenty thousand samples: four standard deviations are 0.014 at most."""
    np.testing.assert_allclose(found, wanted, atol=0.015)


@pytest.mark.parametrize("policy", list(Policies))
def test_policies_are_taken_equally_and_their_parts_by_probability(policy: Policies) -> None:
    """How often each operation of each strength comes, first and second, follows from the table; signs are even."""
    (op,) = lower(v2.AutoAugment(policy)).ops
    assert isinstance(op, AutoAugment)
    found = rows(op)[:, 0]
    for k in range(2):
        wanted: defaultdict[Any, float] = defaultdict(float)
        for parts in op.policies:
            name, p, strength = parts[k]
            wanted[op.space.names.index(name), strength or 0] += p / 25
        taken = found[found[:, k, 0] >= 0, k]
        seen = Counter(map(tuple, taken[:, :2].tolist()))
        assert {key for key, share in wanted.items() if share} == set(seen)
        near([seen[key] / COUNT for key in wanted], list(wanted.values()))
        signed = np.isin(np.array(op.space.names)[taken[:, 0]], OPERATIONS[:9])
        assert (taken[~signed, 2] == 1).all()
        assert abs((taken[signed, 2] == 1).mean() - 0.5) < 0.03


def test_the_parts_of_a_policy_are_independent() -> None:
    """Of a policy of two halves a quarter of the samples takes both, with signs in every combination."""
    op = AutoAugment(((("Rotate", 0.5, 3), ("ShearX", 0.5, 4)),))
    found = rows(op)[:, 0]
    both = (found[:, :, 0] >= 0).all(axis=1)
    near(both.mean(), 0.25)
    seen = Counter(map(tuple, found[both, :, 2].tolist()))
    near([count / both.sum() / 2 for count in seen.values()], [0.125] * 4)


@pytest.mark.parametrize(
    "op", [RandAugment(3, 4, 9), TrivialAugmentWide(5), AugMix(4, 2, 2), AugMix(4, 2, 2, 1, False)]
)
def test_operations_strengths_and_signs_are_even(op: Auto) -> None:
    """Every step draws for itself: any operation, any of its strengths, either sign, equally often."""
    found, names = rows(op), op.space.names
    steps = found.reshape(len(found), -1, 3)
    for k in range(steps.shape[1]):
        near(np.bincount(steps[:, k, 0], minlength=len(names)) / COUNT, 1 / len(names))
        strong = {RandAugment: {4}, TrivialAugmentWide: set(range(5)), AugMix: set(range(4))}[type(op)]
        assert set(steps[:, k, 1].tolist()) == strong
        near(np.unique(steps[:, k, 1], return_counts=True)[1] / COUNT, 1 / len(strong))
        signed = np.isin(np.array(names)[steps[:, k, 0]], OPERATIONS[:9])
        near((steps[signed, k, 2] == 1).mean(), 0.5)
        assert (steps[~signed, k, 2] == 1).all()
    for k in range(1, steps.shape[1]):
        near((steps[:, 0, 0] == steps[:, k, 0]).mean(), 1 / len(names))


def test_chains_are_one_to_three_deep() -> None:
    """Unless told otherwise, each chain of AugMix for itself."""
    depths = (rows(AugMix())[:, :, :, 0] >= 0).sum(axis=2)
    for chain in depths.T:
        near(np.bincount(chain, minlength=4) / COUNT, [0, 1 / 3, 1 / 3, 1 / 3])
    near((depths[:, 0] == depths[:, 1]).mean(), 1 / 3)
    assert ((rows(AugMix(depth=5))[:, :, :, 0] >= 0).sum(axis=2) == 5).all()


@pytest.mark.parametrize("alpha", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("width", [1, 3])
def test_weights_are_dirichlets(alpha: float, width: int) -> None:
    """Beside torch's own: the image's share, the chains' shares of the rest, and their variances; they add up to 1."""
    draws = BatchDraws(np.arange(COUNT), 0, 0, ())
    found = AugMix(width=width, alpha=alpha).more(draws, 0)["_weights"].astype(np.float64)
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-6)
    assert (found >= 0).all()
    torch.manual_seed(0)
    image = torch._sample_dirichlet(torch.tensor([alpha] * 2).expand(COUNT, -1))
    parts = torch._sample_dirichlet(torch.tensor([alpha] * width).expand(COUNT, -1)) * image[:, 1:]
    theirs = torch.cat([image[:, :1], parts], dim=1).double().numpy()
    near(found.mean(axis=0), theirs.mean(axis=0))
    near(found.var(axis=0), theirs.var(axis=0))
    for share in (0.1, 0.5, 0.9):
        near((found < share).mean(axis=0), (theirs < share).mean(axis=0))


@pytest.mark.parametrize("op", [*(op for _, op in SAME_IN_BOTH), lower(v2.AutoAugment()).ops[0]])
def test_choices_are_the_samples_own(op: Auto) -> None:
    """The same for a sample in whatever batch; others in another epoch, for another seed, or behind another op."""

    def made(ids: Any, *, seed: int = 3, epoch: int = 5, before: int = 0) -> dict[str, NDArray[Any]]:
        program, count = compile_host(Recipe((*[Flip("x", 0.0)] * before, op))), len(ids)
        arrays = program.parameters(np.full((count, 2), 40, np.int32), np.asarray(ids), seed, epoch).arrays
        return {name: rows for name, rows in arrays.items() if name.startswith("effect")}

    whole = made(range(50))
    for name, values in made([7, 30, 7]).items():
        np.testing.assert_array_equal(values, whole[name][[7, 30, 7]])
    others = [made(range(50), seed=4), made(range(50), epoch=6), made(range(50), before=1)]
    for other in others:
        for one, values in zip(whole.values(), other.values(), strict=True):
            assert one.size == 0 or not np.array_equal(one, values)
