"""Images that a graph of the user's made are mixed by torch: the bits of what `finish` does in its one launch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from finish_cases import MEAN, STD, assert_same_bits, random_mix

from dali_feed.engines.gpu.finish import mixed_up
from dali_feed.kernels.finish import MixArrays, finish_reference, normalize_factors


@pytest.mark.parametrize("left_out", [(), ("weight",), ("box",)])
def test_it_is_what_finish_does(left_out: tuple[str, ...]) -> None:
    """Finished first and mixed then, in float32: partners outside the batch, weights of 0 and 1, boxes over borders."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        images = rng.integers(0, 256, (5, 6, 7, 3), np.uint8)
        scale, bias = normalize_factors(MEAN, STD)
        drawn = random_mix(rng, (5, 6, 7))
        mixing = MixArrays(
            drawn.partner, *(None if name in left_out else getattr(drawn, name) for name in ("weight", "box"))
        )
        plain = torch.from_numpy(finish_reference(images, scale=scale, bias=bias))
        assert_same_bits(mixed_up(plain, mixing).numpy(), finish_reference(images, scale=scale, bias=bias, mix=mixing))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_are_rounded_once(dtype: torch.dtype) -> None:
    """The sum is of float32, and what comes out has the type that came in."""
    images = torch.linspace(-3, 3, 4 * 3 * 5 * 6).reshape(4, 3, 5, 6).to(dtype)
    mixing = MixArrays(np.array([3, 0, 1, 2], np.int32), np.full(4, 0.3, np.float32))
    found = mixed_up(images, mixing)
    weight = torch.tensor(np.float32(0.3))
    assert torch.equal(found, (images.float() * weight + images.float().roll(1, 0) * (1 - weight)).to(dtype))
