"""One body for a kernel's tests, run two ways: what g++ makes of the .cu, and the launcher on a GPU.

Either way it takes NumPy arrays, and what the kernel writes stands in them afterwards. On a GPU they lie as they lie
here: as far behind a border, with the same strides, rows that overlap or have gaps between them.
"""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from kernels_host import HostKernel, OnDevice

from dali_feed.kernels.launch import Launch

Kernel = Callable[..., tuple[Launch, ...]]  # takes what the launcher takes, returns what was launched
_BORDER = 256


def both_ways(launcher: Callable[..., None], prepare: Callable[..., Launch | tuple[Launch, ...]]) -> Any:
    """A fixture that runs the kernel of `prepare`, from the module's fixture `host` and, marked gpu, by `launcher`."""

    @pytest.fixture(scope="module", params=["host", pytest.param("gpu", marks=pytest.mark.gpu)])
    def kernel(request: pytest.FixtureRequest) -> Kernel:
        if request.param == "gpu":
            pytest.importorskip("cupy")
            return lambda *arrays, **options: _on_gpu(launcher, prepare, arrays, options)
        host: HostKernel = request.getfixturevalue("host")
        return lambda *arrays, **options: _on_host(host, prepare, arrays, options)

    return kernel


def moved(value: Any, put: Callable[[npt.NDArray[Any]], Any]) -> Any:
    """Arguments with each array, those in a tuple, a dict or a `Mix` too, where `put` puts it."""
    if isinstance(value, np.ndarray):
        return put(value)
    if isinstance(value, dict):
        return {name: moved(each, put) for name, each in value.items()}
    if type(value) is tuple:
        return tuple(moved(each, put) for each in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return type(value)(*(moved(getattr(value, each.name), put) for each in dataclasses.fields(value)))
    return value


def _launches(found: Launch | tuple[Launch, ...]) -> tuple[Launch, ...]:
    return found if isinstance(found, tuple) else (found,)


def _on_host(host: HostKernel, prepare: Any, arrays: Any, options: Any) -> tuple[Launch, ...]:
    jobs = _launches(prepare(*moved(arrays, OnDevice), **moved(options, OnDevice)))
    for job in jobs:
        host.run(job)
    return jobs


@dataclass
class _Device:
    """Copies of host arrays in device memory."""

    cp: Any
    held: list[tuple[npt.NDArray[Any], npt.NDArray[np.uint8], Any]] = field(default_factory=list)

    def put(self, array: npt.NDArray[Any]) -> Any:
        """All bytes from the first element to the last, and an array over them."""
        size = sum((n - 1) * step for n, step in zip(array.shape, array.strides, strict=True)) + array.itemsize
        shift = array.ctypes.data % _BORDER
        span = np.frombuffer((ctypes.c_uint8 * size).from_address(array.ctypes.data), np.uint8)
        room = self.cp.empty(shift + size, self.cp.uint8)
        room[shift:] = self.cp.asarray(span)
        self.held.append((array, span, room[shift:]))
        return self.cp.ndarray(array.shape, array.dtype, room.data + shift, array.strides)

    def fetch(self) -> None:
        for array, span, room in self.held:
            if array.flags.writeable:
                span[...] = self.cp.asnumpy(room)


def _on_gpu(launcher: Any, prepare: Any, arrays: Any, options: Any) -> tuple[Launch, ...]:
    import cupy

    device = _Device(cupy)
    arrays, options = moved(arrays, device.put), moved(options, device.put)
    jobs = _launches(prepare(*arrays, **options))
    launcher(*arrays, **options)
    device.fetch()
    return jobs


def in_turn(rows: Sequence[tuple[str, ...]], values: Sequence[str]) -> list[Any]:
    """A parameter for each row and value: every row, and each of its words with each of the values; others are `long`.

    It is for what no test expects to meet in one row and one value alone, such as a kernel's options and the
    architectures that it is compiled for.
    """
    met: set[tuple[str, str]] = set()
    left, used = list(rows), dict.fromkeys(values, 0)
    chosen: set[tuple[tuple[str, ...], str]] = set()
    wanted = {(word, value) for row in rows for word in row for value in values}

    def new(row: tuple[str, ...], value: str) -> int:
        return len({(word, value) for word in row} - met)

    while left or wanted - met:  # more than a value a row where the rows are too few
        row = left.pop(0) if left else max(rows, key=lambda row: max(new(row, value) for value in values))
        value = min(values, key=lambda value: (-new(row, value), used[value]))
        chosen.add((row, value))
        used[value] += 1
        met |= {(word, value) for word in row}
    return [
        pytest.param(
            row, value, id=f"{' '.join(row)}-{value}", marks=() if (row, value) in chosen else pytest.mark.long
        )
        for row in rows
        for value in values
    ]
