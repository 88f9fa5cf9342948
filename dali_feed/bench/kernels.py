"""`dali-feed bench kernels`: each kernel's GB/s beside a device-to-device copy of as many bytes, on one GPU.

A launch is checked and compiled before the clock. CUDA events stand around it, as around the copy: the L2 cache is
written over before them, which keeps the device busy until all is enqueued, so that no time of the host is counted.
The percentiles are of the launches. The bytes are those that `bytes_moved` counts; the copy reads half of as many and
writes them. Without a GPU nothing is measured, and every variant is compiled for `ARCHITECTURES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from dali_feed.bench.contract import Outcome
from dali_feed.bench.kernel_cases import CASES, Case, Host, jobs_of
from dali_feed.errors import EngineError
from dali_feed.kernels.launch import compile_ptx, kernel
from dali_feed.packages import needed

__all__ = ["ARCHITECTURES", "SHOWN", "compiled", "every", "gpu", "launches", "measured", "row"]

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
L2_BYTES = 256 << 20  # more than any GPU's L2
PLACES = (0.2, 0.5, 0.8)
SHOWN = ("kernel", "variant", "MB", "us p20", "p50", "p80", "GB/s", "copy GB/s", "of copy", *ARCHITECTURES)


def gpu() -> str:
    """The name of the first GPU. Raises EngineError where there is none."""
    with needed():
        import cupy as cp

    try:
        return str(cp.cuda.runtime.getDeviceProperties(0)["name"].decode())
    except cp.cuda.runtime.CUDARuntimeError as error:
        msg = f"it needs a GPU, and CUDA finds none ({error}); nothing was measured"
        raise EngineError(msg) from None


def every(names: Sequence[str], outcome: Outcome, *, batch: int, runs: int, warm: int = 10) -> None:
    """Measure the kernels' variants into `outcome`; where it misses a GPU, compile them. Who fails is named."""
    if "GPU" in outcome.missing:
        for told in compiled(names):
            outcome.rows.append(told)
            failed = {arch: told[arch] for arch in ARCHITECTURES if str(told[arch]).startswith("FAILED")}
            outcome.missing |= {f"{told['kernel']} {told['variant']} {arch}": why for arch, why in failed.items()}
        return
    import cupy as cp

    for name in names:
        for case in CASES[name](cp, batch):
            try:
                outcome.rows.append(row(cp, case, runs=runs, warm=warm))
            except Exception as error:  # noqa: BLE001  whatever one case fails on, the others are measured
                outcome.missing[f"{case.kernel} {case.variant}"] = f"failed: {type(error).__name__}: {error}"
            cp.get_default_memory_pool().free_all_blocks()


def compiled(names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """For each variant of the kernels its bytes of code by architecture, or why it does not compile.

    Raises EngineError where there is no compiler.
    """
    import torch  # noqa: F401  it brings the compiler, NVRTC, along

    for name in names:
        seen: set[tuple[str, tuple[str, ...]]] = set()
        for case in CASES[name](Host(), 2):
            for job in jobs_of(case):
                if (job.kernel, job.options) in seen:
                    continue
                seen.add((job.kernel, job.options))
                told = {arch: _size(job.kernel, arch, job.options) for arch in ARCHITECTURES}
                yield {"kernel": job.kernel, "variant": " ".join(job.options), **told}


def _size(name: str, arch: str, options: tuple[str, ...]) -> str:
    try:
        return f"{len(compile_ptx(name, arch, options)):,} bytes"
    except EngineError as error:
        if "needs NVRTC" in str(error):
            raise
        return f"FAILED: {' '.join(str(error).split())[:200]}"


def launches(case: Case) -> Callable[[], None]:
    """The case's launches on the current stream, compiled, with nothing left to check."""
    ready = [(kernel(job.kernel, job.options, 0), job) for job in jobs_of(case)]

    def launch() -> None:
        for function, job in ready:
            function(job.grid, job.block, job.arguments)

    return launch


def measured(cp: Any, launch: Callable[[], None], runs: int, warm: int) -> list[float]:
    """Seconds of a launch at PLACES, each after the cache was written over."""
    flush = cp.empty(L2_BYTES, cp.uint8)
    begin, end = cp.cuda.Event(), cp.cuda.Event()
    times = []
    for n in range(warm + runs):
        flush.fill(n & 255)
        begin.record()
        launch()
        end.record()
        end.synchronize()
        if n >= warm:
            times.append(cp.cuda.get_elapsed_time(begin, end) / 1e3)
    return [float(np.quantile(times, place)) for place in PLACES]


def row(cp: Any, case: Case, *, runs: int, warm: int) -> dict[str, Any]:
    """A case beside a copy of as many bytes."""
    half = case.moved // 2
    source, target = cp.empty(half, cp.uint8), cp.empty(half, cp.uint8)
    source.fill(7)
    copy_async, there, here = cp.cuda.runtime.memcpyAsync, target.data.ptr, source.data.ptr
    how = cp.cuda.runtime.memcpyDeviceToDevice
    copy = measured(cp, lambda: copy_async(there, here, half, how, cp.cuda.Stream.null.ptr), runs, warm)
    low, middle, high = measured(cp, launches(case), runs, warm)
    return {
        "kernel": case.kernel,
        "variant": case.variant,
        "MB": round(case.moved / 1e6),
        "us p20": f"{low * 1e6:.1f}",
        "p50": f"{middle * 1e6:.1f}",
        "p80": f"{high * 1e6:.1f}",
        "GB/s": round(case.moved / middle / 1e9),
        "copy GB/s": round(2 * half / copy[1] / 1e9),
        "of copy": f"{copy[1] / middle:.2f}",
    }
