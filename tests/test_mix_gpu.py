"""mix on a GPU: the launched kernel equals its NumPy reference bit for bit, in torch's memory and on its stream."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from finish_cases import assert_same_bits, random_mix
from test_mix import KINDS, batch

from dali_feed.kernels.mix import Mix, mix, mix_reference

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(3, 3, 5, 7), (4, 3, 224, 224), (65600, 1, 1, 8)])
def test_gpu_equals_reference(shape: tuple[int, int, int, int], kind: str, layout: str) -> None:
    """On CuPy's memory, whole vectors or single elements at a time."""
    cp: Any = pytest.importorskip("cupy")
    n, c, h, w = shape
    images = batch(kind, shape if layout == "NCHW" else (n, h, w, c), 0)
    mixing = random_mix(np.random.default_rng(0), (n, h, w))
    out = cp.zeros(images.shape, images.dtype)
    moved = Mix(*(cp.asarray(array) for array in (mixing.partner, mixing.weight, mixing.box)))
    mix(cp.asarray(images), out, moved, dtype=kind, layout=layout)
    assert_same_bits(cp.asnumpy(out), mix_reference(images, mixing, dtype=kind, layout=layout))


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
def test_gpu_on_torchs_stream(memory: torch.memory_format) -> None:
    """Torch's tensors in both memory formats, on a side stream, bfloat16 speaking for itself."""
    images = torch.randn(4, 3, 32, 40, device="cuda", dtype=torch.bfloat16).to(memory_format=memory)
    mixing = random_mix(np.random.default_rng(0), (4, 32, 40))
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        arrays = (torch.from_numpy(each).cuda() for each in (mixing.partner, mixing.weight, mixing.box))
        out = torch.empty_like(images)
        mix(images, out, Mix(*arrays), stream=stream)
    stream.synchronize()
    bits = images.contiguous().view(torch.uint16).cpu().numpy()
    assert_same_bits(out.contiguous().view(torch.uint16).cpu().numpy(), mix_reference(bits, mixing, dtype="bfloat16"))
