"""The loader on a GPU: the same samples as on the CPU, tensors in torch's memory, state that crosses devices."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from images import jpeg
from torchvision.transforms import v2

from dali_feed import DataLoader
from dali_feed.testing.scripted import ScriptedSource

pytestmark = pytest.mark.gpu

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def loader(device: str, dtype: torch.dtype = torch.float32, **options: Any) -> DataLoader:
    """64 smooth pictures, augmented."""
    transform = v2.Compose(
        [v2.RandomResizedCrop(48), v2.RandomHorizontalFlip(), v2.ToDtype(dtype, scale=True), v2.Normalize(MEAN, STD)]
    )
    source = ScriptedSource([(jpeg(n, 90, 120), n) for n in range(64)])
    return DataLoader(source, 16, shuffle=True, transform=transform, device=device, seed=1, info=True, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_gpu_gives_the_samples_of_the_cpu(dtype: torch.dtype) -> None:
    """Ids and labels are equal; pixels differ by decoder and resize alone, on smooth pictures by few levels."""
    with loader("cpu") as cpu, loader("cuda", dtype) as gpu:
        for (a, la, ia), (b, lb, ib) in zip(cpu, gpu, strict=True):
            assert b.is_cuda
            assert b.dtype == dtype
            assert torch.equal(la, lb.cpu())
            assert torch.equal(ia.ids, ib.ids)
            assert (a - b.float().cpu()).abs().mean() < 0.03  # two grey levels, in units of std


def test_channels_last_is_written_as_such() -> None:
    """The finish step writes the memory format that was asked for, with the same values."""
    with loader("cuda") as planes, loader("cuda", memory_format=torch.channels_last) as last:
        for (a, _, _), (b, _, _) in zip(planes, last, strict=True):
            assert b.is_contiguous(memory_format=torch.channels_last)
            assert torch.equal(a, b)


def test_a_state_from_the_gpu_goes_on_on_the_cpu() -> None:
    """Position and order do not know the device."""
    with loader("cuda") as gpu, loader("cpu") as cpu:
        run = iter(gpu)
        next(run)
        state = gpu.state_dict()
        rest = [info.ids.tolist() for _, _, info in run]
        cpu.load_state_dict(state)
        assert [info.ids.tolist() for _, _, info in cpu] == rest


def test_batches_are_ready_on_the_current_stream_without_a_device_sync() -> None:
    """The loop runs under torch's sync debug mode, on a stream of its own."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with loader("cuda") as gpu, torch.cuda.stream(stream):
        torch.cuda.set_sync_debug_mode("error")
        try:
            total = sum((images.sum() for images, _, _ in gpu), torch.zeros((), device="cuda"))
        finally:
            torch.cuda.set_sync_debug_mode("default")
    stream.synchronize()
    assert torch.isfinite(total)
