"""`dali-feed bench kernels`: each kernel's GB/s beside a device-to-device copy of as many bytes, on one GPU.

A case is a kernel in a variant; its contestants are the kernel and the copy. A launch is checked and compiled before
the clock. CUDA events stand around it, as around the copy: the L2 cache is written over before them, which keeps the
device busy until all is enqueued, so that no time of the host is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dali_feed.bench.runner import Contestant, Steps, opened
from dali_feed.errors import EngineError
from dali_feed.kernels.finish import MixArrays, finish, normalize_factors
from dali_feed.kernels.jitter import jitter
from dali_feed.kernels.launch import Launch, kernel
from dali_feed.kernels.unpack import unpack
from dali_feed.transforms.colour import KINDS

UNIT = "GB"
SHOWN = ["case", "who", "GB/s", "least", "most", "p50 ms", "p99 ms", "of copy"]
L2_BYTES = 256 << 20  # more than any GPU's L2
SIZE = 224
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Case:
    """A launch by name, and the bytes it has to read and write; `prepare` checks the arguments and keeps the arrays."""

    kernel: str
    variant: str
    prepare: Callable[[], Launch]
    moved: int


def gpu() -> str:
    """The name of the first GPU. Raises EngineError where there is none."""
    if not torch.cuda.is_available():
        raise EngineError("bench kernels: needs a GPU, and torch finds none; nothing was measured")
    return torch.cuda.get_device_name(0)


def _bytes(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, device="cuda")


def _rows(batch: int, row: Any, dtype: torch.dtype) -> torch.Tensor:
    """The same for each image."""
    return torch.tensor([row] * batch, dtype=dtype, device="cuda")


def _finishes(batch: int) -> Iterator[Case]:
    """Every type and layout; then with everything on, and mixed."""
    images, box = _bytes(batch, SIZE, SIZE, 3), _rows(batch, (40, 60, 100, 120), torch.int32)
    scale, bias = normalize_factors(MEAN, STD)
    flips, partner = (torch.arange(batch, dtype=torch.int32, device="cuda") + k for k in (0, 1))
    flips, partner = flips % 2, partner % batch
    extras: dict[str, dict[str, Any]] = {
        "": {},
        " erase": {"erase": box},
        " mixup": {"mix": MixArrays(partner, _rows(batch, 0.7, torch.float32))},
        " cutmix": {"mix": MixArrays(partner, None, box)},
    }
    shares = {" mixup": 1.0, " cutmix": 100 * 120 / SIZE**2}  # of the pixels, for which a partner is read
    for dtype, memory in DTYPES.items():
        for layout in ("NCHW", "NHWC"):
            shape = (batch, 3, SIZE, SIZE) if layout == "NCHW" else (batch, SIZE, SIZE, 3)
            out = torch.empty(shape, dtype=memory, device="cuda")
            for name, options in extras.items() if dtype != "float16" else [("", {})]:
                arguments = {"scale": scale, "bias": bias, "flip_x": flips, "layout": layout, **options}

                def prepare(out: Any = out, arguments: dict[str, Any] = arguments) -> Launch:
                    return finish.prepare(images, out, **arguments)

                moved = images.nbytes * (1 + shares.get(name, 0.0)) + out.nbytes
                yield Case("finish", f"{dtype} {layout}{name}", prepare, round(moved))


def _jitters(batch: int) -> Iterator[Case]:
    """One adjustment, all four, and those with a contrast that wants every step before it twice."""
    images = _bytes(batch, SIZE, SIZE, 3)
    out = torch.empty_like(images)
    for names in (
        *(("brightness",), ("contrast",), ("hue",)),
        ("contrast", "brightness", "saturation", "hue"),
        ("hue", "saturation", "brightness", "contrast"),
    ):
        steps = _rows(batch, [(KINDS[name], 0.1) for name in names], torch.float32)

        def prepare(steps: Any = steps) -> Launch:
            return jitter.prepare(images, out, steps)

        passes = 1 + names.count("contrast")  # a mean takes one of its own
        yield Case("jitter", ", ".join(names), prepare, images.nbytes * passes + out.nbytes)


def _unpacks(batch: int) -> Iterator[Case]:
    """Records of 64 x 64 pixels and of 224 x 224, as they come from cameras and arrays."""
    for size, count in ((SIZE, batch), (64, 12 * batch)):
        for bits, order, endian, dtype in (
            (8, "interleaved", "little", "float32"),
            (8, "planar", "little", "bfloat16"),
            (16, "interleaved", "big", "float32"),
            (12, "interleaved", "little", "float16"),
            (10, "planar", "big", "float32"),
        ):
            records = _bytes(count, size * size * 3 * bits // 8)
            out = torch.empty((count, 3, size, size), dtype=DTYPES[dtype], device="cuda")
            arguments: dict[str, Any] = {"shape": (size, size, 3), "bits": bits, "order": order, "endian": endian}
            arguments["scale"] = 1 / 255

            def prepare(records: Any = records, out: Any = out, arguments: dict[str, Any] = arguments) -> Launch:
                return unpack.prepare(records, out, **arguments)

            variant = f"{bits} bits {order} {endian} {size}x{size} {dtype}"
            yield Case("unpack", variant, prepare, records.nbytes + out.nbytes)


CASES: dict[str, Callable[[int], Iterator[Case]]] = {"finish": _finishes, "jitter": _jitters, "unpack": _unpacks}


class _Launches(Steps):
    """A launch a step, by the device's clock, each after the cache was written over."""

    def __init__(self, launch: Callable[[], object], moved: int) -> None:
        self._launch, self._moved, self._seconds = launch, moved, 0.0
        self._flush, self._fill = torch.empty(L2_BYTES, dtype=torch.uint8, device="cuda"), 0
        self._begin, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        self.clock = lambda: self._seconds

    def __next__(self) -> float:
        self._fill = (self._fill + 1) & 255
        self._flush.fill_(self._fill)
        self._begin.record()
        self._launch()
        self._end.record()
        self._end.synchronize()
        self._seconds += self._begin.elapsed_time(self._end) / 1e3
        return self._moved / 1e9


def contestants(names: Sequence[str], batch: int, device: str = "cuda:0") -> Iterator[tuple[str, list[Contestant]]]:
    """(case, [kernel, copy of as many bytes]) of each variant; the arrays of one are gone when the next one comes."""

    def launch_of(case: Case) -> Callable[[], object]:
        job = case.prepare()
        function = kernel(job.kernel, job.options)
        return lambda: function(job.grid, job.block, tuple(job.arguments.values()))

    def copy_of(case: Case) -> Callable[[], object]:
        source, target = (torch.full((case.moved // 2,), 7, dtype=torch.uint8, device="cuda") for _ in range(2))
        return lambda: target.copy_(source)

    def contestant(name: str, case: Case, make: Callable[[Case], Callable[[], object]], role: Any) -> Contestant:
        return Contestant(name, opened(lambda: _Launches(make(case), case.moved)), role=role)

    with torch.cuda.device(device):
        for name in names:
            for case in CASES[name](batch):
                both = ("ours", name, launch_of), ("top", "copy", copy_of)
                yield case.variant, [contestant(who, case, make, role) for role, who, make in both]
                torch.cuda.empty_cache()
