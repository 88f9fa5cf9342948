"""The twin's GPUs in the place of real ones, for a test: all that the product asks for a GPU, it asks them."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from kit.twin import Machine
from kit.twin_dali import Dali, install_cupy
from kit.twin_torch import Torch

__all__ = ["twin_of"]


@contextlib.contextmanager
def twin_of(
    kernels: Callable[[str], Any], devices: int = 1, memory: int = 1 << 30, seed: int | None = None
) -> Iterator[Machine]:
    """Within, these are the GPUs. At the end all work is done, and what was done wrong fails the test."""
    from dali_feed.engines.dali import images
    from dali_feed.engines.device import cuda
    from dali_feed.kernels.launch import compiles

    machine = Machine(devices, memory, seed)
    torch, dali = Torch(machine), Dali(machine)
    driver = SimpleNamespace(
        CUstreamCaptureMode=SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED="relaxed"),
        cuThreadExchangeStreamCaptureMode=lambda mode: setattr(machine.mine, "relaxed", mode == "relaxed"),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "cuda", ModuleType("cuda"))
        patch.setitem(sys.modules, "cuda.bindings", SimpleNamespace(driver=driver))
        patch.setattr(cuda, "_streams", {})
        torch.install(patch)
        dali.install(patch)
        patch.setattr(images, "ReleaseUnusedMemory", dali.release)
        patch.setattr(images, "TensorCPU", dali.tensor)
        install_cupy(patch, machine, functools.cache(kernels))
        compiles.cache_clear()
        try:
            yield machine
            machine.finish()
        finally:
            compiles.cache_clear()
            torch.remove()
    assert not machine.errors, "\n".join(dict.fromkeys(machine.errors))
