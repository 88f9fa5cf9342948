"""A device on the CPU that writes down what it is asked for: which call comes when, and that nothing is read too soon.

What is sent lies in other memory, full of junk until `wait`. What is read within `hold` is kept until its event passes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from dali_feed.engines.device.cuda import Device, InUse
from dali_feed.engines.finish import by_torch, scaled_by_torch
from dali_feed.kernels.augment import augment, augment_reference
from dali_feed.kernels.finish import finish
from dali_feed.kernels.jitter import jitter_reference
from dali_feed.kernels.unpack import unpack

JUNK = 0xEE


class Passing:
    """An event that passes when a test says so, or when somebody waits for it."""

    def __init__(self) -> None:
        self.passed = False

    def query(self) -> bool:
        """Whether it has."""
        return self.passed

    def synchronize(self) -> None:
        """Wait for it."""
        self.passed = True


class Recorded(Device):
    """See `Device`. `calls` are the names of what changes a GPU, in order."""

    def __init__(self) -> None:
        self.number = 0
        self.calls: list[str] = []
        self.in_use, self.events = InUse(), list[Passing]()
        self._coming: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._inside = self._sending = False

    def enter(self) -> None:
        """Nothing is the thread's."""

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Plain memory."""
        return torch.empty(shape, dtype=dtype)

    def send(self, here: torch.Tensor) -> torch.Tensor:
        """Into memory that has nothing yet; `here` is written to at once, as memory is that is used again."""
        self.calls.append("send")
        there = torch.empty_like(here)
        _spoil(there)
        self._coming.append((there, here.clone()))
        _spoil(here)
        if self._sending:
            self._arrive()
        return there

    @contextlib.contextmanager
    def sending(self) -> Iterator[Any]:
        """Work in here finds what was sent."""
        self._arrive()
        self._sending = True
        try:
            yield None
        finally:
            self._sending = False

    def wait(self) -> None:
        """It arrives."""
        self.calls.append("wait")
        self._arrive()
        self._coming.clear()

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Plain memory."""
        return torch.empty(shape, dtype=dtype)

    def copy(self, there: Any) -> torch.Tensor:
        """Within `hold` alone."""
        seen = self.view(there)
        self._reads("copy", seen)
        return seen.clone()

    def view(self, images: Any) -> torch.Tensor:
        """As it is."""
        seen: torch.Tensor = images if isinstance(images, torch.Tensor) else torch.utils.dlpack.from_dlpack(images)
        return seen

    def launch(self, kernel: Callable[..., None], *arrays: Any, **settings: Any) -> None:
        """What the kernel's reference makes. Within `hold` alone."""
        rows = [each for each in settings.values() if isinstance(each, torch.Tensor)]
        self._reads("launch", *arrays, *rows)
        if kernel is finish:
            by_torch(*arrays, **settings)
        elif kernel in (unpack, scaled_by_torch):
            scaled_by_torch(*arrays, **settings)
        elif kernel is augment:
            weights = None if settings["weights"] is None else settings["weights"].numpy()
            made = augment_reference(arrays[0].numpy(), arrays[2].numpy(), weights=weights)
            arrays[1].copy_(torch.from_numpy(made))
        else:
            arrays[1].copy_(torch.from_numpy(jitter_reference(arrays[0].numpy(), arrays[2].numpy())))

    @contextlib.contextmanager
    def hold(self, *objects: Any) -> Iterator[None]:
        """With an event of its own behind it."""
        self._inside = True
        try:
            yield
        finally:
            self._inside = False
            self.calls.append("hold")
            self.events.append(Passing())
            self.in_use.keep(objects, self.events[-1])

    @contextlib.contextmanager
    def stream(self, number: int | None) -> Iterator[None]:
        """There is one."""
        del number
        yield

    def bound(self, most: int) -> None:
        """See `InUse`."""
        self.in_use.bound(most)

    def drain(self) -> None:
        """See `InUse`."""
        self.in_use.drain()

    def free_memory(self) -> None:
        """None is kept."""
        self.calls.append("free_memory")

    def _arrive(self) -> None:
        for there, what in self._coming:
            there.copy_(what)

    def _reads(self, call: str, *tensors: torch.Tensor) -> None:
        assert self._inside, f"{call} outside of hold: what it reads may be gone"
        coming = {there.untyped_storage().data_ptr() for there, _ in list(self._coming)}
        read = {each.untyped_storage().data_ptr() for each in tensors}
        assert not coming & read, f"{call} before wait: what it reads has not arrived"
        self.calls.append(call)


def _spoil(memory: torch.Tensor) -> None:
    flat = memory.view(torch.uint8) if memory.ndim else memory.reshape(1).view(torch.uint8)
    flat.fill_(JUNK)
