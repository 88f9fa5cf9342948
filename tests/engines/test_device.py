"""A `Device` before a torch that is played: whose GPU is the thread's at each call, and what cannot be captured."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from dali_feed.engines.device import cuda
from dali_feed.engines.device.cuda import Device
from dali_feed.errors import EngineError

NUMBER = 3


class Played:
    """What `Device` asks of torch: `calls` has each with the GPU that was the thread's then, 0 at the beginning."""

    Tensor, device = torch.Tensor, torch.device

    def __init__(self) -> None:
        self.current, self.capturing, self.stream = 0, False, "the loop's"
        self.calls: list[tuple[str, int]] = []
        self.empty, self.as_tensor, self.kernel = map(self._recorder, ("empty", "as_tensor", "kernel"))
        event = {name: self._recorder(name) for name in ("record", "query", "synchronize")}
        self.cuda = SimpleNamespace(
            device=self._device,
            stream=self._stream,
            set_device=lambda number: setattr(self, "current", number),
            Event=lambda **_: SimpleNamespace(**event),
            Stream=lambda *_, **__: "the copies'",
            ExternalStream=lambda *_, **__: "another's",
            default_stream=lambda _: "the default",
            current_stream=lambda: self.stream,
            empty_cache=self._recorder("empty_cache"),
            is_initialized=lambda: True,
            is_current_stream_capturing=lambda: self.capturing,
        )

    def _recorder(self, name: str) -> Callable[..., Any]:
        def call(*_: Any, **__: Any) -> Any:
            self.calls.append((name, self.current))
            return SimpleNamespace(clone=self._recorder("clone"), to=self._recorder("to"))

        return call

    @contextlib.contextmanager
    def _device(self, number: int) -> Iterator[None]:
        before, self.current = self.current, number
        try:
            yield
        finally:
            self.current = before

    @contextlib.contextmanager
    def _stream(self, stream: str) -> Iterator[None]:
        before, self.stream = self.stream, stream
        try:
            yield
        finally:
            self.stream = before


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    """In the place of torch."""
    made = Played()
    monkeypatch.setattr(cuda, "torch", made)
    monkeypatch.setattr(cuda, "_streams", {})
    monkeypatch.setattr(cuda, "shown", lambda images: images)
    return made


def held(gpu: Device, *objects: Any) -> None:
    """Nothing is done meanwhile."""
    with gpu.hold(*objects):
        pass


METHODS: dict[str, Callable[[Device, Played], object]] = {
    "pinned": lambda gpu, _: gpu.pinned((2,), torch.uint8),
    "send": lambda gpu, torch: gpu.send(torch.empty()),
    "wait": lambda gpu, _: gpu.wait(),
    "empty": lambda gpu, _: gpu.empty((2,), torch.uint8),
    "copy": lambda gpu, _: gpu.copy(object()),
    "view": lambda gpu, _: gpu.view(object()),
    "launch": lambda gpu, torch: gpu.launch(torch.kernel),
    "hold": lambda gpu, _: held(gpu),
    "bound": lambda gpu, _: gpu.bound(0),
    "drain": lambda gpu, _: gpu.drain(),
    "free_memory": lambda gpu, _: gpu.free_memory(),
}


def test_every_method_is_held_to_that() -> None:
    """But for those that are a context and call nothing, and `enter`, which chooses."""
    methods = {name for name, each in vars(Device).items() if callable(each) and not name.startswith("_")}
    assert methods - set(METHODS) == {"enter", "sending", "stream"}


@pytest.mark.parametrize("name", METHODS)
def test_every_call_is_made_under_its_own_gpu(played: Played, name: str) -> None:
    """Also in a thread that begins with the first one, which is the thread's again afterwards."""
    gpu = Device(NUMBER)
    with gpu.hold("something that is read"):
        pass
    played.calls.clear()
    if name == "send":
        played.current = NUMBER  # to make what is sent
    METHODS[name](gpu, played)
    assert played.calls
    assert {number for _, number in played.calls} == {NUMBER}
    assert played.current == (NUMBER if name == "send" else 0)


def test_a_thread_may_enter_for_good(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the feed's does, whose calls then break no capture of a CUDA graph by another thread."""
    modes: list[str] = []
    driver = SimpleNamespace(
        CUstreamCaptureMode=SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED="relaxed"),
        cuThreadExchangeStreamCaptureMode=modes.append,
    )
    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.bindings", SimpleNamespace(driver=driver))
    Device(NUMBER).enter()
    assert played.current == NUMBER
    assert modes == ["relaxed"]


@pytest.mark.parametrize(
    ("number", "stream"),
    [(None, "the default"), (0, "the default"), (1, "the default"), (-1, "the loop's"), (7, "another's")],
)
def test_a_consumer_names_its_stream(played: Played, number: int | None, stream: str) -> None:
    """As DLPack counts them."""
    with Device(NUMBER).stream(number):
        assert (played.stream, played.current) == (stream, NUMBER)


def test_next_cannot_be_captured(played: Played) -> None:
    """One sentence, before anything is enqueued, and nothing is held; nor is a loader begun then."""
    gpu = Device(NUMBER)
    played.capturing = True
    with pytest.raises(EngineError, match=r"^loader on cuda:3: next\(\) cannot be captured in a CUDA graph"):
        held(gpu)
    with pytest.raises(EngineError, match=r"cannot be captured"):
        Device(NUMBER)
    assert not played.calls
    assert len(gpu.in_use) == 0


def test_one_event_stands_behind_all_that_is_done_within_a_hold(played: Played) -> None:
    """Also where that raises."""
    gpu = Device(NUMBER)

    def fails() -> None:
        with gpu.hold("read"):
            gpu.empty((2,), torch.uint8)
            msg = "out of memory"
            raise RuntimeError(msg)

    with pytest.raises(RuntimeError, match="out of memory"):
        fails()
    assert [name for name, _ in played.calls] == ["empty", "record"]
    assert len(gpu.in_use) == 1
