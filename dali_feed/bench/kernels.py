"""`dali-feed bench kernels`: each kernel's GB/s beside a device-to-device copy of as many bytes, on one GPU.

A case is a kernel in a variant; its contestants are the kernel and the copy. A launch is checked and compiled before
the clock. CUDA events stand around it, as around the copy: the L2 cache is written over before them, which keeps the
device busy until all is enqueued, so that no time of the host is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dali_feed.bench.runner import Contestant, Steps, opened
from dali_feed.errors import EngineError
from dali_feed.kernels.finish import MixArrays, finish, normalize_factors
from dali_feed.kernels.jitter import jitter
from dali_feed.kernels.launch import Launch, kernel
from dali_feed.kernels.unpack import unpack
from dali_feed.packages import needed
from dali_feed.transforms.colour import KINDS

UNIT = "GB"
SHOWN = ["case", "who", "GB/s", "least", "most", "p50 ms", "p99 ms", "of copy"]
L2_BYTES = 256 << 20  # more than any GPU's L2
SIZE = 224
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}
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
    with needed():
        import cupy as cp

    try:
        return str(cp.cuda.runtime.getDeviceProperties(0)["name"].decode())
    except cp.cuda.runtime.CUDARuntimeError as error:
        raise EngineError(f"bench kernels: needs a GPU, and CUDA finds none ({error}); nothing was measured") from None


def _bytes(cp: Any, *shape: int) -> Any:
    """Random bytes, made on the host: CuPy's own generator needs cuRAND."""
    return cp.asarray(np.random.default_rng(0).integers(0, 256, shape, np.uint8))


def _mix(cp: Any, batch: int, kind: str) -> MixArrays:
    partner = cp.asarray(np.roll(np.arange(batch, dtype=np.int32), 1))
    weight = cp.full(batch, 0.7, cp.float32) if kind == "mixup" else None
    box = cp.tile(cp.asarray([[40, 60, 100, 120]], cp.int32), (batch, 1)) if kind == "cutmix" else None
    return MixArrays(partner, weight, box)


def _finishes(cp: Any, batch: int) -> Iterator[Case]:
    """Every type and layout; then with everything on, and mixed."""
    images = _bytes(cp, batch, SIZE, SIZE, 3)
    scale, bias = normalize_factors(MEAN, STD)
    flips = cp.asarray(np.arange(batch) % 2, cp.int32)
    extras: dict[str, dict[str, Any]] = {
        "": {},
        " erase": {"erase": cp.tile(cp.asarray([[40, 60, 100, 120]], cp.int32), (batch, 1))},
        " mixup": {"mix": _mix(cp, batch, "mixup")},
        " cutmix": {"mix": _mix(cp, batch, "cutmix")},
    }
    shares = {" mixup": 1.0, " cutmix": 100 * 120 / SIZE**2}  # of the pixels, for which a partner is read
    for dtype, memory in DTYPES.items():
        for layout in ("NCHW", "NHWC"):
            shape = (batch, 3, SIZE, SIZE) if layout == "NCHW" else (batch, SIZE, SIZE, 3)
            out = cp.empty(shape, memory)
            for name, options in extras.items() if dtype != "float16" else [("", {})]:
                arguments = {"scale": scale, "bias": bias, "flip_x": flips, "dtype": dtype, "layout": layout, **options}

                def prepare(out: Any = out, arguments: dict[str, Any] = arguments) -> Launch:
                    return finish.prepare(images, out, **arguments)

                moved = images.nbytes * (1 + shares.get(name, 0.0)) + out.nbytes
                yield Case("finish", f"{dtype} {layout}{name}", prepare, round(moved))


def _jitters(cp: Any, batch: int) -> Iterator[Case]:
    """One adjustment, all four, and those with a contrast that wants every step before it twice."""
    images = _bytes(cp, batch, SIZE, SIZE, 3)
    out = cp.empty(images.shape, np.uint8)
    for names in (
        *(("brightness",), ("contrast",), ("hue",)),
        ("contrast", "brightness", "saturation", "hue"),
        ("hue", "saturation", "brightness", "contrast"),
    ):
        steps = cp.tile(cp.asarray([[(KINDS[name], 0.1) for name in names]], cp.float32), (batch, 1, 1))

        def prepare(steps: Any = steps) -> Launch:
            return jitter.prepare(images, out, steps)

        passes = 1 + names.count("contrast")  # a mean takes one of its own
        yield Case("jitter", ", ".join(names), prepare, images.nbytes * passes + out.nbytes)


def _unpacks(cp: Any, batch: int) -> Iterator[Case]:
    """Records of 64 x 64 pixels and of 224 x 224, as they come from cameras and arrays."""
    for size, count in ((SIZE, batch), (64, 12 * batch)):
        for bits, order, endian, dtype in (
            (8, "interleaved", "little", "float32"),
            (8, "planar", "little", "bfloat16"),
            (16, "interleaved", "big", "float32"),
            (12, "interleaved", "little", "float16"),
            (10, "planar", "big", "float32"),
        ):
            records = _bytes(cp, count, size * size * 3 * bits // 8)
            out = cp.empty((count, 3, size, size), DTYPES[dtype])
            arguments: dict[str, Any] = {"shape": (size, size, 3), "bits": bits, "order": order, "endian": endian}
            arguments |= {"dtype": dtype, "scale": 1 / 255}

            def prepare(records: Any = records, out: Any = out, arguments: dict[str, Any] = arguments) -> Launch:
                return unpack.prepare(records, out, **arguments)

            variant = f"{bits} bits {order} {endian} {size}x{size} {dtype}"
            yield Case("unpack", variant, prepare, records.nbytes + out.nbytes)


CASES: dict[str, Callable[[Any, int], Iterator[Case]]] = {"finish": _finishes, "jitter": _jitters, "unpack": _unpacks}


class _Launches(Steps):
    """A launch a step, by the device's clock, each after the cache was written over."""

    def __init__(self, cp: Any, launch: Callable[[], None], moved: int) -> None:
        self._cp, self._launch, self._moved = cp, launch, moved
        self._flush, self._fill, self._seconds = cp.empty(L2_BYTES, cp.uint8), 0, 0.0
        self._begin, self._end = cp.cuda.Event(), cp.cuda.Event()
        self.clock = lambda: self._seconds

    def __next__(self) -> float:
        self._fill = (self._fill + 1) & 255
        self._flush.fill(self._fill)
        self._begin.record()
        self._launch()
        self._end.record()
        self._end.synchronize()
        self._seconds += self._cp.cuda.get_elapsed_time(self._begin, self._end) / 1e3
        return self._moved / 1e9


def contestants(names: Sequence[str], batch: int) -> Iterator[tuple[str, list[Contestant]]]:
    """(case, [kernel, copy of as many bytes]) of each variant; the arrays of one are gone when the next one comes."""
    import cupy as cp

    def launch_of(case: Case) -> Callable[[], None]:
        job = case.prepare()
        function = kernel(job.kernel, job.options)
        return lambda: function(job.grid, job.block, tuple(job.arguments.values()))

    def copy_of(case: Case) -> Callable[[], None]:
        half = case.moved // 2
        source, target = cp.empty(half, cp.uint8), cp.empty(half, cp.uint8)
        source.fill(7)
        kind, stream = cp.cuda.runtime.memcpyDeviceToDevice, cp.cuda.Stream.null.ptr
        return lambda: cp.cuda.runtime.memcpyAsync(target.data.ptr, source.data.ptr, half, kind, stream)

    def contestant(name: str, case: Case, make: Callable[[Case], Callable[[], None]], role: Any) -> Contestant:
        return Contestant(name, opened(lambda: _Launches(cp, make(case), case.moved)), role=role)

    for name in names:
        for case in CASES[name](cp, batch):
            yield case.variant, [contestant(name, case, launch_of, "ours"), contestant("copy", case, copy_of, "top")]
            cp.get_default_memory_pool().free_all_blocks()
