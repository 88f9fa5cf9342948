"""What `dali-feed bench kernels` launches: each kernel in its variants, with the bytes that each moves.

Cases are made with CuPy, or with `Host` where there is no GPU: their arguments are checked either way, and their
variants can be compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dali_feed.kernels import finish as finish_module
from dali_feed.kernels import jitter as jitter_module
from dali_feed.kernels import unpack as unpack_module
from dali_feed.kernels.finish import Mix
from dali_feed.kernels.launch import Launch
from dali_feed.transforms.colours import KINDS

__all__ = ["CASES", "Case", "Host", "jobs_of"]

SIZE = 224
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Case:
    """Launches, by name, and the bytes they move; `prepare` checks the arguments and keeps the arrays."""

    kernel: str
    variant: str
    prepare: Callable[[], Launch]
    moved: int


def _bytes(cp: Any, *shape: int, seed: int = 0) -> Any:
    """Random bytes, made on the host: CuPy's own generator needs cuRAND."""
    return cp.asarray(np.random.default_rng(seed).integers(0, 256, shape, np.uint8))


def _mix(cp: Any, batch: int, kind: str) -> Mix:
    partner = cp.asarray(np.roll(np.arange(batch, dtype=np.int32), 1))
    weight = cp.full(batch, 0.7, cp.float32) if kind == "mixup" else None
    box = cp.tile(cp.asarray([[40, 60, 100, 120]], cp.int32), (batch, 1)) if kind == "cutmix" else None
    return Mix(partner, weight, box)


def _finishes(cp: Any, batch: int) -> Iterator[Case]:
    """Every type and layout; then with everything on, and mixed."""
    images = _bytes(cp, batch, SIZE, SIZE, 3)
    scale, bias = finish_module.normalize_factors(MEAN, STD)
    flips = cp.asarray(np.arange(batch) % 2, cp.int32)
    extras: dict[str, dict[str, Any]] = {
        "": {},
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


def _jitters(cp: Any, batch: int) -> Iterator[Case]:
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
            shape = (size, size, 3)
            records = _bytes(cp, count, size * size * 3 * bits // 8)
            out = cp.empty((count, 3, size, size), DTYPES[dtype])
            given: dict[str, Any] = {"shape": shape, "bits": bits, "order": order, "endian": endian, "dtype": dtype}

            def prepare(records: Any = records, out: Any = out, given: dict[str, Any] = given) -> Launch:
                return unpack_module.prepare(records, out, scale=1 / 255, **given)

            moved = records.nbytes + out.nbytes
            yield Case("unpack", f"{bits} bits {order} {endian} {size}x{size} {dtype}", prepare, moved)


CASES: dict[str, Callable[[Any, int], Iterator[Case]]] = {
    "finish": _finishes,
    "jitter": _jitters,
    "unpack": _unpacks,
}


def jobs_of(case: Case) -> tuple[Launch, ...]:
    """The case's launches, their arguments checked."""
    prepared = case.prepare()
    return prepared if isinstance(prepared, tuple) else (prepared,)


class _There(np.ndarray[Any, Any]):
    """Host memory that says it lies on a GPU: no kernel may be launched on it."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {**self.__array_interface__, "version": 3}


class Host:
    """What of CuPy the cases are made with, in host memory, to compile them where there is no GPU."""

    int32, int64, float32 = np.int32, np.int64, np.float32

    def __getattr__(self, name: str) -> Any:
        if name not in {"asarray", "empty", "full", "tile", "zeros"}:  # no random numbers: CuPy's need cuRAND
            raise AttributeError(name)
        make = getattr(np, name)
        return lambda *given, **options: make(*given, **options).view(_There)
