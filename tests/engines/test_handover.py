"""Between a batch and its GPU: small arrays are sent in one block, and memory of DALI's is read in place and kept."""

from __future__ import annotations

import inspect
import threading
import weakref
from dataclasses import fields
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of
from kit.limits import LONG
from kit.recorded import Recorded
from numpy.typing import NDArray
from nvidia.dali.tensors import TensorCPU

from dali_feed.engines.device.cuda import Device, InUse, shown
from dali_feed.engines.device.parcel import ALIGNED, Parcels, can_travel
from dali_feed.engines.finish import tensor_of
from dali_feed.transforms.program import Finish, Tail

pytestmark = pytest.mark.slow

NAMES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
SHAPES = arrays_of.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)
ARRAYS = st.sampled_from(NAMES).flatmap(lambda name: arrays_of.arrays(np.dtype(name), SHAPES))
ROWS = st.dictionaries(st.text(max_size=3), ARRAYS, max_size=8)


def same(found: NDArray[Any], wanted: NDArray[Any]) -> bool:
    """Dtype, shape and bits, of NaNs too."""
    return (found.dtype, found.shape, found.tobytes()) == (wanted.dtype, wanted.shape, wanted.tobytes())


@given(ROWS)
def test_what_arrives_is_what_was_sent(rows: dict[str, NDArray[Any]]) -> None:
    """As tensors of torch's on the other side, after one copy, though their own memory is written to meanwhile."""
    gpu = Recorded()
    wanted = {name: values.copy() for name, values in rows.items()}
    sent = Parcels(gpu)(rows)
    gpu.wait()
    assert list(sent) == list(wanted)
    assert gpu.calls.count("send") == bool(rows)
    for name, tensor in sent.items():
        assert tensor.is_contiguous()
        assert tensor.storage_offset() * tensor.element_size() % ALIGNED == 0
        assert same(tensor.numpy(), wanted[name])


def test_arrays_of_any_strides_are_packed() -> None:
    """A slice of a chunk, every second row, a transposed array, one value for all."""
    rows = np.arange(24, dtype=np.int32).reshape(4, 6)
    given = {"cut": rows[1:3], "step": rows[::2, ::-1], "turned": rows.T, "one": np.broadcast_to(np.float32(2), (5, 2))}
    gpu = Recorded()
    sent = Parcels(gpu)(given)
    gpu.wait()
    for name, values in given.items():
        assert np.array_equal(sent[name].numpy(), values)


@pytest.mark.parametrize(
    "values", [np.array(["a"]), np.array([None]), np.array([1], ">i4"), np.zeros(2, "longdouble"), [1, 2], "text"]
)
def test_what_torch_has_no_dtype_for_stays(values: Any) -> None:
    """Texts, objects, another byte order and what is no array are not sent, and what is beside them is."""
    assert not can_travel(values)
    assert list(Parcels(Recorded())({"a": values, "b": np.zeros(2)})) == ["b"]


def test_no_row_of_a_tail_stays_behind() -> None:
    """Whatever a sample takes into the finish step travels with the batch, its colour steps as well."""
    finish = Finish("float32", (1.0,) * 3, (0.0,) * 3, flip_x=True, flip_y=True, layout="NCHW", adjusts=4)
    rows = {each.name: np.zeros((2, 4, 2), np.float32) for each in fields(Tail) if each.name != "finish"}
    ((tail,), _) = Parcels(Recorded()).with_tails([Tail(finish, **rows)], {})
    assert all(isinstance(getattr(tail, name), torch.Tensor) for name in rows)
    assert "adjust" in rows


class Work(threading.Event):
    """An event behind work that goes on until it is set."""

    query = threading.Event.is_set

    def synchronize(self) -> None:
        """Wait for it."""
        self.wait(LONG)


class Memory:
    """Something to hold, that can be watched."""


def test_memory_is_held_as_long_as_its_work_goes_on() -> None:
    """And not longer than the next batch: on another stream too, whose work may end before older work does."""
    kept, works, memory = InUse(), [Work() for _ in range(4)], [Memory() for _ in range(4)]
    alive = [weakref.ref(each) for each in memory]
    for work in works[:3]:
        kept.keep(memory.pop(0), work)
    assert [ref() is not None for ref in alive[:3]] == [True] * 3
    works[1].set()
    kept.keep(memory.pop(0), works[3])
    assert [ref() is not None for ref in alive] == [True, False, True, True]
    assert len(kept) == 3


def test_a_destructor_may_come_back() -> None:
    """Memory that is let go may be the last of a loader, whose end lets go too: neither a hang nor a loss."""
    kept, work, late = InUse(), Work(), Work()
    memory = Memory()
    weakref.finalize(memory, kept.drain)
    kept.keep(memory, work)
    del memory
    work.set()
    late.set()
    kept.keep(Memory(), late)
    assert len(kept) <= 1
    kept.drain()
    assert len(kept) == 0


class Failed(Work):
    """Work that a sticky CUDA error ended."""

    def synchronize(self) -> None:
        """Raise it."""
        msg = "CUDA error: an illegal memory access was encountered"
        raise RuntimeError(msg)


@pytest.mark.parametrize("others", [0, 1])
def test_closing_waits_for_the_work_and_holds_nothing_then(others: int) -> None:
    """Also behind work that a GPU has failed: that is let go with the rest, and the loader closes on."""
    kept, work, memory = InUse(), Work(), [Memory() for _ in range(1 + others)]
    alive = [weakref.ref(each) for each in memory]
    for _ in range(others):
        kept.keep(memory.pop(0), Failed())
    kept.keep(memory.pop(), work)
    closing = threading.Thread(target=kept.drain)
    closing.start()
    assert alive[-1]() is not None
    work.set()
    closing.join(LONG)
    assert not closing.is_alive()
    assert [ref() for ref in alive] == [None] * len(alive)
    assert len(kept) == 0


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


def test_torch_is_shown_memory_in_words_it_knows() -> None:
    """Address and shape as they are, the type in NumPy's spelling, and no other protocol to take it by."""
    seen = shown(OfDali())
    assert seen.__cuda_array_interface__ == OfDali.__cuda_array_interface__ | {"typestr": "|u1"}
    assert not hasattr(seen, "__dlpack__")


def test_memory_on_the_cpu_is_a_view() -> None:
    """DALI's, NumPy's and torch's own: nothing is copied, and nobody waits for a device."""
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert tensor_of(TensorCPU(rows)).data_ptr() == rows.ctypes.data
    tensor = torch.from_numpy(rows)
    assert tensor_of(tensor) is tensor


def test_the_recording_device_asks_no_gpu_for_anything() -> None:
    """Each method of a `Device` is its own, with the same arguments: what runs on one runs on the other."""
    for name, method in vars(Device).items():
        if not name.startswith("_"):
            assert name in vars(Recorded)
            own = inspect.signature(vars(Recorded)[name])
            assert own.parameters.keys() == inspect.signature(method).parameters.keys()
