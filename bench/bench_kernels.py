"""Each kernel's GB/s beside a device-to-device copy of as many bytes, on one GPU.

    python bench/bench_kernels.py [--kernels finish jitter mix unpack tokens] [--batch 256] [--runs 50] [--warm 10]

A launch is checked and compiled before the clock. CUDA events stand around it, as around the copy: the L2 cache is
written over before them, which keeps the device busy until all is enqueued, so that no time of the host is counted.
The percentiles are of the launches. The bytes are those that `bytes_moved` counts; the copy reads half of as many and
writes them. Rows go to results/kernels.csv as they are made. A case that fails is named, the others are measured, and
the end is 1. Needs a GPU: without one it says so and ends with 1.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from _results import RESULTS, Rows

from dali_feed.bench.facts import facts
from dali_feed.kernels import finish as finish_module
from dali_feed.kernels import jitter as jitter_module
from dali_feed.kernels import mix as mix_module
from dali_feed.kernels import tokens as tokens_module
from dali_feed.kernels import unpack as unpack_module
from dali_feed.kernels._module import Launch, kernel
from dali_feed.kernels.mix import Mix
from dali_feed.transforms.colours import KINDS

SIZE = 224
L2_BYTES = 256 << 20  # more than any GPU's L2
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
PLACES = (0.2, 0.5, 0.8)


@dataclass(frozen=True)
class Case:
    """Launches, by name, and the bytes they move; `prepare` checks the arguments and keeps the arrays."""

    kernel: str
    variant: str
    prepare: Callable[[], Launch | tuple[Launch, ...]]
    moved: int


def _bytes(cp: Any, *shape: int, seed: int = 0) -> Any:
    """Random bytes, made on the host: CuPy's own generator needs cuRAND."""
    return cp.asarray(np.random.default_rng(seed).integers(0, 256, shape, np.uint8))


def _mix(cp: Any, batch: int, kind: str) -> Mix:
    partner = cp.asarray(np.roll(np.arange(batch, dtype=np.int32), 1))
    weight = cp.full(batch, 0.7, cp.float32) if kind == "mixup" else None
    box = cp.tile(cp.asarray([[40, 60, 100, 120]], cp.int32), (batch, 1)) if kind == "cutmix" else None
    return Mix(partner, weight, box)


def finishes(cp: Any, batch: int) -> Iterator[Case]:
    """Every type and layout; then with everything on, and mixed."""
    images = _bytes(cp, batch, SIZE, SIZE, 3)
    scale, bias = finish_module.normalize_factors(MEAN, STD)
    flips = cp.asarray(np.arange(batch) % 2, cp.int32)
    extras: dict[str, dict[str, Any]] = {
        "": {},
        " colour": {"colour": cp.tile(cp.asarray(np.eye(3, 4, dtype=np.float32)), (batch, 1, 1))},
        " erase": {"erase": cp.tile(cp.asarray([[40, 60, 100, 120]], cp.int32), (batch, 1))},
        " mixup": {"mix": _mix(cp, batch, "mixup")},
        " cutmix": {"mix": _mix(cp, batch, "cutmix")},
    }
    shares = {" mixup": 1.0, " cutmix": 100 * 120 / SIZE**2}
    for dtype, memory in DTYPES.items():
        for layout in ("NCHW", "NHWC"):
            shape = (batch, 3, SIZE, SIZE) if layout == "NCHW" else (batch, SIZE, SIZE, 3)
            out = cp.empty(shape, memory)
            for name, options in extras.items() if dtype != "float16" else [("", {})]:
                given = {"scale": scale, "bias": bias, "flip_x": flips, "dtype": dtype, "layout": layout, **options}

                def prepare(out: Any = out, given: dict[str, Any] = given) -> Launch:
                    return finish_module.prepare(images, out, **given)

                moved = finish_module.bytes_moved(images.shape, dtype, mixed=shares.get(name, 0.0))
                yield Case("finish", f"{dtype} {layout}{name}", prepare, moved)


def jitters(cp: Any, batch: int) -> Iterator[Case]:
    """One adjustment, all four, and those with a contrast that wants every step before it twice."""
    images = _bytes(cp, batch, SIZE, SIZE, 3)
    out = cp.empty(images.shape, np.uint8)
    for names in (
        ("brightness",),
        ("contrast",),
        ("hue",),
        ("contrast", "brightness", "saturation", "hue"),
        ("hue", "saturation", "brightness", "contrast"),
    ):
        steps = cp.tile(cp.asarray([[(KINDS[name], 0.1) for name in names]], cp.float32), (batch, 1, 1))

        def prepare(steps: Any = steps) -> Launch:
            return jitter_module.prepare(images, out, steps)

        moved = jitter_module.bytes_moved(images.shape, contrasts=names.count("contrast"))
        yield Case("jitter", ", ".join(names), prepare, moved)


def mixes(cp: Any, batch: int) -> Iterator[Case]:
    """Batches that something else made."""
    for dtype, memory in DTYPES.items():
        shape = (batch, 3, SIZE, SIZE)
        values = np.random.default_rng(0).integers(0, 1 << 14, shape, np.uint16)
        images = cp.asarray(values.astype(memory))
        out = cp.empty(shape, memory)
        for kind, share in (("mixup", 1.0), ("cutmix", 100 * 120 / SIZE**2)):
            given = _mix(cp, batch, kind)

            def prepare(images: Any = images, out: Any = out, given: Mix = given, dtype: str = dtype) -> Launch:
                return mix_module.prepare(images, out, given, dtype=dtype)

            yield Case("mix", f"{dtype} {kind}", prepare, mix_module.bytes_moved(shape, dtype, mixed=share))


def unpacks(cp: Any, batch: int) -> Iterator[Case]:
    """Records of 64 x 64 pixels and of 224 x 224, as they come from cameras and arrays."""
    for size, count in ((SIZE, batch), (64, 12 * batch)):
        for bits, order, endian, dtype in (
            (8, "interleaved", "little", "float32"),
            (8, "planar", "little", "bfloat16"),
            (16, "interleaved", "big", "float32"),
            (12, "interleaved", "little", "float16"),
            (10, "planar", "big", "float32"),
        ):
            shape = (size, size, 3)
            records = _bytes(cp, count, size * size * 3 * bits // 8)
            out = cp.empty((count, 3, size, size), DTYPES[dtype])
            given: dict[str, Any] = {"shape": shape, "bits": bits, "order": order, "endian": endian, "dtype": dtype}

            def prepare(records: Any = records, out: Any = out, given: dict[str, Any] = given) -> Launch:
                return unpack_module.prepare(records, out, scale=1 / 255, **given)

            moved = records.nbytes + out.nbytes
            yield Case("unpack", f"{bits} bits {order} {endian} {size}x{size} {dtype}", prepare, moved)


def token_batches(cp: Any, _: int) -> Iterator[Case]:
    """Sequences of 4096 tokens with documents of some hundred."""
    rows, length = 2048, 4096
    for kind in (np.uint16, np.uint32):
        records = cp.asarray(np.random.default_rng(0).integers(0, 50257, (rows, length + 1), kind))
        outs = {name: cp.empty((rows, length), cp.int64) for name in ("inputs", "targets", "positions")}
        outs["documents"] = cp.empty((rows, length), cp.int32)
        scratch = cp.empty(tokens_module.scratch_size(records.shape), cp.int32)
        some = {name: outs[name] for name in ("inputs", "targets")}
        for name, wanted, separator in (("inputs, targets", some, None), ("all", outs, 7)):

            def prepare(
                records: Any = records, wanted: Any = wanted, separator: int | None = separator, scratch: Any = scratch
            ) -> tuple[Launch, ...]:
                return tokens_module.prepare(records, separator=separator, scratch=scratch, **wanted)

            moved = records.nbytes + sum(array.nbytes for array in wanted.values())
            yield Case("tokens", f"{np.dtype(kind).name} {name}", prepare, moved)


CASES: dict[str, Callable[[Any, int], Iterator[Case]]] = {
    "finish": finishes,
    "jitter": jitters,
    "mix": mixes,
    "unpack": unpacks,
    "tokens": token_batches,
}


def launches(case: Case) -> Callable[[], None]:
    """The case's launches on the current stream, compiled, with nothing left to check."""
    prepared = case.prepare()
    jobs = prepared if isinstance(prepared, tuple) else (prepared,)
    ready = [(kernel(job.kernel, job.options, 0), job) for job in jobs]

    def launch() -> None:
        for function, job in ready:
            function(job.grid, job.block, job.arguments)

    return launch


def measured(cp: Any, launch: Callable[[], None], args: argparse.Namespace) -> list[float]:
    """Seconds of a launch at PLACES, each after the cache was written over."""
    flush = cp.empty(L2_BYTES, cp.uint8)
    begin, end = cp.cuda.Event(), cp.cuda.Event()
    times = []
    for n in range(args.warm + args.runs):
        flush.fill(n & 255)
        begin.record()
        launch()
        end.record()
        end.synchronize()
        if n >= args.warm:
            times.append(cp.cuda.get_elapsed_time(begin, end) / 1e3)
    return [float(np.quantile(times, place)) for place in PLACES]


def row(cp: Any, case: Case, args: argparse.Namespace) -> dict[str, object]:
    """A case beside a copy of as many bytes."""
    half = case.moved // 2
    source, target = cp.empty(half, cp.uint8), cp.empty(half, cp.uint8)
    source.fill(7)
    copy_async, there, here = cp.cuda.runtime.memcpyAsync, target.data.ptr, source.data.ptr
    how = cp.cuda.runtime.memcpyDeviceToDevice
    copy = measured(cp, lambda: copy_async(there, here, half, how, cp.cuda.Stream.null.ptr), args)
    low, middle, high = measured(cp, launches(case), args)
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


def main() -> int:
    """Measure, print, and add rows to results/kernels.csv."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--runs", type=int, default=50, help="counted launches (default %(default)s)")
    parser.add_argument("--warm", type=int, default=10, help="launches before them (default %(default)s)")
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    import cupy as cp

    try:
        device = cp.cuda.runtime.getDeviceProperties(0)["name"].decode()
    except cp.cuda.runtime.CUDARuntimeError as error:
        print(f"bench_kernels: needs a GPU, and nothing was measured: {error}", file=sys.stderr)
        return 1
    rows = Rows("kernels", facts() | {"device": device, "batch": args.batch, "runs": args.runs}, args.results)
    for name in args.kernels:
        for case in CASES[name](cp, args.batch):
            rows.measure(f"{case.kernel} {case.variant}", functools.partial(row, cp, case, args))
            cp.get_default_memory_pool().free_all_blocks()
    return rows.end()


if __name__ == "__main__":
    sys.exit(main())
