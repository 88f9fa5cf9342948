"""The way to a launch, before a CUDA that is played: whose device it is, and what is refused."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from kernels_host import OnDevice

from dali_feed.errors import ConfigError
from dali_feed.kernels import launch
from dali_feed.kernels.finish import finish

IMAGES, OUT = np.zeros((2, 4, 6, 3), np.uint8), np.zeros((2, 3, 4, 6), np.float32)
DEVICE, HOST = 2, 1  # kinds of memory, as the runtime counts them


class Played:
    """A CUDA whose current device is number 1, with memory elsewhere at one address; launches are kept."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, elsewhere: int = 0, place: tuple[int, int] = (DEVICE, 1)
    ) -> None:
        self.launched: list[tuple[Any, ...]] = []
        self.elsewhere, self.place = elsewhere, place
        cupy, compiler = ModuleType("cupy"), ModuleType("cupy.cuda.compiler")
        runtime = SimpleNamespace(
            getDevice=lambda: 1, pointerGetAttributes=self.place_of, memoryTypeDevice=DEVICE, memoryTypeManaged=3
        )
        vars(cupy).update(cuda=SimpleNamespace(runtime=runtime, Device=None), RawModule=self.module)
        vars(compiler)["CompileException"] = ValueError
        monkeypatch.setitem(sys.modules, "cupy", cupy)
        monkeypatch.setitem(sys.modules, "cupy.cuda.compiler", compiler)
        monkeypatch.setattr(launch, "_kernels", {})

    def place_of(self, pointer: int) -> Any:
        """Where memory lies."""
        kind, device = self.place if pointer == self.elsewhere else (DEVICE, 1)
        return SimpleNamespace(type=kind, device=device)

    def module(self, **_: Any) -> Any:
        """A module with one function."""

        def function(*given: Any, stream: Any) -> None:
            self.launched.append((*given, stream))

        vars(function)["compile"] = lambda: None
        return SimpleNamespace(get_function=lambda _: function)


def test_a_kernel_is_launched_on_the_device_that_torch_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is compiled once for that one, and CuPy is asked for no other: it would put back what it was told before."""
    cuda = Played(monkeypatch)
    for stream in (7, SimpleNamespace(cuda_stream=8)):
        finish(OnDevice(IMAGES), OnDevice(OUT), stream=stream)
    assert [job[-1].ptr for job in cuda.launched] == [7, 8]
    assert [device for _, _, device in launch._kernels] == [1]


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ((DEVICE, 0), "images must lie on the current device, cuda:1, .* found cuda:0"),
        ((HOST, 0), "images must lie in a GPU's memory, found memory of the host"),
    ],
)
def test_memory_of_another_place_is_refused(monkeypatch: pytest.MonkeyPatch, place: tuple[int, int], told: str) -> None:
    """By name, before it is a fault that ends the process's work there."""
    cuda = Played(monkeypatch, IMAGES.ctypes.data, place)
    with pytest.raises(ConfigError, match=f"^finish: {told}"):
        finish(OnDevice(IMAGES), OnDevice(OUT), stream=7)
    assert not cuda.launched
