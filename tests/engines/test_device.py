"""A `Device` by itself: each method under its own GPU, which stream a consumer names, and one event behind a hold."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from kit.planted import FAULTS, ROOT
from kit.twin import Machine

from dali_feed.engines.device.cuda import Device
from dali_feed.errors import EngineError

pytestmark = pytest.mark.device(devices=2)


@pytest.fixture(autouse=True)
def _two(on_device: Machine | None) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")


class Shown:
    """Memory as DALI shows it, and which GPUs those have had who looked."""

    def __init__(self, there: torch.Tensor) -> None:
        self.there, self.seen = there, set[int]()

    @property
    def __cuda_array_interface__(self) -> Any:
        """Address, shape and type."""
        self.seen.add(torch.cuda.current_device())
        return self.there.__cuda_array_interface__


def held(gpu: Device, *objects: Any) -> None:
    """Nothing is done meanwhile."""
    with gpu.hold(*objects):
        pass


def kernel(array: torch.Tensor, *, stream: Any) -> None:
    """One of torch's."""
    with torch.cuda.stream(stream):
        array.add_(1)


METHODS: dict[str, Callable[[Device, Shown], object]] = {
    "pinned": lambda gpu, there: gpu.pinned((2,), torch.uint8),
    "send": lambda gpu, there: gpu.send(gpu.pinned((2,), torch.uint8)),
    "wait": lambda gpu, there: gpu.wait(),
    "empty": lambda gpu, there: gpu.empty((2,), torch.uint8),
    "copy": lambda gpu, there: gpu.copy(there.there),
    "view": lambda gpu, there: gpu.view(there),
    "launch": lambda gpu, there: gpu.launch(kernel, there.there),
    "hold": lambda gpu, there: held(gpu),
    "bound": lambda gpu, there: gpu.bound(0),
    "drain": lambda gpu, there: gpu.drain(),
    "free_memory": lambda gpu, there: gpu.free_memory(),
}


def test_every_method_is_held_to_that() -> None:
    """But for those that are a context and call nothing, and `enter`, which chooses."""
    methods = {name for name, each in vars(Device).items() if callable(each) and not name.startswith("_")}
    assert methods - set(METHODS) == {"enter", "sending", "stream"}


@pytest.mark.parametrize("name", METHODS)
def test_every_call_is_made_under_its_own_gpu(
    on_device: Machine | None, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in a thread that begins with the first one, which is the thread's again afterwards."""
    gpu = Device(1)
    there = Shown(torch.zeros(2, device="cuda:1"))
    held(gpu, "something that is read")
    if on_device is not None:
        call = on_device.call

        def told(*given: Any, **options: Any) -> str:
            there.seen.add(torch.cuda.current_device())
            return call(*given, **options)

        monkeypatch.setattr(on_device, "call", told)
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: told("empty_cache"))
    METHODS[name](gpu, there)
    assert torch.cuda.current_device() == 0
    assert on_device is None or (there.seen, set(on_device.touched)) == ({1}, {1})


def test_a_thread_may_enter_for_good(on_device: Machine | None) -> None:
    """As the feed's does, whose calls then break no capture of a CUDA graph by another thread."""
    seen: list[Any] = []

    def enters() -> None:
        Device(1).enter()
        seen.extend((torch.cuda.current_device(), on_device is None or on_device.mine.relaxed))

    thread = threading.Thread(target=enters)
    thread.start()
    thread.join()
    assert seen == [1, True]
    assert torch.cuda.current_device() == 0


def test_a_consumer_names_its_stream() -> None:
    """As DLPack counts them."""
    gpu, own, another = Device(1), torch.cuda.Stream(1), torch.cuda.Stream(1)  # type: ignore[no-untyped-call]
    default = torch.cuda.default_stream(1)
    for number, named in ((None, default), (0, default), (1, default), (-1, own), (another.cuda_stream, another)):
        with torch.cuda.stream(own), torch.cuda.device(0), gpu.stream(number):
            assert (torch.cuda.current_stream(), torch.cuda.current_device()) == (named, 1)


def test_none_is_made_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """As no batch is taken then."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(EngineError, match=r"^loader on cuda:1: next\(\) cannot be captured in a CUDA graph"):
        Device(1)


def test_one_event_stands_behind_all_that_is_done_within_a_hold() -> None:
    """Also where that raises."""
    gpu = Device(1)

    def fails() -> None:
        with gpu.hold("read"):
            gpu.empty((2,), torch.uint8)
            msg = "out of memory"
            raise RuntimeError(msg)

    with pytest.raises(RuntimeError, match="out of memory"):
        fails()
    assert len(gpu.in_use) == 1


def test_each_planted_fault_is_where_it_can_be_planted() -> None:
    """`tests/kit/planted.py` knows the product as it is: each patch applies."""
    assert [fault.name for fault in FAULTS if not fault.there(ROOT)] == []
