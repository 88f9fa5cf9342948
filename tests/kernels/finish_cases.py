"""What the tests of finish share: batches that exercise everything at once, and equality of bits."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
from kernels_host import OnDevice, moved

from dali_feed.kernels.finish import MixArrays, normalize_factors, prepare
from dali_feed.kernels.launch import Launch

DTYPES = ("float32", "float16", "bfloat16", "uint8")
LAYOUTS = ("NCHW", "NHWC")
MEMORY = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16, "uint8": np.uint8}
# Bytes of a store, by layout and pixels a thread: planes and single pixels need no other than their own.
VECTORS = {
    dtype: {
        (last, pixels): (0,) if not last or pixels == 1 else tuple({pixels * np.dtype(kind).itemsize, 16})
        for last, pixels in itertools.product((0, 1), (1, 2, 4))
    }
    for dtype, kind in MEMORY.items()
}
VARIANTS = tuple(
    (f"-DOUT_{dtype.upper()}", f"-DCHANNELS_LAST={last}", f"-DPIXELS={pixels}", f"-DMIX={mix}", f"-DVECTOR={vector}")
    for dtype, forms in VECTORS.items()
    for (last, pixels), vectors in forms.items()
    for mix, vector in itertools.product((0, 1), vectors)
)
JITTER_VARIANTS = tuple(
    ("-DOUT_UINT8", f"-DPIXELS={pixels}", f"-DVECTOR={vector}") for pixels, vector in ((4, 16), (4, 4), (1, 1))
)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
Array = npt.NDArray[Any]


def random_case(dtype: str, shape: tuple[int, int, int], *, mix: bool = False, seed: int = 0) -> dict[str, Any]:
    """Arguments of finish_reference that exercise everything at once, as a user would give them."""
    rng = np.random.default_rng(seed)
    samples, height, width = shape
    case: dict[str, Any] = {
        "images": rng.integers(0, 256, (samples, height, width, 3), np.uint8),
        "flip_x": rng.integers(0, 2, samples, np.int32),
        "flip_y": rng.integers(0, 2, samples, np.uint8),
    }
    if dtype != "uint8":
        case["scale"], case["bias"] = normalize_factors(MEAN, STD)
    case["erase"] = boxes(rng, shape)
    case["erase_value"] = (1, 2, 255)
    if mix:
        case["mix"] = random_mix(rng, shape)
    return case


def boxes(rng: np.random.Generator, shape: tuple[int, int, int]) -> Array:
    """A rectangle per sample: inside, across the borders, around everything, and none."""
    samples, height, width = shape
    corner = rng.integers((-height, -width), (height + 1, width + 1), (samples, 2))
    size = rng.integers((-1, -1), (2 * height + 2, 2 * width + 2), (samples, 2))
    return np.concatenate([corner, size], axis=1).astype(np.int32)


def random_mix(rng: np.random.Generator, shape: tuple[int, int, int]) -> MixArrays:
    """Partners, one of them outside the batch; weights with 0 and 1 among them; boxes."""
    samples = shape[0]
    partner = rng.integers(0, samples, samples).astype(np.int32)
    partner[-1] = rng.choice((-1, samples, partner[-1]))
    weight = rng.choice([0.0, 1.0, 0.5, 2.0**-140, *rng.random(3)], samples).astype(np.float32)
    return MixArrays(partner, weight, boxes(rng, shape))


def edge_cases(dtype: str) -> list[dict[str, Any]]:
    """Every value of a byte through factors that make subnormals, overflow, ties and -0."""
    images = np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1).repeat(3, 3)
    tiny = 2.0**-140
    cases: list[dict[str, Any]] = [{}]
    if dtype != "uint8":
        cases += [
            {"bias": -0.0},
            {"scale": (tiny, 1e-7, 1e-40), "bias": (0, 0, 3 * tiny)},
            {"scale": (3e38, 257.3, 1e36), "bias": (-1e38, 1, 0)},
        ]
    return [{"images": images, **case} for case in cases]


def at_offset(array: Array, offset: int) -> Array:
    """The same array, `offset` of its elements behind a 64-byte border."""
    room = np.zeros(array.nbytes + 64 + offset * array.itemsize, np.uint8)
    start = -room.ctypes.data % 64 + offset * array.itemsize
    moved = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    moved[...] = array
    return moved


def out_for(images: Array, dtype: str, layout: str) -> Array:
    """Memory for the result, filled with a pattern that no test expects."""
    samples, height, width, _ = images.shape
    shape = (samples, 3, height, width) if layout == "NCHW" else (samples, height, width, 3)
    out = np.empty(shape, MEMORY[dtype])
    out.view(np.uint8)[...] = 0xA5
    return out


def prepared(out: Array, case: dict[str, Any], dtype: str, layout: str) -> Launch:
    """The launch for host arrays."""
    return prepare(**moved({**case, "out": out}, OnDevice), dtype=dtype, layout=layout)


def assert_same_bits(found: Array, expected: Array) -> None:
    """Equality of bits: -0 is not 0 here."""
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_array_equal(found.view(f"u{found.itemsize}"), expected.view(f"u{expected.itemsize}"))
