"""The loader on a GPU: the same samples as on the CPU, tensors in torch's memory, state that crosses devices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from kit.images import broken_png, jpeg
from kit.inside import Feed
from torchvision.transforms import v2

from dali_feed import BadRecords, DataLoader, Decode, Mixing
from dali_feed.testing import ScriptedSource

pytestmark = pytest.mark.device

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def loader(device: str, dtype: torch.dtype = torch.float32, **options: Any) -> DataLoader:
    """24 smooth pictures, augmented."""
    transform = v2.Compose(
        [v2.RandomResizedCrop(24), v2.RandomHorizontalFlip(), v2.ToDtype(dtype, scale=True), v2.Normalize(MEAN, STD)]
    )
    source = ScriptedSource([(jpeg(n, 45, 60), n) for n in range(24)])
    return DataLoader(source, 8, shuffle=True, transform=transform, device=device, seed=1, info=True, **options)


@pytest.fixture(params=["dali", "host"])
def engine(request: pytest.FixtureRequest) -> str:
    """Each engine before a GPU."""
    return str(request.param)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_gpu_gives_the_samples_of_the_cpu(dtype: torch.dtype, engine: str) -> None:
    """Ids and labels are equal; pixels differ by decoder and resize alone, on smooth pictures by few levels."""
    with loader("cpu") as cpu, loader("cuda", dtype, decode=Decode(engine=engine)) as gpu:
        for (a, la, ia), (b, lb, ib) in zip(cpu, gpu, strict=True):
            assert b.is_cuda
            assert b.dtype == dtype
            assert torch.equal(la, lb.cpu())
            assert torch.equal(ia.ids, ib.ids)
            assert (a - b.float().cpu()).abs().mean() < 0.03  # two grey levels, in units of std


def test_host_pixels_before_a_gpu_are_those_on_the_cpu() -> None:
    """The finish kernel rounds once where torch rounds three times: 7.2e-7 apart at most, whatever the picture."""
    with loader("cpu") as cpu, loader("cuda", decode=Decode(engine="host")) as gpu:
        for (a, _, _), (b, _, _) in zip(cpu, gpu, strict=True):
            assert (a - b.cpu()).abs().max() <= 7.2e-7


def test_batches_are_mixed_on_either_engine(engine: str) -> None:
    """In the finish's launch: other pixels than unmixed, and labels by the draws of the CPU."""
    mixing = Mixing(0.4, 1.0, classes=24)
    with (
        loader("cpu", collate_fn=mixing) as cpu,
        loader("cuda", decode=Decode(engine=engine), collate_fn=mixing) as gpu,
    ):
        for (a, la, _), (b, lb, _) in zip(cpu, gpu, strict=True):
            assert torch.equal(la, lb.cpu())
            assert (a - b.cpu()).abs().mean() < 0.03


def test_batches_are_mixed_on_the_gpu_as_on_the_cpu() -> None:
    """One launch finishes and mixes; the host engine's bytes come within the finish's rounding of the CPU's floats."""
    options: dict[str, Any] = {"collate_fn": Mixing(0.4, 1.0, classes=24), "decode": Decode(engine="host")}
    with loader("cpu", **options) as cpu, loader("cuda", **options) as gpu:
        for (a, la, ia), (b, lb, ib) in zip(cpu, gpu, strict=True):
            assert torch.equal(ia.ids, ib.ids)
            assert torch.equal(la, lb.cpu())
            assert (a - b.cpu()).abs().max() <= 2e-6


def test_views_on_the_gpu_are_each_what_it_gives_alone(engine: str) -> None:
    """Each has its own finish; the first is the bits of its transform by itself."""
    source = ScriptedSource([(jpeg(n, 45, 60), n) for n in range(16)])
    one = v2.Compose([v2.RandomResizedCrop(24), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)])
    other = v2.Compose([v2.RandomResizedCrop(12), v2.ToDtype(torch.bfloat16, scale=True)])
    how: dict[str, Any] = {"device": "cuda", "decode": Decode(engine=engine)}
    with (
        DataLoader(source, 8, transform=[one, other], **how) as several,
        DataLoader(source, 8, transform=one, **how) as alone,
    ):
        for (views, _), (images, _) in zip(several, alone, strict=True):
            assert [view.dtype for view in views] == [torch.float32, torch.bfloat16]
            assert all(view.is_cuda for view in views)
            assert torch.equal(views[0], images)


def test_the_last_erasing_is_the_cpus(engine: str) -> None:
    """The finish kernel writes the same value, of no pixel's level, into the same rectangles of the same samples."""
    transform = v2.Compose(
        [
            *(v2.Resize((24, 24)), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)),
            *(v2.Normalize(MEAN, STD), v2.RandomErasing(0.7, value=(9.0, -7.3, 5.1)), v2.RandomVerticalFlip()),
        ]
    )
    source = ScriptedSource([(jpeg(n, 45, 60), n) for n in range(16)])
    options: dict[str, Any] = {"transform": transform, "seed": 1}
    value = torch.tensor([9.0, -7.3, 5.1])[:, None, None]
    with (
        DataLoader(source, 8, device="cpu", **options) as cpu,
        DataLoader(source, 8, device="cuda", decode=Decode(engine=engine), **options) as gpu,
    ):
        for (a, _), (b, _) in zip(cpu, gpu, strict=True):
            assert (a == value).any()
            assert torch.equal(a == value, b.cpu() == value)


def test_what_dali_has_no_operator_for_runs_behind_its_graph() -> None:
    """On the GPU, on a stream of its own: near the samples of the CPU, and twice the same."""
    behind = [v2.RandomAdjustSharpness(2.0), v2.RandomOrder([v2.RandomGrayscale(), v2.RandomPerspective()])]
    ends = [v2.RandomVerticalFlip(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    transform = v2.Compose([v2.RandomResizedCrop(24), v2.RandomHorizontalFlip(), *behind, *ends])
    source = ScriptedSource([(jpeg(n, 45, 60), n) for n in range(24)])

    def epoch(device: str) -> list[torch.Tensor]:
        with DataLoader(source, 8, shuffle=True, transform=transform, device=device, seed=1) as loader:
            return [images.clone() for images, _ in loader]

    for cpu, gpu, again in zip(epoch("cpu"), epoch("cuda"), epoch("cuda"), strict=True):
        assert gpu.is_cuda
        assert gpu.dtype == torch.float32
        assert (cpu - gpu.cpu()).abs().mean() < 0.06
        assert torch.equal(gpu, again)


@pytest.mark.parametrize("name", ["AutoAugment", "RandAugment", "TrivialAugmentWide", "AugMix"])
def test_chosen_operations_run_on_the_gpu(name: str) -> None:
    """AutoAugment and its kind, with floats and erasing behind them, image by image."""
    ends = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD), v2.RandomErasing(0.5, value=0.25)]
    transform = v2.Compose([v2.RandomResizedCrop(24), getattr(v2, name)(), *ends])
    source = ScriptedSource([(jpeg(n, 45, 60), n) for n in range(24)])
    with DataLoader(source, 8, transform=transform, device="cuda") as loader:
        for images, _ in loader:
            assert images.shape == (8, 3, 24, 24)
            assert images.is_cuda
            assert images.isfinite().all()


def test_floats_made_on_the_cpu_go_over_as_they_are() -> None:
    """A recipe that computes in floats before it ends has nothing left to finish: the CPU's bits."""
    transform = v2.Compose([v2.Resize((40, 40)), v2.ToDtype(torch.float32, scale=True), v2.ColorJitter(0.4)])
    source = ScriptedSource([(jpeg(n, 45, 60), n) for n in range(8)])
    options: dict[str, Any] = {"transform": transform, "decode": Decode(engine="host")}
    with DataLoader(source, 4, device="cpu", **options) as cpu, DataLoader(source, 4, device="cuda", **options) as gpu:
        for (a, _), (b, _) in zip(cpu, gpu, strict=True):
            assert torch.equal(a, b.cpu())


def test_a_bad_record_before_a_gpu_is_replaced(engine: str) -> None:
    """What the decoder refuses late costs its slot; the batch comes whole, and equal to the CPU's but for pixels."""
    items: list[Any] = [(jpeg(n, 16, 16), n) for n in range(12)]
    items[5] = (broken_png(), 5)
    options: dict[str, Any] = {"bad": BadRecords(limit=None), "info": True, "transform": v2.Resize((16, 16))}
    with (
        DataLoader(ScriptedSource(items), 4, device="cpu", **options) as cpu,
        DataLoader(ScriptedSource(items), 4, device="cuda", decode=Decode(engine=engine), **options) as gpu,
    ):
        for (_, la, ia), (_, lb, ib) in zip(cpu, gpu, strict=True):
            assert la.tolist() == lb.tolist()
            assert ia.ok.tolist() == ib.ok.tolist()


@pytest.mark.parametrize("library", ["torch", *(pytest.param(each, marks=pytest.mark.gpu) for each in ("cupy", "jax"))])
def test_a_feeds_batch_speaks_dlpack(library: str) -> None:
    """Torch, CuPy and JAX take the finished images of a batch without a copy, on their own streams."""
    if library == "jax":
        take: Any = pytest.importorskip("jax.dlpack").from_dlpack
    else:
        take = pytest.importorskip(library).from_dlpack
    source = ScriptedSource([(jpeg(n, 30, 40), n) for n in range(8)])
    transform = v2.Compose([v2.Resize((24, 24)), v2.ToDtype(torch.float32, scale=True)])
    for engine in ("dali", "host"):
        how: dict[str, Any] = {"transform": transform, "decode": Decode(engine=engine)}
        with Feed(source, 4, device=0, **how) as feed, DataLoader(source, 4, device="cuda", **how) as loaded:
            for batch, (images, _) in zip(feed, loaded, strict=True):
                assert batch.__dlpack_device__() == (2, 0)
                taken = take(batch)
                if library == "cupy":
                    taken = taken.get()
                else:
                    taken = torch.utils.dlpack.from_dlpack(taken).cpu()
                assert np.array_equal(np.asarray(taken), images.cpu().numpy())


def test_channels_last_is_written_as_such() -> None:
    """The finish step writes the memory format that was asked for, with the same values."""
    with loader("cuda") as planes, loader("cuda", decode=Decode(memory_format=torch.channels_last)) as last:
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


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")  # torch says so whenever it is switched on
def test_batches_are_ready_on_the_current_stream_without_a_device_sync(engine: str) -> None:
    """The loop runs under torch's sync debug mode, on a stream of its own."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with loader("cuda", decode=Decode(engine=engine)) as gpu, torch.cuda.stream(stream):
        try:
            torch.cuda.set_sync_debug_mode("error")
            total = sum((images.sum() for images, _, _ in gpu), torch.zeros((), device="cuda"))
        finally:
            torch.cuda.set_sync_debug_mode("default")
    stream.synchronize()
    assert torch.isfinite(total)
