"""next() on a GPU that is busy: it enqueues and comes back, whatever the current stream has to do before."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from kit.both_loaders import tensors
from kit.images import jpeg
from nvidia.dali import fn, pipeline_def
from torchvision.transforms import v2

from dali_feed import Cache, DataLoader, Decode, Mixing, Tuning
from dali_feed.dali import DALIClassificationIterator
from dali_feed.feed import Feed
from dali_feed.testing.scripted import ScriptedSource

pytestmark = [pytest.mark.device, pytest.mark.slow]

COUNT, SIZE, CYCLES = 24, 4, 2_000_000_000  # about a second of an H100 or H200
FLOATS = [v2.ToDtype(torch.float32, scale=True), v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
USUAL = v2.Compose([v2.RandomResizedCrop(24), v2.RandomHorizontalFlip(), *FLOATS, v2.RandomErasing(0.5)])
STILL = v2.Compose([v2.Resize((24, 24)), v2.RandomHorizontalFlip(), *FLOATS, v2.RandomErasing(0.5)])
KEEPS = Tuning(cache=Cache(device="1GB"))
KEEPS_PART = Tuning(cache=Cache(device=COUNT * 24 * 24))  # a third
BOTH = Mixing(0.4, 1.0, classes=COUNT, smoothing=0.1)


def source() -> ScriptedSource:
    """Pictures with labels."""
    return ScriptedSource([(jpeg(n, 45, 60), n) for n in range(COUNT)])


def on_gpu(images: Any, draws: Any) -> Any:
    """A graph of the user's own, whose output is left in DALI's memory."""
    return fn.crop_mirror_normalize(fn.resize(images, size=[16, 16]), std=[128.0] * 3)


@pipeline_def(batch_size=SIZE, num_threads=2, device_id=0)  # type: ignore[untyped-decorator, unused-ignore]
def pipeline() -> Any:
    """A pipeline of the user's own: images and labels, both on the GPU."""
    payloads, labels = fn.external_source(name="image"), fn.external_source(name="label")
    images = fn.resize(fn.decoders.image(payloads, device="mixed"), size=[16, 16])
    return fn.crop_mirror_normalize(images, std=[128.0] * 3), labels.gpu()


def collated(samples: list[Any]) -> Any:
    """A collate_fn that leaves its labels in memory that is not page-locked."""
    return torch.stack([image for image, _ in samples]), torch.tensor([label for _, label in samples])


def loader(**options: Any) -> DataLoader:
    """Batches on the GPU."""
    return DataLoader(source(), SIZE, device="cuda", seed=1, **options)


def second(made: DataLoader) -> DataLoader:
    """The same batches again, of images that are on the device by then."""
    for _ in made:
        pass
    made.set_epoch(0)
    return made


CASES: dict[str, Callable[[], Any]] = {
    "dali": lambda: loader(transform=USUAL, decode=Decode(engine="dali")),
    "host": lambda: loader(transform=USUAL, decode=Decode(engine="host")),
    "dali, mixed": lambda: loader(transform=USUAL, decode=Decode(engine="dali"), collate_fn=BOTH),
    "host, mixed": lambda: loader(transform=USUAL, decode=Decode(engine="host"), collate_fn=BOTH),
    "pairs of labels": lambda: loader(transform=USUAL, collate_fn=Mixing(0.4)),
    "views": lambda: loader(transform=[USUAL, v2.Compose([v2.RandomResizedCrop(12), *FLOATS])]),
    "channels last": lambda: loader(transform=USUAL, decode=Decode(memory_format=torch.channels_last)),
    "collated": lambda: loader(transform=USUAL, collate_fn=collated),
    "behind the graph": lambda: loader(
        transform=v2.Compose([v2.Resize((20, 20)), v2.RandomAdjustSharpness(2.0), *FLOATS])
    ),
    "kept, dali": lambda: second(loader(transform=STILL, decode=Decode(engine="dali"), tuning=KEEPS)),
    "kept, host": lambda: second(loader(transform=STILL, decode=Decode(engine="host"), tuning=KEEPS)),
    "kept in part": lambda: second(loader(transform=STILL, tuning=KEEPS_PART)),
    "own graph": lambda: loader(transform=on_gpu),
    "own graph, mixed": lambda: loader(transform=on_gpu, collate_fn=BOTH),
    "own pipeline": lambda: DALIClassificationIterator(pipeline, source(), seed=1),
}


def made(loader: Any) -> None:
    """Wait until the feed thread has a batch ready, so that nothing else is waited for."""
    out, ends = loader._positions.run._out, time.monotonic() + 60
    while not len(out):
        assert time.monotonic() < ends
        time.sleep(0.01)


def is_torchs(tensor: torch.Tensor) -> bool:
    """Whether it lies in a segment of torch's allocator."""
    segments = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
    return any(0 <= tensor.data_ptr() - each["address"] < each["total_size"] for each in segments)


@contextlib.contextmanager
def asleep() -> Iterator[torch.cuda.Event]:
    """The current stream sleeps for about a second; an event behind that."""
    done = torch.cuda.Event()  # type: ignore[no-untyped-call]
    torch.cuda._sleep(CYCLES)  # type: ignore[no-untyped-call]
    done.record()
    try:
        yield done
    finally:
        torch.cuda.synchronize()


@pytest.mark.parametrize("case", CASES)
def test_next_comes_back_while_the_gpu_is_busy(case: str) -> None:
    """An event before the batch's work is still pending, and the batch is what it is on an idle GPU."""
    with CASES[case]() as idle:
        wanted = [[each.clone() for each in tensors(item)] for item in itertools.islice(idle, 4)]
    with CASES[case]() as busy:
        batches = iter(busy)
        for _ in range(3):  # kernels are compiled and memory has been had
            item = next(batches)
        torch.cuda.synchronize()
        made(busy)
        with asleep() as done:
            item = next(batches)
            assert not done.query()  # type: ignore[no-untyped-call]
        for one, other in zip(tensors(item), wanted[3], strict=True):
            assert one.is_cuda
            assert torch.equal(one, other)


@pytest.mark.parametrize("case", CASES)
def test_batches_dropped_on_a_busy_gpu_harm_none_behind_them(case: str) -> None:
    """Memory that enqueued work still reads is not used again: sums behind a sleep are those of an idle GPU."""

    def sums(item: Any) -> torch.Tensor:
        return torch.stack([each.double().sum() for each in tensors(item)])

    with CASES[case]() as idle:
        wanted = [sums(item) for item in idle]
        torch.cuda.synchronize()
    with CASES[case]() as busy, asleep():
        found = [sums(item) for item in busy]
        held = busy._positions._machine.engine.device.in_use
    assert len(found) == COUNT // SIZE
    assert torch.equal(torch.stack(found), torch.stack(wanted))
    assert len(held) == 0  # closed


@pytest.mark.parametrize("case", ["own graph", "own pipeline"])
def test_what_is_handed_over_is_torchs_memory(case: str) -> None:
    """Every output lies in a segment of torch's allocator: none goes back to DALI, which would wait for the device."""
    with CASES[case]() as each:
        assert all(is_torchs(tensor) for tensor in tensors(next(iter(each))))


def test_a_feeds_batch_of_a_users_graph_is_torchs_memory() -> None:
    """Also for who takes it through DLPack."""
    with Feed(source(), SIZE, transform=on_gpu, device=0) as feed:
        taken = torch.utils.dlpack.from_dlpack(next(iter(feed)))
        assert is_torchs(taken)
        assert torch.isfinite(taken).all()


def test_labels_mixed_on_the_gpu_are_those_of_the_cpu() -> None:
    """Bit for bit, in torch's deterministic mode too, which refuses what adds in no fixed order."""
    with DataLoader(source(), SIZE, device="cpu", seed=1, transform=USUAL, collate_fn=BOTH) as cpu:
        wanted = [labels for _, labels in cpu]
    torch.use_deterministic_algorithms(mode=True)
    try:
        with loader(transform=USUAL, collate_fn=BOTH) as gpu:
            for (_, labels), other in zip(gpu, wanted, strict=True):
                assert torch.equal(labels.cpu(), other)
    finally:
        torch.use_deterministic_algorithms(mode=False)
