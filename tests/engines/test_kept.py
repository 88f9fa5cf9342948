"""Memory of DALI's on a GPU: read by torch in place or copied, never handed over, and kept until that is done."""

from __future__ import annotations

import threading
import weakref
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from kit.limits import LONG
from nvidia.dali.tensors import TensorCPU

from dali_feed.engines.gpu import device as handover
from dali_feed.engines.gpu import finish as gpu_tail
from dali_feed.engines.gpu.device import MemoryInUse
from dali_feed.feed.batch import Pixels


class Work:
    """An event behind work that goes on until it is told to be done."""

    def __init__(self) -> None:
        self._done = threading.Event()

    def end(self) -> None:
        """Let it be done."""
        self._done.set()

    def query(self) -> bool:
        """Whether it is."""
        return self._done.is_set()

    def synchronize(self) -> None:
        """Wait for it."""
        self._done.wait(LONG)


class Memory:
    """Something to hold, that can be watched."""


def test_memory_is_held_as_long_as_its_work_goes_on() -> None:
    """And not longer than the next batch: on another stream too, whose work may end before older work does."""
    kept, works, memory = MemoryInUse(), [Work() for _ in range(4)], [Memory() for _ in range(4)]
    alive = [weakref.ref(each) for each in memory]
    for work in works[:3]:
        kept.keep(memory.pop(0), work)
    assert [ref() is not None for ref in alive[:3]] == [True] * 3
    works[1].end()
    kept.keep(memory.pop(0), works[3])
    assert [ref() is not None for ref in alive] == [True, False, True, True]
    assert len(kept) == 3


def test_closing_waits_for_the_work() -> None:
    """And holds nothing then."""
    kept, work, memory = MemoryInUse(), Work(), Memory()
    alive = weakref.ref(memory)
    kept.keep(memory, work)
    del memory
    closing = threading.Thread(target=kept.let_go)
    closing.start()
    assert alive() is not None
    work.end()
    closing.join(LONG)
    assert not closing.is_alive()
    assert alive() is None
    assert len(kept) == 0


def test_a_destructor_may_come_back() -> None:
    """Memory that is let go may be the last of a loader, whose end lets go too: neither a hang nor a loss."""
    kept, work, late = MemoryInUse(), Work(), Work()
    memory = Memory()
    weakref.finalize(memory, kept.let_go)
    kept.keep(memory, work)
    del memory
    work.end()
    late.end()
    kept.keep(Memory(), late)
    assert len(kept) <= 1
    kept.let_go()
    assert len(kept) == 0


def test_a_gpu_that_has_failed_ends_no_close() -> None:
    """What a sticky CUDA error ended is let go with the rest, and the loader closes on."""

    class Failed(Work):
        def synchronize(self) -> None:
            msg = "CUDA error: an illegal memory access was encountered"
            raise RuntimeError(msg)

    kept, memory, work = MemoryInUse(), [Memory(), Memory()], Work()
    alive = [weakref.ref(each) for each in memory]
    work.end()
    kept.keep(memory.pop(), Failed())
    kept.keep(memory.pop(), work)
    kept.let_go()
    assert [ref() for ref in alive] == [None, None]


class OfDali:
    """An output as DALI shows one on a GPU. Who takes it through DLPack gives it back by waiting for the device."""

    __cuda_array_interface__: ClassVar[dict[str, Any]] = {
        "shape": (2, 3),
        "typestr": "=B",
        "data": (0xABC0, False),
        "strides": None,
        "version": 2,
    }

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, **options: Any) -> Any:
        pytest.fail("handed over through DLPack")


def test_dalis_memory_on_a_gpu_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch takes it, and where anybody else takes a batch of a user's graph."""
    output = OfDali()
    assert handover.is_foreign(output)
    monkeypatch.setattr(handover, "owned", lambda images, device: (images, device))
    assert handover.tensor_of(output) == (output, torch.device("cuda", 0))
    monkeypatch.setattr(gpu_tail, "exported", lambda *given: given)
    assert Pixels(output, None).__dlpack__(stream=7, copy=None) == (output, None, 0, 7, {"copy": None})


def test_torch_is_shown_memory_in_words_it_knows() -> None:
    """Address and shape as they are, the type in NumPy's spelling, and no other protocol to take it by."""
    seen = handover._Seen(OfDali())
    assert seen.__cuda_array_interface__ == OfDali.__cuda_array_interface__ | {"typestr": "|u1"}
    assert not hasattr(seen, "__dlpack__")


def test_memory_on_the_cpu_is_a_view() -> None:
    """DALI's, NumPy's and torch's own: nothing is copied, and nobody waits for a device."""
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    output = TensorCPU(rows)
    assert not handover.is_foreign(output)
    assert handover.tensor_of(output).data_ptr() == rows.ctypes.data
    tensor = torch.from_numpy(rows)
    assert handover.tensor_of(tensor) is tensor
    assert not handover.is_foreign(tensor)
