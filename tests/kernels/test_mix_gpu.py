"""mix on a GPU: in torch's memory and on its stream; test_mix.py holds its arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from finish_cases import assert_same_bits, random_mix
from kernels_both import moved

from dali_feed.kernels.mix import mix, mix_reference

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
def test_gpu_on_torchs_stream(memory: torch.memory_format) -> None:
    """Torch's tensors in both memory formats, on a side stream, bfloat16 speaking for itself."""
    images = torch.randn(4, 3, 32, 40, device="cuda", dtype=torch.bfloat16).to(memory_format=memory)
    mixing = random_mix(np.random.default_rng(0), (4, 32, 40))
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        out = torch.empty_like(images)
        mix(images, out, moved(mixing, lambda array: torch.from_numpy(array).cuda()), stream=stream)
    stream.synchronize()
    bits = images.contiguous().view(torch.uint16).cpu().numpy()
    assert_same_bits(out.contiguous().view(torch.uint16).cpu().numpy(), mix_reference(bits, mixing, dtype="bfloat16"))
