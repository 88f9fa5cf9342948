"""The twin does not forgive: what a GPU punishes now and then it reports every time, and what can be late is late."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from kernel_cases import KERNELS
from kernels_host import compile_for_host
from kit import twin
from kit.images import jpeg
from kit.kept import Kept
from kit.twin import Machine
from kit.twins import twin_of
from torchvision.transforms import v2

from dali_feed import DataLoader, Decode
from dali_feed.engines.device.cuda import Device
from dali_feed.errors import EngineError
from dali_feed.kernels.finish import finish
from dali_feed.testing import ScriptedSource

Played = Callable[..., Any]


@pytest.fixture
def played(kept: Kept) -> Iterator[Played]:
    """Makes the twin's GPUs, of which a test expects errors: it must look at all of them."""
    with contextlib.ExitStack() as stack:

        def play(**options: Any) -> Machine:
            kernels = lambda name: compile_for_host(kept, name, KERNELS[name].variants)  # noqa: E731
            machine: Machine = stack.enter_context(twin_of(kernels, **options))
            return machine

        yield play


def errors_of(machine: Machine) -> str:
    """What it has reported, which is looked at so."""
    machine.finish()
    text = "\n".join(machine.errors)
    machine.errors.clear()
    return text


def read_elsewhere() -> tuple[Any, torch.Tensor, torch.Tensor]:
    """A stream that reads ones of the first stream's, them, and what it makes of them."""
    ones = torch.ones(4, device="cuda")
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        kept = ones.clone()
    return stream, ones, kept


def busy() -> Any:
    """A stream of its own that sleeps, and a tensor of ones on it."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        torch.cuda._sleep(1)  # type: ignore[no-untyped-call]
        return stream, torch.ones(4, device="cuda")


def test_work_is_done_when_somebody_waits(played: Played) -> None:
    """And not before."""
    played()
    stream, ones = busy()
    with torch.cuda.stream(stream):
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record()
        assert not done.query()  # type: ignore[no-untyped-call]
        assert ones.sum().item() == 4
        assert done.query()  # type: ignore[no-untyped-call]


def test_with_a_seed_some_is_done_meanwhile(played: Played) -> None:
    """In an order of its own, never past an event that is waited for."""
    machine = played(seed=3)
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    value = torch.zeros(1, device="cuda")
    for _ in range(20):
        value.add_(1)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            value.mul_(2)
        torch.cuda.current_stream().wait_stream(stream)
    assert value.item() == 2**21 - 2
    assert any(each.done for each in machine.streams)


def test_memory_is_full_of_junk(played: Played) -> None:
    """When it is taken, and, for whoever looks at it still, when it has been let go."""
    played()
    taken = torch.empty(8, dtype=torch.uint8, device="cuda")
    assert set(taken.tolist()) == {twin.TAKEN}
    block = taken.block  # type: ignore[attr-defined]
    del taken
    torch.cuda.synchronize()
    assert set(block.bytes.tolist()) == {twin.FREED}


def test_memory_is_used_again_at_once(played: Played) -> None:
    """By the stream that it is of."""
    played()
    one = torch.zeros(100, device="cuda")
    address = one.data_ptr()
    del one
    assert torch.empty(100, device="cuda").data_ptr() == address


READS = {
    "read": lambda ones: ones.clone(),
    "write": lambda ones: ones.fill_(2),
    "copy to the host": lambda ones: ones.cpu(),
}


@pytest.mark.parametrize("way", READS)
def test_what_another_stream_wrote_needs_an_event(played: Played, way: str) -> None:
    """Both places are named."""
    machine = played()
    stream, ones = busy()
    out = READS[way](ones)
    text = errors_of(machine)
    assert "no event or wait is between" in text
    assert text.count("test_twin.py:") >= 2
    stream.synchronize()
    del out, ones
    errors_of(machine)


@pytest.mark.parametrize("between", ["wait", "event", "synchronize"])
def test_an_event_or_a_wait_is_enough(played: Played, between: str) -> None:
    """Whoever waits."""
    machine = played()
    stream, ones = busy()
    if between == "wait":
        torch.cuda.current_stream().wait_stream(stream)
    elif between == "event":
        torch.cuda.current_stream().wait_event(stream.record_event())
    else:
        thread = threading.Thread(target=stream.synchronize)
        thread.start()
        thread.join()
    assert ones.tolist() == [1] * 4
    torch.cuda.synchronize()
    del ones
    assert not errors_of(machine)


def test_memory_that_another_stream_still_reads_is_not_let_go(played: Played) -> None:
    """Nor written to: the first one may use it again at once."""
    machine = played()
    _, ones, kept = read_elsewhere()
    del ones
    assert "is let go and used again there, while stream 0 of cuda:0 may still read it" in errors_of(machine)
    del kept
    errors_of(machine)


def test_record_stream_is_enough_for_that(played: Played) -> None:
    """As torch promises."""
    machine = played()
    stream, ones, kept = read_elsewhere()
    ones.record_stream(stream)
    del ones
    assert torch.empty(4, device="cuda").fill_(3).tolist() == [3] * 4
    torch.cuda.current_stream().wait_stream(stream)
    assert kept.tolist() == [1] * 4
    torch.cuda.synchronize()
    del kept
    assert not errors_of(machine)


def test_memory_that_is_shown_must_be_somebodys(played: Played) -> None:
    """A view by `__cuda_array_interface__` keeps nothing."""
    machine = played()
    ones = torch.ones(4, device="cuda")
    view = Device(0).view(type("Shown", (), {"__cuda_array_interface__": ones.__cuda_array_interface__})())
    assert view.tolist() == [1] * 4
    del ones
    assert view.tolist() != [1] * 4
    assert "reads memory that was let go at" in errors_of(machine)


def test_page_locked_memory_is_read_late(played: Played) -> None:
    """Whoever changes it before its copy is done changes what arrives."""
    machine = played()
    gpu = Device(0)
    here = gpu.pinned((4,), torch.int32)
    there = gpu.send(here.fill_(1))
    here[0] = 2
    gpu.wait()
    assert there.tolist() == [2, 1, 1, 1]
    assert "page-locked memory was changed before it was sent" in errors_of(machine)


def test_waits_and_copies_are_counted_with_their_place(played: Played) -> None:
    """By thread."""
    machine = played()
    torch.ones(4).cuda().cpu()
    Device(0).wait()
    kinds = [(kind, thread) for kind, thread, _ in machine.waits]
    assert kinds == [("pageable copy", "MainThread")] * 2 + [("event", "MainThread")]
    assert {place.split(":")[0] for _, _, place in machine.waits} == {"engines/test_twin.py", "device/cuda.py"}


def test_a_thread_begins_with_the_first_gpu(played: Played) -> None:
    """And calls there are counted; `Device` makes none."""
    machine = played(devices=2)
    gpu = Device(1)

    def work() -> None:
        assert torch.cuda.current_device() == 0
        there = gpu.send(gpu.pinned((4,), torch.uint8).fill_(1))
        gpu.wait()
        with gpu.hold(there):
            gpu.copy(there)
        gpu.drain()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert set(machine.touched) == {1}
    torch.empty(1, pin_memory=True)
    assert set(machine.touched) == {0, 1}


def test_a_tensor_of_another_gpu_is_refused(played: Played) -> None:
    """As torch refuses it; to copy it is not."""
    played(devices=2)
    one, other = torch.ones(2, device="cuda:0"), torch.ones(2, device="cuda:1")
    with pytest.raises(RuntimeError, match="found at least two devices, cuda:0 and cuda:1"):
        one + other
    assert (one.to("cuda:1") + other).tolist() == [2, 2]


def test_a_kernel_is_launched_on_its_streams_gpu(played: Played) -> None:
    """CuPy refuses any other, and memory of another."""
    played(devices=2)
    images, out = (torch.zeros(1, 4, 4, 3, dtype=torch.uint8, device="cuda:1") for _ in range(2))
    with pytest.raises(Exception, match=r"must lie on the current device, cuda:0"):
        finish(images, out, layout="NHWC", stream=torch.cuda.current_stream(1))
    stream = torch.cuda.Stream(0)  # type: ignore[no-untyped-call]
    with torch.cuda.device(1), pytest.raises(EngineError, match="invalid resource handle"):
        finish(images, out, layout="NHWC", stream=stream)


def test_the_first_launch_of_a_kernel_waits(played: Played) -> None:
    """Each variant's, as it is loaded then."""
    machine = played()
    images, out = (torch.zeros(1, 4, 4, 3, dtype=torch.uint8, device="cuda") for _ in range(2))
    for _ in range(2):
        finish(images, out, layout="NHWC", stream=torch.cuda.current_stream())
    assert [kind for kind, _, _ in machine.waits] == ["loading a kernel"]


def test_memory_ends(played: Played) -> None:
    """With torch's error; what is kept and not used is given back first."""
    played(memory=1 << 20)
    one = torch.empty(600 << 10, dtype=torch.uint8, device="cuda")
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate 0.59 MiB"):
        torch.empty(600 << 10, dtype=torch.uint8, device="cuda")
    del one
    torch.empty(1000 << 10, dtype=torch.uint8, device="cuda")


def test_a_device_fails_when_a_test_says_so(played: Played) -> None:
    """At the n-th call of a kind; and for good."""
    machine = played()
    machine.fail("record", lambda: RuntimeError("CUDA error: out of memory"), 2)
    torch.cuda.current_stream().record_event()
    with pytest.raises(RuntimeError, match="out of memory"):
        torch.cuda.current_stream().record_event()
    machine.break_down(0)
    with pytest.raises(RuntimeError, match="an illegal memory access was encountered"):
        torch.ones(1, device="cuda")
    machine.broken.clear()


@pytest.mark.parametrize("mode", ["global", "thread_local"])
@pytest.mark.parametrize("relaxed", [False, True])
def test_a_capture_forbids_what_cuda_forbids(played: Played, mode: str, relaxed: bool) -> None:
    """In the global mode to every thread that has not said otherwise."""
    played()
    caught: list[BaseException] = []

    def other() -> None:
        if relaxed:
            Device(0).enter()
        try:
            torch.empty(1, pin_memory=True)
        except RuntimeError as error:
            caught.append(error)

    def capture() -> None:
        with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode=mode):
            assert torch.cuda.is_current_stream_capturing()
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()

    if mode == "global" and not relaxed:
        with pytest.raises(RuntimeError, match="due to a previous error during capture"):
            capture()
        assert "operation not permitted when stream is capturing" in str(caught[0])
    else:
        capture()
        assert not caught


def test_a_graph_is_replayed(played: Played) -> None:
    """On what lies in its memory then."""
    played()
    count, graph = torch.zeros(1, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        count.add_(1)
    assert count.item() == 0
    for _ in range(3):
        graph.replay()
    assert count.item() == 3


def test_torch_wraps_its_streams(played: Played) -> None:
    """The 33rd of a priority is the first one."""
    played()
    streams = [torch.cuda.Stream() for _ in range(33)]  # type: ignore[no-untyped-call]
    assert streams[32] == streams[0]
    assert len({each.cuda_stream for each in streams}) == 32
    assert torch.cuda.Stream(priority=-1) not in streams  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("engine", ["host", "dali"])
@pytest.mark.parametrize("seed", [None, 0, 1])
def test_a_loader_runs_on_it(played: Played, engine: str, seed: int | None) -> None:
    """Without an error, and its thread of the loop waits for nothing of itself."""
    machine = played(seed=seed)
    source = ScriptedSource([(jpeg(n, 40, 50), n) for n in range(24)])
    transform = v2.Compose([v2.RandomCrop(32), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)])
    with DataLoader(source, 8, transform=transform, device="cuda", decode=Decode(engine=engine)) as loader:
        batches = list(loader)
        assert not [each for each in machine.waits if each[1] != "dali_feed-feed"]
    with DataLoader(source, 8, transform=transform, device="cpu", decode=Decode(engine=engine)) as loader:
        for (images, labels), (wanted, same) in zip(batches, loader, strict=True):
            assert (images.cpu() - wanted).abs().max() <= 1e-6
            assert torch.equal(labels.cpu(), same)
