"""The GPU of a loader, by NVML: how busy it is and its memory. Asked when somebody looks, and never before."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

__all__ = ["GpuStats", "gpu_of"]


@dataclass(frozen=True, slots=True)
class GpuStats:
    """One GPU now. What NVML does not say is None.

    gpu    its UUID, the same for every process of a machine
    name   of the model
    busy   share of the last second or less, 0..1, in which a kernel ran
    used   bytes of its memory that are in use, by any process
    total  bytes of its memory
    """

    gpu: str
    name: str
    busy: float | None = None
    used: int | None = None
    total: int | None = None


def gpu_of(device: object) -> GpuStats | None:
    """That of a torch.device, or of a CUDA device's number; None for a CPU, and where there is no NVML."""
    index = _index(device)
    return None if index is None else _NVML.look(index)


def _index(device: object) -> int | None:
    if isinstance(device, int):
        return device
    if getattr(device, "type", None) != "cuda":
        return None
    index = getattr(device, "index", None)
    return 0 if index is None else int(index)


class _Nvml:
    """Begun at the first look; a machine without a driver is asked once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handles: dict[int, Any] = {}  # by CUDA's number; None: there is no such GPU for NVML

    def look(self, index: int) -> GpuStats | None:
        with self._lock:
            if index not in self._handles:
                self._handles[index] = _handle(index)
            handle = self._handles[index]
        return None if handle is None else _read(handle)


_NVML = _Nvml()


def _handle(index: int) -> Any:
    """Of CUDA's device number `index`, which is not NVML's: CUDA_VISIBLE_DEVICES counts them anew."""
    import torch

    try:
        import pynvml

        pynvml.nvmlInit()
        uuid = str(torch.cuda.get_device_properties(index).uuid)
        return pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
    except Exception:  # noqa: BLE001  no driver, no package, a part of a GPU: then there are no figures of it
        return None


def _read(handle: Any) -> GpuStats | None:
    import pynvml

    def asked(function: Any) -> Any:
        try:
            return function(handle)
        except pynvml.NVMLError:
            return None

    uuid, name = asked(pynvml.nvmlDeviceGetUUID), asked(pynvml.nvmlDeviceGetName)
    if uuid is None:
        return None
    busy, memory = asked(pynvml.nvmlDeviceGetUtilizationRates), asked(pynvml.nvmlDeviceGetMemoryInfo)
    return GpuStats(
        gpu=str(uuid),
        name=str(name or ""),
        busy=None if busy is None else busy.gpu / 100,
        used=None if memory is None else int(memory.used),
        total=None if memory is None else int(memory.total),
    )
