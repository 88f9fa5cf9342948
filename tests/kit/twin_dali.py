"""DALI's GPU backend and CuPy before the twin's GPUs.

A pipeline of a GPU is built as it is, by DALI's own Python, and runs on DALI's CPU backend; what would come out on the
GPU appears in its memory when DALI's own stream gets there. A kernel is compiled for the host by g++ and is run when
its stream gets there, on the memory at the addresses that it was launched with.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable
from importlib.resources import files
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from kit.twin import Block, Event, Lease, Machine
from kit.twin_torch import Capsule
from nvidia.dali import backend
from nvidia.dali.tensors import TensorCPU

from dali_feed.kernels import launch

__all__ = ["Dali", "cupy_of"]

CPU_ONLY = -99999  # DALI's number of a pipeline without a GPU


class Images:
    """A list of DALI's in a device's memory, and `as_tensor` of it: both have the same memory."""

    def __init__(self, machine: Machine, listed: Any, lease: Lease, dense: Any) -> None:
        self._machine, self._listed, self._lease, self._dense = machine, listed, lease, dense

    def is_dense_tensor(self) -> bool:
        return self._dense is not None

    def shape(self) -> Any:
        return self._listed.shape()

    def as_tensor(self) -> OneTensor:
        return OneTensor(self._lease, self._dense)

    def __len__(self) -> int:
        return len(self._listed)


class OneTensor:
    """DALI's tensor on a GPU."""

    def __init__(self, lease: Lease, dense: Any) -> None:
        self._lease, self._outline = lease, (dense.shape, dense.dtype)

    def shape(self) -> tuple[int, ...]:
        return tuple(self._outline[0])

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        shape, dtype = self._outline
        typestr = "=B" if dtype == np.uint8 else dtype.str  # as DALI writes it
        place = (self._lease.block.address, False)
        return {"shape": tuple(shape), "typestr": typestr, "data": place, "strides": None, "version": 2}

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self._lease.block.device

    def __dlpack__(self, **_: Any) -> Capsule:
        tensor: Any = torch.as_tensor(self)
        tensor.lease = self._lease
        return Capsule(tensor)


class Dali:
    """DALI's backend: a pipeline that is given a GPU runs on the CPU and puts its outputs there."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._pipeline, self._params = backend.Pipeline, backend._PipelineParams
        self._graphs: dict[bytes, list[str]] = {}

    def install(self, patch: Any) -> None:
        """From here on DALI finds these GPUs."""
        for name in ("AddArg", "AddInput", "AddOutput"):
            real = getattr(backend.OpSpec, name)
            patch.setattr(backend.OpSpec, name, getattr(self, f"_{name}")(real))
        patch.setattr(backend, "Pipeline", functools.partial(Pipeline, self))
        patch.setattr(backend, "_PipelineParams", Params)
        patch.setattr(backend, "ReleaseUnusedMemory", self.release)

    def tensor(self, memory: Any, **how: Any) -> Any:
        """`TensorCPU`: memory that is said to be page-locked must be, and DALI is not told, as it would ask CUDA."""
        pinned = how.pop("is_pinned", False)
        if pinned and np.frombuffer(memory, np.uint8).ctypes.data not in self.machine.pinned:
            self.machine.error("memory that DALI is told is page-locked is not")
        return TensorCPU(memory, **how)

    def release(self) -> None:
        """Give back what DALI's pools keep."""
        self.machine.calls["ReleaseUnusedMemory"] += 1
        for device in range(self.machine.devices):
            self.machine.empty_cache(device, "dali")

    @staticmethod
    def _AddArg(real: Callable[..., Any]) -> Callable[..., Any]:  # noqa: N802 - DALI's name
        def add(spec: Any, name: str, value: Any, *rest: Any) -> Any:
            return real(spec, name, "cpu" if name == "device" else value, *rest)

        return add

    @staticmethod
    def _AddInput(real: Callable[..., Any]) -> Callable[..., Any]:  # noqa: N802
        def add(spec: Any, name: str, device: str, *rest: Any) -> Any:
            del device
            return real(spec, name, "cpu", *rest)

        return add

    _AddOutput = _AddInput


class Params:
    """What a pipeline is made with; DALI's own say that there is no GPU."""

    def __init__(self, **options: Any) -> None:
        self.device = options.get("device_id")
        self.own = _PARAMS(**{**options, "device_id": None})


_PARAMS = backend._PipelineParams
_PIPELINE = backend.Pipeline


class Pipeline:
    """DALI's pipeline below its Python."""

    def __init__(self, dali: Dali, *made_of: Any) -> None:
        *graph, params = made_of
        self._dali, self._machine = dali, dali.machine
        self._device = None if params.device in (None, CPU_ONLY) else params.device
        self._devices = dali._graphs.get(graph[0], []) if graph else []
        self._own = _PIPELINE(*graph, params.own)
        if self._device is not None:
            self._machine.call("dali pipeline", self._device, captured="unsafe")
            self._stream = self._machine.new_stream(self._device, "DALI's stream")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def requires_gpu(self) -> bool:
        return False

    def device_id(self) -> int:
        return CPU_ONLY if self._device is None else self._device

    def Build(self, *outputs: Any) -> None:  # noqa: N802
        self._own.Build(*self._described(outputs))

    def SetOutputDescs(self, outputs: Any) -> None:  # noqa: N802
        self._own.SetOutputDescs(*self._described([outputs]))

    def _described(self, outputs: Any) -> list[Any]:
        if not outputs:
            return []
        self._devices = [each[1] for each in outputs[0]]
        return [[(each[0], "cpu", *each[2:]) for each in outputs[0]]]

    def SerializeToProtobuf(self) -> bytes:  # noqa: N802
        graph = bytes(self._own.SerializeToProtobuf())
        self._dali._graphs[graph] = self._devices
        return graph

    def SetExternalTLInput(self, *what: Any) -> None:  # noqa: N802
        if self._device is not None:
            self._machine.call("dali feed", self._device)
        self._own.SetExternalTLInput(*what)

    def Run(self) -> None:  # noqa: N802
        if self._device is not None:
            self._machine.call("dali run", self._device)
        self._own.Run()

    def Outputs(self, stream: Any = None) -> Any:  # noqa: N802
        """The outputs, for which the stream waits; without one the host does."""
        if self._device is None:
            return self._own.Outputs(stream)
        machine = self._machine
        outputs = self._own.Outputs(None)
        machine.call("dali outputs", self._device)
        there = [self._moved(each, on) for each, on in zip(outputs, self._devices, strict=True)]
        arrived = Event()
        machine.record(arrived, self._stream)
        if stream is None:
            machine.calls["spinning wait"] += 1
            machine.synchronize(arrived, "outputs of DALI")
        else:
            machine.wait_event(machine.by_handle(stream.value or 0), arrived)
        return tuple(there)

    def _moved(self, output: Any, device: str) -> Any:
        if device != "gpu":
            return output
        dense = np.asarray(output.as_tensor()).copy() if output.is_dense_tensor() else None
        size = 1 if dense is None else dense.nbytes
        lease = self._machine.allocate(size, self._stream, "dali")
        if dense is not None:
            memory, content = lease.block.bytes, torch.from_numpy(dense.reshape(-1).view(np.uint8))
            self._machine.enqueue(
                self._stream, lambda: memory[: len(content)].copy_(content), writes=[lease.block], at="DALI's graph"
            )
        return Images(self._machine, output, lease, dense)


class DriverError(RuntimeError):
    """CuPy's."""


def cupy_of(machine: Machine, kernels: Callable[[str], Any]) -> dict[str, ModuleType]:
    """CuPy's modules, as far as a launch asks for them; `kernels` compiles one by its name, for the host."""
    cupy, cuda, compiler = (ModuleType(name) for name in ("cupy", "cupy.cuda", "cupy.cuda.compiler"))

    class RawModule:
        def __init__(self, code: str, backend: str, options: tuple[str, ...]) -> None:
            del code, backend
            self._options = options[len(launch.OPTIONS) :]

        def get_function(self, name: str) -> Any:
            return _Kernel(machine, kernels(name), name, self._options)

    def attributes(address: int) -> Any:
        known = machine.at(address)
        if known is None:
            return SimpleNamespace(type=0, device=-2)
        return SimpleNamespace(type=2, device=known[0].device)

    runtime = SimpleNamespace(
        getDevice=lambda: machine.mine.device,
        runtimeGetVersion=lambda: 13020,
        pointerGetAttributes=attributes,
        memoryTypeDevice=2,
        memoryTypeManaged=3,
    )
    compiler.CompileException = type("CompileException", (Exception,), {})  # type: ignore[attr-defined]
    cuda.runtime, cuda.compiler = runtime, compiler  # type: ignore[attr-defined]
    cuda.Device = lambda: SimpleNamespace(compute_capability="90")  # type: ignore[attr-defined]
    cupy.cuda, cupy.RawModule, cupy.__version__ = cuda, RawModule, "of the twin"  # type: ignore[attr-defined]
    return {"cupy": cupy, "cupy.cuda": cuda, "cupy.cuda.compiler": compiler}


class _Kernel:
    """`cupy.RawKernel`: the first launch of it waits for the device, which loads it then."""

    def __init__(self, machine: Machine, host: Any, name: str, options: tuple[str, ...]) -> None:
        self._machine, self._host, self._name, self._options = machine, host, name, options
        self._loaded = False
        source = (files("dali_feed.kernels") / f"{name}.cu").read_text(encoding="utf-8")
        signature = re.search(rf"__global__[^{{]*?\b{name}\(([^)]*)\)", source)
        assert signature is not None
        self._changes = [not each.strip().startswith("const") for each in signature[1].split(",")]

    def compile(self) -> None:
        self._machine.call("compile")

    def __call__(self, grid: Any, block: Any, arguments: tuple[Any, ...], stream: Any = None) -> None:
        machine = self._machine
        mine = machine.mine.device
        played = machine.current() if stream is None else machine.by_handle(stream.ptr)
        at = machine.call("launch")
        if played.device != mine:
            raise DriverError("CUDA_ERROR_INVALID_HANDLE: invalid resource handle")
        if not self._loaded:
            self._loaded = True
            machine.wait_for([each for each in machine.streams if each.device == mine], "loading a kernel")
        reads: list[Block] = []
        writes: list[Block] = []
        real = {}
        for number, (value, changes) in enumerate(zip(arguments, self._changes, strict=True)):
            if value.dtype == np.uint64 and value:
                known = machine.at(int(value))
                if known is None:
                    machine.error(f"{at}: kernel {self._name} is given memory that is none of a GPU")
                    return
                (writes if changes else reads).append(known[0])
                value = np.uint64(known[0].bytes.data_ptr() + known[1])  # noqa: PLW2901
            real[str(number)] = value
        job = launch.Launch(self._name, self._options, grid, block, real)
        machine.enqueue(played, lambda: self._host.run(job), reads=reads, writes=writes, at=at)


def install_cupy(patch: Any, machine: Machine, kernels: Callable[[str], Any]) -> None:
    """From here on kernels are launched there."""
    compiler: Any = ModuleType("cupy_backends.cuda.libs")
    compiler.nvrtc = SimpleNamespace(getVersion=lambda: (13, 2))
    for name, module in {**cupy_of(machine, kernels), "cupy_backends.cuda.libs": compiler}.items():
        patch.setitem(sys.modules, name, module)
    patch.setattr(launch, "_kernels", {})
