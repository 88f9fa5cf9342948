"""Torch before the twin's GPUs: tensors that say they are on one, and `torch.cuda`, which knows of no other.

A tensor of a device has no memory that the host could read. Each operation of torch's on it is put into the thread's
current stream and done there later, by torch on the CPU. Views share memory, `copy_` and `to` are transfers: from
page-locked memory they read it when their turn comes, from any other at once, which the host waits for.
"""

from __future__ import annotations

import contextlib
import functools
import math
import operator
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from kit import twin
from kit.twin import Block, Capture, Lease, Machine, Recorded, place
from torch.utils._pytree import tree_flatten, tree_map

__all__ = ["DeviceTensor", "Torch"]

aten = torch.ops.aten
_NEED_HOST = {  # what gives the host a number or a shape that it must know
    *(aten._local_scalar_dense.default, aten.equal.default, aten.nonzero.default, aten.masked_select.default),
    *(aten.is_nonzero.default, aten._unique2.default, aten.repeat_interleave.Tensor),
}
_INDEXED = ("index", "gather", "scatter", "take", "embedding", "getitem")
_VIEWS = {aten._unsafe_view.default, aten.lift_fresh.default}
_FACTORIES = ("arange", "linspace", "rand", "randn", "randint", "randperm", "eye")
_HOST_MEMORY = "page-locked memory was changed before it was sent, by whoever wrote to what was sent at"


class DeviceTensor(torch.Tensor):
    """A tensor on one of the twin's GPUs: `elements` lie on the CPU, for work that is being done alone."""

    elements: torch.Tensor
    block: Block
    lease: Lease | None  # none where the memory is somebody else's, who must keep it
    torch_: Torch

    @staticmethod
    def __new__(cls: Any, owner: Torch, elements: torch.Tensor, block: Block, lease: Lease | None) -> Any:
        """See the class."""
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            elements.size(),
            strides=elements.stride(),
            storage_offset=elements.storage_offset(),
            dtype=elements.dtype,
            device=torch.device("cuda", block.device),
        )
        made.elements, made.block, made.lease, made.torch_ = elements, block, lease, owner
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        del types
        owner = next(each.torch_ for each in _leaves((args, kwargs)) if isinstance(each, DeviceTensor))
        return owner.dispatch(func, args, kwargs or {})

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"DeviceTensor({tuple(self.shape)}, {self.dtype}, {self.device})"

    def data_ptr(self) -> int:
        """Where the GPU has it."""
        return int(self.block.address + self.elements.storage_offset() * self.elements.itemsize)

    def numpy(self, *, force: bool = False) -> Any:
        """Torch's error."""
        if force:
            return self.cpu().numpy()
        raise TypeError(
            f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host"
            " memory first."
        )

    def __array__(self, *_: Any, **__: Any) -> Any:
        return self.numpy()

    def contiguous(self, memory_format: Any = torch.contiguous_format) -> Any:
        """Not torch's own either."""
        return self if self.is_contiguous(memory_format=memory_format) else self.clone(memory_format=memory_format)

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def tolist(self) -> Any:
        """A copy, which the host waits for."""
        return self.cpu().tolist()

    def __getitem__(self, index: Any) -> Any:
        """Not torch's own, which asks CUDA for the current device."""
        parts = index if isinstance(index, tuple) else (index,)
        if not any(isinstance(each, torch.Tensor | list) for each in parts):
            return DeviceTensor(self.torch_, self.elements[index], self.block, self.lease)
        if any(isinstance(each, torch.Tensor) and each.dtype == torch.bool for each in parts):
            return self.torch_.now(operator.getitem, self, index)
        return self.torch_.later(operator.getitem, (self, index), {}, self.block.device)

    def __setitem__(self, index: Any, value: Any) -> None:
        self.torch_.later(operator.setitem, (self, index, value), {}, self.block.device, (self,))

    def record_stream(self, stream: Any) -> None:
        """Its memory is not used again before what is in that stream when it is let go."""
        self.block.recorded.append(stream.played)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        strides = None if self.is_contiguous() else tuple(step * self.itemsize for step in self.stride())
        shape = tuple(self.shape)
        data = self.data_ptr(), False
        return {"typestr": _typestr(self.dtype), "shape": shape, "strides": strides, "data": data, "version": 2}

    def __dlpack_device__(self) -> Any:
        return 2, self.block.device

    def __dlpack__(self, **options: Any) -> Any:
        stream = options.get("stream")
        mine = self.torch_.machine.current(self.block.device)
        if stream not in (None, -1) and self.torch_.machine.by_handle(stream) is not mine:
            event = twin.Event()
            self.torch_.machine.record(event, mine)
            self.torch_.machine.wait_event(self.torch_.machine.by_handle(stream), event)
        return Capsule(self)


class Capsule:
    """What `__dlpack__` of a tensor on a device gives."""

    def __init__(self, tensor: DeviceTensor) -> None:
        self.tensor = tensor


class Torch:
    """All that is put in the place of torch's own. `patches` are (object, name, value)."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._library: Any = None
        self.cuda = self._cuda()

    def install(self, patch: Any) -> None:
        """From here on to `remove` torch sees these GPUs."""
        for name, value in vars(self.cuda).items():
            patch.setattr(torch.cuda, name, value, raising=False)
        patch.setattr(torch.cuda, "_lazy_init", lambda: None)
        for name, value in vars(self._accelerator()).items():
            patch.setattr(torch.accelerator, name, value)
        for name in _FACTORIES:
            patch.setattr(torch, name, self._factory(getattr(torch, name)))
        for name in ("empty", "as_tensor", "tensor", "from_dlpack"):
            patch.setattr(torch, name, getattr(self, f"_{name}")(getattr(torch, name)))
        patch.setattr(torch.utils.dlpack, "from_dlpack", torch.from_dlpack)  # type: ignore[attr-defined]
        for name in ("to", "cuda", "copy_", "pin_memory", "is_pinned"):
            patch.setattr(torch.Tensor, name, getattr(self, f"_method_{name}")(getattr(torch.Tensor, name)))
        self._library = torch.library.Library("aten", "IMPL", "CUDA")  # type: ignore[no-untyped-call]
        self._library.impl("empty.memory_format", self._empty_there, "CUDA", allow_override=True)
        self._library.impl("empty_strided", self._empty_strided, "CUDA", allow_override=True)

    def remove(self) -> None:
        """Torch's own are back."""
        self._library._destroy()

    # Tensors.

    def new(self, dtype: torch.dtype, size: Any, stride: Any, device: int | None = None) -> DeviceTensor:
        """Memory of the current stream."""
        device = self.machine.mine.device if device is None else device
        room = 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) if math.prod(size) else 0
        lease = self.machine.allocate(room * dtype.itemsize, self.machine.current(device))
        made: DeviceTensor = DeviceTensor(self, lease.block.elements(dtype, size, stride), lease.block, lease)
        return made

    def like(self, shape: torch.Tensor, device: int | None = None) -> DeviceTensor:
        """Of its shape, dtype and strides."""
        return self.new(shape.dtype, shape.size(), shape.stride(), device)

    def _empty_there(
        self, size: Any, *, dtype: Any = None, device: Any = None, memory_format: Any = None, **_: Any
    ) -> Any:
        outline = torch.empty(size, dtype=dtype, device="meta", memory_format=memory_format or torch.contiguous_format)
        return self.like(outline, None if device is None else device.index)

    def _empty_strided(self, size: Any, stride: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
        return self.new(dtype or torch.get_default_dtype(), size, stride, None if device is None else device.index)

    def dispatch(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Do an operation of torch's, or put it into the stream."""
        if func.is_view or func in _VIEWS:
            return self._viewed(func, args, kwargs)
        if func is aten._to_copy.default:
            return self._to_copy(*args, **kwargs)
        if func is aten.copy_.default and isinstance(args[0], torch.Tensor) and isinstance(args[1], torch.Tensor):
            there = [isinstance(each, DeviceTensor) for each in args[:2]]
            if there != [True, True] or args[0].device != args[1].device:
                return self.transfer(args[0], args[1], non_blocking=bool((*args, False)[2]))
        tensors = [each for each in _leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        device = next(each for each in tensors if isinstance(each, DeviceTensor)).device
        for each in tensors:
            if each.device != device and (each.ndim or isinstance(each, DeviceTensor)):
                msg = "Expected all tensors to be on the same device, but found at least two devices,"
                raise RuntimeError(f"{msg} {device} and {each.device}!")
        masks = func is aten.index.Tensor and any(each is not None and each.dtype == torch.bool for each in args[1])
        if func in _NEED_HOST or masks:
            return self.now(func, *args, **kwargs)
        names, written = _signature(func)
        named = dict(zip(names, args, strict=False)) | kwargs
        return self.later(func, args, kwargs, device.index, [named[name] for name in written])

    def _viewed(self, func: Any, args: Any, kwargs: Any) -> Any:
        base = next(each for each in args if isinstance(each, DeviceTensor))
        out = func(*_mapped(_elements, args), **kwargs)
        return _mapped(lambda each: DeviceTensor(self, each, base.block, base.lease), out)

    def _made(self, values: torch.Tensor, device: torch.device) -> DeviceTensor:
        """Values that are known, there, by work of the current stream."""
        out = self.like(values, device.index)
        elements = out.elements
        self.machine.enqueue(self.machine.current(device.index), lambda: elements.copy_(values), writes=[out.block])
        return out

    def now(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """An operation of which the host must know the outcome: it waits for the stream."""
        there = _on_device(args, kwargs)
        stream = self.machine.current(there[0].block.device)
        self.machine.enqueue(stream, None, reads=[each.block for each in there])
        self.wait(stream, "a number for the host")
        out = func(*_mapped(_elements, args), **_mapped(_elements, kwargs))
        return _mapped(lambda each: self._made(each, there[0].device) if isinstance(each, torch.Tensor) else each, out)

    def later(self, func: Any, args: Any, kwargs: Any, device: int, changed: Sequence[DeviceTensor] = ()) -> Any:
        """An operation in the current stream there: it changes some of its arguments, or makes new tensors."""
        self.machine.call("kernel", device)
        stream, reads = self.machine.current(device), [each.block for each in _on_device(args, kwargs)]
        inputs, options = _mapped(_elements, args), {**_mapped(_elements, kwargs), **_meta(kwargs, "cpu")}
        if changed:
            blocks = [each.block for each in changed]
            self.machine.enqueue(stream, lambda: func(*inputs, **options), reads=reads, writes=blocks)
            return changed[0] if len(changed) == 1 else tuple(changed)
        if _is_indexed(func):  # what lies there now is junk, and no index
            outlines = func(*_mapped(_outline, args), **{**_mapped(_outline, kwargs), **_meta(kwargs)})
        else:  # torch knows shapes without numbers too, but imports its compiler for that
            outlines = func(*inputs, **options)
        outs = _mapped(lambda each: self.like(each, device), outlines)
        wanted = [each.elements for each in _leaves(outs)]

        def run() -> None:
            for out, values in zip(wanted, _leaves(func(*inputs, **options)), strict=True):
                out.copy_(values)

        self.machine.enqueue(stream, run, reads=reads, writes=[each.block for each in _on_device(outs)])
        return outs

    # Transfers.

    def _to_copy(self, tensor: DeviceTensor, **options: Any) -> Any:
        device = options.pop("device", None)
        wait = not options.pop("non_blocking", False)
        options.pop("layout", None)
        options.pop("pin_memory", None)
        if device is None or device == tensor.device:
            options = {name: each for name, each in options.items() if each is not None}
            return self.later(aten._to_copy.default, (tensor,), options, tensor.block.device)
        outline = _outline(tensor).to(**{name: each for name, each in options.items() if each is not None})
        if device.type == "cpu":
            out: torch.Tensor = torch.empty_strided(outline.size(), outline.stride(), dtype=outline.dtype)
        else:
            out = self.like(outline, device.index)
        return self.transfer(out, tensor, non_blocking=not wait)

    def transfer(self, to: torch.Tensor, source: torch.Tensor, *, non_blocking: bool) -> torch.Tensor:
        """Copy between the host and a device, or between two of these, on its current stream."""
        machine = self.machine
        there = to if isinstance(to, DeviceTensor) else source
        assert isinstance(there, DeviceTensor)
        stream, at = machine.current(there.block.device), machine.call("copy", there.block.device)
        target, values = _elements(to), _elements(source)
        reads, writes = ([each.block] if isinstance(each, DeviceTensor) else [] for each in (source, to))
        host = to if isinstance(source, DeviceTensor) else source
        pinned = not isinstance(host, DeviceTensor) and self.is_pinned(host)
        if not isinstance(source, DeviceTensor):
            before = source.clone()
            if not pinned:
                values = before

        def run() -> None:
            if pinned and not isinstance(source, DeviceTensor) and not _same_bits(values, before):
                machine.error(f"{_HOST_MEMORY} {at}")
            target.copy_(values)

        if isinstance(to, DeviceTensor) and isinstance(source, DeviceTensor):  # as torch does: the other one waits too
            self._behind(stream, machine.current(source.block.device))
        machine.enqueue(stream, run, reads=reads, writes=writes, at=at, peer=True)
        if isinstance(to, DeviceTensor) and isinstance(source, DeviceTensor):
            self._behind(machine.current(source.block.device), stream)
        elif not pinned or not non_blocking:
            self.wait(stream, "copy" if pinned else "pageable copy")
        return to

    def _behind(self, one: Any, other: Any) -> None:
        if one is not other:
            event = twin.Event()
            self.machine.record(event, other)
            self.machine.wait_event(one, event)

    def wait(self, stream: Any, kind: str) -> None:
        """The host waits for a stream, of which torch's debug mode knows."""
        if self.machine.sync_mode == "error":
            raise RuntimeError("called a synchronizing CUDA operation")
        self.machine.wait_for([stream], kind)

    def pinned(self, outline: torch.Tensor) -> torch.Tensor:
        """Page-locked memory of the host, full of junk; it is of a context."""
        self.machine.call("cudaHostAlloc", captured="unsafe")
        memory = np.full(max(1, outline.numel() * outline.itemsize), twin.TAKEN, np.uint8)
        address = memory.ctypes.data
        self.machine.pinned[address] = memory.nbytes
        weakref.finalize(memory, self.machine.pinned.pop, address, None)
        flat = torch.from_numpy(memory)
        return torch.empty(0, dtype=outline.dtype).set_(flat.untyped_storage(), 0, outline.size(), outline.stride())

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Whether it is page-locked."""
        return tensor.numel() > 0 and tensor.untyped_storage().data_ptr() in self.machine.pinned

    # Torch's functions and methods, and what they do of another kind.

    def _index(self, device: Any) -> int | None:
        """The number of a GPU, where it is one."""
        if isinstance(device, int):
            index = device
        elif isinstance(device, str | torch.device):
            chosen = torch.device(device)
            if chosen.type != "cuda":
                return None
            index = self.machine.mine.device if chosen.index is None else chosen.index
        else:
            return None
        if not 0 <= index < self.machine.devices:
            raise torch.AcceleratorError("CUDA error: invalid device ordinal")
        return index

    def _factory(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def make(*args: Any, device: Any = None, **options: Any) -> Any:
            index = self._index(device)
            if index is None:
                return real(*args, **options) if device is None else real(*args, device=device, **options)
            return self._made(real(*args, **options), torch.device("cuda", index))

        return make

    def _empty(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def empty(*args: Any, pin_memory: bool = False, **options: Any) -> Any:
            if pin_memory:
                return self.pinned(real(*args, **{**options, "device": "meta"}))
            return real(*args, **options)

        return empty

    def _as_tensor(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Any:
            index = self._index(device)
            shown = None if isinstance(data, torch.Tensor) else getattr(data, "__cuda_array_interface__", None)
            if shown is not None:
                return self._shown(shown, index)
            if isinstance(data, DeviceTensor) or (index is not None and isinstance(data, torch.Tensor)):
                return data.to(device=data.device if device is None else device, dtype=dtype or data.dtype)
            if index is None:
                return real(data, dtype=dtype, device=device)
            return real(data, dtype=dtype).to(torch.device("cuda", index))

        return as_tensor

    def _shown(self, shown: dict[str, Any], index: int | None) -> DeviceTensor:
        known = self.machine.at(shown["data"][0])
        if known is None:
            msg = "The specified pointer resides on host memory and is not registered with any CUDA device."
            raise ValueError(msg)
        block, offset = known
        dtype, size, steps = _dtype(shown["typestr"]), shown["shape"], shown.get("strides")
        dense = [math.prod(size[place + 1 :]) for place in range(len(size))]
        stride = dense if steps is None else [step // dtype.itemsize for step in steps]
        if index is not None and index != block.device:
            self.machine.error(f"{place()}: memory of cuda:{block.device} is shown as cuda:{index}'s")
        made: DeviceTensor = DeviceTensor(self, block.elements(dtype, size, stride, offset), block, None)
        return made

    def _tensor(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def tensor(data: Any, *, device: Any = None, **options: Any) -> Any:
            index = self._index(device)
            if index is None:
                return real(data, device=device, **options)
            return real(data, **options).to(torch.device("cuda", index))

        return tensor

    def _from_dlpack(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def from_dlpack(what: Any, **options: Any) -> Any:
            if isinstance(what, Capsule | DeviceTensor):
                return what.tensor if isinstance(what, Capsule) else what
            if not isinstance(what, torch.Tensor) and hasattr(what, "__dlpack_device__"):
                kind, number = what.__dlpack_device__()
                if int(kind) == 2:
                    stream = self.machine.handle(self.machine.current(int(number)))
                    return what.__dlpack__(stream=stream or 1).tensor
            return real(what, **options)

        return from_dlpack

    def _method_to(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def to(tensor: Any, *args: Any, **options: Any) -> Any:
            device: Any = options.get("device", args[0] if args else None)
            like = device if isinstance(device, torch.Tensor) else None
            index = self._index(device if like is None else like.device)
            if index is None:
                return real(tensor, *args, **options)
            if like is not None:
                options = {"dtype": like.dtype} | options
            options.pop("device", None)
            rest = dict(zip(("dtype", "non_blocking", "copy"), args[1:], strict=False)) if args else {}
            options = rest | options
            if isinstance(tensor, DeviceTensor):
                return real(tensor, device=torch.device("cuda", index), **options)
            non_blocking = options.pop("non_blocking", False)
            options.pop("copy", None)
            plain = real(tensor, **options) if options else tensor
            return self.transfer(self.like(plain, index), plain, non_blocking=non_blocking)

        return to

    def _method_copy_(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def copy_(tensor: Any, source: Any, non_blocking: bool = False) -> Any:
            if isinstance(tensor, DeviceTensor) or isinstance(source, DeviceTensor):
                return self.dispatch(aten.copy_.default, (tensor, source, non_blocking), {})
            return real(tensor, source, non_blocking)

        return copy_

    def _method_cuda(self, real: Callable[..., Any]) -> Callable[..., Any]:
        del real

        def cuda(tensor: Any, device: Any = None, non_blocking: bool = False, **_: Any) -> Any:
            return tensor.to("cuda" if device is None else device, non_blocking=non_blocking)

        return cuda

    def _method_pin_memory(self, real: Callable[..., Any]) -> Callable[..., Any]:
        del real

        def pin_memory(tensor: Any, device: Any = None) -> Any:
            del device
            return tensor if self.is_pinned(tensor) else self.pinned(_outline(tensor)).copy_(tensor)

        return pin_memory

    def _method_is_pinned(self, real: Callable[..., Any]) -> Callable[..., Any]:
        del real

        def is_pinned(tensor: Any, device: Any = None) -> bool:
            del device
            return not isinstance(tensor, DeviceTensor) and self.is_pinned(tensor)

        return is_pinned

    def _accelerator(self) -> SimpleNamespace:
        """`torch.accelerator`, as torch's own loader asks it."""
        return SimpleNamespace(
            is_available=lambda: True,
            current_accelerator=lambda *_: torch.device("cuda"),
            current_device_index=self.cuda.current_device,
            set_device_index=self.cuda.set_device,
        )

    def _cuda(self) -> SimpleNamespace:  # noqa: PLR0915
        """`torch.cuda`."""
        machine, owner = self.machine, self

        class Event:
            def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
                del enable_timing, interprocess
                machine.call("event")
                self.played, self.blocking = twin.Event(), blocking

            def record(self, stream: Any = None) -> None:
                machine.record(self.played, machine.current() if stream is None else stream.played)

            def wait(self, stream: Any = None) -> None:
                machine.wait_event(machine.current() if stream is None else stream.played, self.played)

            def query(self) -> bool:
                return machine.passed(self.played)

            def elapsed_time(self, other: Any) -> float:
                return float(machine.passed(self.played) and machine.passed(other.played))

            def synchronize(self) -> None:
                if not self.blocking:
                    machine.calls["spinning wait"] += 1
                machine.synchronize(self.played)

        class Stream:
            def __init__(self, device: Any = None, priority: int = 0, *, played: Any = None) -> None:
                index = machine.mine.device if device is None else owner._index(device)
                assert index is not None
                if played is None:
                    machine.call("stream", index)
                    played = machine.pooled_stream(index, priority)
                self.played = played

            @property
            def device(self) -> torch.device:
                return torch.device("cuda", self.played.device)

            @property
            def cuda_stream(self) -> int:
                return machine.handle(self.played)

            def __eq__(self, other: object) -> bool:
                return isinstance(other, Stream) and self.played is other.played

            def __hash__(self) -> int:
                return hash(self.played)

            def wait_event(self, event: Any) -> None:
                machine.wait_event(self.played, event.played)

            def wait_stream(self, stream: Any) -> None:
                owner._behind(self.played, stream.played)

            def record_event(self, event: Any = None) -> Any:
                event = Event() if event is None else event
                event.record(self)
                return event

            def query(self) -> bool:
                return bool(self.played.done == self.played.last)

            def synchronize(self) -> None:
                owner.wait(self.played, "stream")

        def external(handle: int, device: Any = None, **_: Any) -> Any:
            return Stream(device, played=machine.by_handle(handle))

        @contextlib.contextmanager
        def device(number: Any) -> Iterator[None]:
            index = owner._index(number)
            before = machine.mine.device
            machine.mine.device = before if index is None else index
            try:
                yield
            finally:
                machine.mine.device = before

        @contextlib.contextmanager
        def stream(stream: Any) -> Iterator[None]:
            if stream is None:
                yield
                return
            with device(stream.played.device):
                before = machine.current()
                machine.mine.streams[before.device] = stream.played
                try:
                    yield
                finally:
                    machine.mine.streams[before.device] = before

        def set_device(number: Any) -> None:
            index = owner._index(number)
            machine.mine.device = machine.mine.device if index is None else index
            machine.call("set device")

        def synchronize(number: Any = None) -> None:
            index = machine.mine.device if number is None else owner._index(number)
            if machine.sync_mode == "error":
                raise RuntimeError("called a synchronizing CUDA operation")
            machine.wait_for([each for each in machine.streams if each.device == index], "device")

        def index_of(number: Any = None) -> int:
            index = machine.mine.device if number is None else owner._index(number)
            assert index is not None
            return index

        def mem_get_info(number: Any = None) -> tuple[int, int]:
            machine.call("memory", index_of(number))
            return machine.free_bytes(index_of(number)), machine.memory

        def memory_snapshot() -> list[dict[str, Any]]:
            return [
                {"address": each.address, "total_size": each.size} for each in machine._blocks if each.owner == "torch"
            ]

        class CUDAGraph:
            def __init__(self, **_: Any) -> None:
                self.work: list[Recorded] = []
                self.leases: list[Lease] = []

            def replay(self) -> None:
                machine.call("launch")
                for run, reads, writes in self.work:
                    machine.enqueue(machine.current(), run, reads=reads, writes=writes)

        @contextlib.contextmanager
        def graph(
            graph: Any, pool: Any = None, stream: Any = None, capture_error_mode: str = "global"
        ) -> Iterator[None]:
            del pool
            synchronize()
            own = Stream() if stream is None else stream
            capture = Capture(capture_error_mode, threading.get_ident(), own.played)
            own.played.graph = graph.work
            machine.captures.append(capture)
            try:
                with cuda.stream(own):
                    yield
            finally:
                machine.captures.remove(capture)
                own.played.graph, graph.leases = None, capture.leases
            if capture.broken:
                raise torch.AcceleratorError(f"{twin.INVALIDATED} ({capture.broken})")

        def properties(number: Any = None) -> Any:
            about = {"name": "twin", "uuid": f"twin-{index_of(number)}", "total_memory": machine.memory}
            return SimpleNamespace(**about, major=9, minor=0)

        cuda = SimpleNamespace(
            Event=Event,
            Stream=Stream,
            ExternalStream=external,
            CUDAGraph=CUDAGraph,
            graph=graph,
            device=device,
            stream=stream,
            set_device=set_device,
            synchronize=synchronize,
            mem_get_info=mem_get_info,
            memory_snapshot=memory_snapshot,
            get_device_properties=properties,
            is_available=lambda: True,
            is_initialized=lambda: True,
            init=lambda: None,
            device_count=lambda: machine.devices,
            current_device=lambda: machine.mine.device,
            get_device_name=lambda _=None: "twin",
            get_device_capability=lambda _=None: (9, 0),
            _primary_context_devices=lambda: sorted(machine.touched),
            current_stream=lambda number=None: Stream(index_of(number), played=machine.current(index_of(number))),
            default_stream=lambda number=None: Stream(index_of(number), played=machine.default[index_of(number)]),
            empty_cache=lambda: machine.empty_cache(machine.mine.device),
            memory_allocated=lambda number=None: machine.taken[index_of(number)],
            is_current_stream_capturing=lambda: machine.current().graph is not None,
            set_sync_debug_mode=lambda mode: setattr(machine, "sync_mode", mode),
            _sleep=lambda _: machine.enqueue(machine.current(), None, long=True),
            utilization=lambda _=None: 0,
        )
        return cuda


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (
        bool(one.contiguous().numpy().tobytes() == other.contiguous().numpy().tobytes())
        if (one.dtype != torch.bfloat16)
        else _same_bits(one.view(torch.int16), other.view(torch.int16))
    )


def _on_device(*what: Any) -> list[DeviceTensor]:
    return [each for each in _leaves(what) if isinstance(each, DeviceTensor)]


def _leaves(what: Any) -> list[Any]:
    """All that is in tuples, lists and dicts: torch's own way to them costs more than the work that is played here."""
    kind = type(what)
    if kind is tuple or kind is list:
        return [leaf for each in what for leaf in _leaves(each)]
    if kind is dict:
        return [leaf for each in what.values() for leaf in _leaves(each)]
    return tree_flatten(what)[0] if isinstance(what, tuple) else [what]


def _mapped(change: Callable[[Any], Any], what: Any) -> Any:
    """The same with each changed."""
    kind = type(what)
    if kind is tuple or kind is list:
        return kind([_mapped(change, each) for each in what])
    if kind is dict:
        return {name: _mapped(change, each) for name, each in what.items()}
    return tree_map(change, what) if isinstance(what, tuple) else change(what)


@functools.cache
def _signature(func: Any) -> tuple[list[str], list[str]]:
    """The names of an operation's arguments, and of those that it writes to."""
    schema = func._schema.arguments
    return [each.name for each in schema], [
        each.name for each in schema if each.alias_info and each.alias_info.is_write
    ]


@functools.cache
def _typestr(dtype: torch.dtype) -> str:
    """NumPy's name of it."""
    return "<V2" if dtype == torch.bfloat16 else np.dtype(str(dtype).removeprefix("torch.")).str


@functools.cache
def _dtype(typestr: str) -> torch.dtype:
    return torch.from_numpy(np.empty(0, np.dtype(typestr))).dtype


@functools.cache
def _is_indexed(func: Any) -> bool:
    return any(word in str(func) for word in _INDEXED)


def _elements(each: Any) -> Any:
    return each.elements if isinstance(each, DeviceTensor) else each


def _outline(each: Any) -> Any:
    """Its shape and strides, without memory."""
    if isinstance(each, torch.Tensor):
        return torch.empty_strided(each.size(), each.stride(), dtype=each.dtype, device="meta")
    return each


def _meta(options: dict[str, Any], device: str = "meta") -> dict[str, Any]:
    return {"device": torch.device(device)} if options.get("device") is not None else {}
