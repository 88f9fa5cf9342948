"""The kernels as a table: what each is held to, and arguments that exercise everything at once.

Arguments are NumPy arrays and options by name, as the launcher takes them; a kernel writes to `out`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from kit.finished import finish_reference
from kit.unpacked import unpack_reference

from dali_feed.kernels.augment import augment, augment_reference, copies
from dali_feed.kernels.finish import MixArrays, finish, normalize_factors
from dali_feed.kernels.jitter import jitter, jitter_reference
from dali_feed.kernels.launch import Launcher
from dali_feed.kernels.unpack import unpack
from dali_feed.transforms.auto_augment import (
    FLIPPED,
    WIDTH,
    Auto,
    AutoAugment,
    RandAugment,
    TrivialAugmentWide,
    stage_table,
)
from dali_feed.transforms.colour import KINDS, MAX_STEPS

Array = npt.NDArray[Any]
Arguments = dict[str, Any]
Options = tuple[str, ...]

LAYOUTS = ("NCHW", "NHWC")
MEMORY = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16, "uint8": np.uint8}
DTYPES = tuple(MEMORY)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False) | st.floats(-4, 4, width=32)
SEEDS = st.integers(0, 2**32 - 1)


@dataclass(frozen=True)
class Kernel:
    """A kernel under test.

    variants   all that there are of its compiler's options
    reference  what is right, of its arguments without `out`
    drawn      arguments of any kind
    small      some that meet each variant, of images of a few pixels
    usual      larger ones, and an option that is chosen for each
    edges      values through factors that make subnormals, overflow, ties and -0, in spite of CuPy's -ftz=true
    """

    launcher: Launcher[Any]
    variants: tuple[Options, ...]
    reference: Callable[..., Array]
    drawn: st.SearchStrategy[Arguments]
    small: Callable[[], Iterator[Arguments]]
    usual: Callable[[], Iterator[tuple[Arguments, str]]]
    edges: Callable[[], Iterator[Arguments]]

    def right(self, arguments: Arguments) -> Array:
        """What must stand in `out`."""
        return self.reference(**{name: each for name, each in arguments.items() if name not in {"out", "spare"}})


def at_offset(array: Array, offset: int) -> Array:
    """The same array, `offset` of its elements behind a 64-byte border."""
    room = np.zeros(array.nbytes + 64 + offset * array.itemsize, np.uint8)
    start = -room.ctypes.data % 64 + offset * array.itemsize
    moved = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    moved[...] = array
    return moved


def out_for(size: Sequence[int], dtype: str, layout: str, shift: int = 0) -> Array:
    """Memory for images of that size (n, height, width, channels), filled with a pattern that no test expects."""
    n, height, width, channels = size
    shape = (n, channels, height, width) if layout == "NCHW" else (n, height, width, channels)
    out = np.empty(shape, MEMORY[dtype])
    out.view(np.uint8)[...] = 0xA5
    return at_offset(out, shift)


def random_bytes(*shape: int, seed: int = 0) -> Array:
    """Of any value."""
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


# finish


# Bytes of a store, by layout and pixels a thread: planes and single pixels need no other than their own.
VECTORS = {
    dtype: {
        (last, pixels): (0,) if not last or pixels == 1 else tuple({pixels * np.dtype(kind).itemsize, 16})
        for last, pixels in itertools.product((0, 1), (1, 2, 4))
    }
    for dtype, kind in MEMORY.items()
}
FINISHES = tuple(
    (f"-DOUT_{dtype.upper()}", f"-DCHANNELS_LAST={last}", f"-DPIXELS={pixels}", f"-DMIX={mix}", f"-DVECTOR={vector}")
    for dtype, forms in VECTORS.items()
    for (last, pixels), vectors in forms.items()
    for mix, vector in itertools.product((0, 1), vectors)
)


def finish_case(
    dtype: str, shape: tuple[int, int, int], layout: str = "NCHW", *, mix: bool = False, flips: bool = True
) -> Arguments:
    """Everything at once."""
    rng, samples = np.random.default_rng(0), shape[0]
    case: Arguments = {"images": random_bytes(*shape, 3), "dtype": dtype, "layout": layout}
    if flips:
        case["flip_x"] = rng.integers(0, 2, samples, np.int32)
        case["flip_y"] = rng.integers(0, 2, samples, np.uint8)
    if dtype != "uint8":
        case["scale"], case["bias"] = normalize_factors(MEAN, STD)
    case |= {"erase": _boxes(rng, shape), "erase_value": (1, 2, 255), "out": out_for((*shape, 3), dtype, layout)}
    return case | {"mix": _random_mix(rng, shape)} if mix else case


def _boxes(rng: np.random.Generator, shape: tuple[int, int, int]) -> Array:
    """A rectangle per sample: inside, across the borders, around everything, and none."""
    samples, height, width = shape
    corner = rng.integers((-height, -width), (height + 1, width + 1), (samples, 2))
    size = rng.integers((-1, -1), (2 * height + 2, 2 * width + 2), (samples, 2))
    return np.concatenate([corner, size], axis=1).astype(np.int32)


def _random_mix(rng: np.random.Generator, shape: tuple[int, int, int]) -> MixArrays:
    """Partners, one of them outside the batch; weights with 0 and 1 among them; boxes."""
    samples = shape[0]
    partner = rng.integers(0, samples, samples).astype(np.int32)
    partner[-1] = rng.choice((-1, samples, partner[-1]))
    weight = rng.choice([0.0, 1.0, 0.5, 2.0**-140, *rng.random(3)], samples).astype(np.float32)
    return MixArrays(partner, weight, _boxes(rng, shape))


@st.composite
def _drawn_finish(draw: st.DrawFn) -> Arguments:
    """Odd and even shapes, memory offsets, every kind of flag, factors of any size."""
    dtype, layout, seed = draw(st.sampled_from(DTYPES)), draw(st.sampled_from(LAYOUTS)), draw(SEEDS)
    shape = (
        draw(st.integers(1, 4)),
        draw(st.integers(1, 7)),
        draw(st.integers(1, 9) | st.sampled_from((12, 31, 64, 224))),
    )
    case: Arguments = {"dtype": dtype, "layout": layout}
    case["images"] = at_offset(random_bytes(*shape, 3, seed=seed), draw(st.sampled_from((0, 0, 1, 2, 3, 4))))
    case["out"] = out_for((*shape, 3), dtype, layout, draw(st.sampled_from((0, 0, 1, 2, 4))))
    for name in ("flip_x", "flip_y"):
        if draw(st.booleans()):
            kind = draw(st.sampled_from((np.int32, np.uint8, np.bool_)))
            case[name] = draw(hnp.arrays(np.int32, shape[0], elements=st.sampled_from((0, 1, 256, -1)))).astype(kind)
    if dtype != "uint8":
        for name in draw(st.sampled_from(((), ("scale",), ("bias",), ("scale", "bias")))):
            case[name] = draw(FINITE | st.tuples(FINITE, FINITE, FINITE))
    rng = np.random.default_rng(seed)
    if draw(st.booleans()):
        case["erase"] = _boxes(rng, shape)
        case["erase_value"] = draw(st.sampled_from((None, 7, (0, 255, 3))))
    if draw(st.booleans()) and not {"scale", "bias"} & set(case):  # infinite values would meet in a NaN
        mix = _random_mix(rng, shape)
        case["mix"] = replace(mix, **dict.fromkeys(draw(st.sets(st.sampled_from(("weight", "box")))), None))
    return case


def _small_finishes() -> Iterator[Arguments]:
    shapes = ((1, 1, 1), (2, 3, 1), (1, 2, 7), (3, 5, 8), (2, 1, 4), (1, 16, 68), (2, 33, 31), (2, 1, 2), (1, 8, 6))
    for dtype, layout, shape, flips, mix in itertools.product(DTYPES, LAYOUTS, shapes, (True, False), (True, False)):
        yield finish_case(dtype, shape, layout, flips=flips, mix=mix)


def _usual_finishes() -> Iterator[tuple[Arguments, str]]:
    """With everything on, four pixels at a time or two, as the width allows."""
    sizes = (((224, 224), False, 4), ((224, 224), True, 4), ((98, 98), True, 2), ((37, 518), True, 2))
    for dtype, layout, (size, mix, pixels) in itertools.product(DTYPES, LAYOUTS, sizes):
        yield finish_case(dtype, (3, *size), layout, mix=mix), f"-DPIXELS={pixels}"


def _edges_of_finish() -> Iterator[Arguments]:
    images = np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1).repeat(3, 3)
    tiny = 2.0**-140
    factors = (
        {"bias": -0.0},
        {"scale": (tiny, 1e-7, 1e-40), "bias": (0, 0, 3 * tiny)},
        {"scale": (3e38, 257.3, 1e36), "bias": (-1e38, 1, 0)},
    )
    for dtype in DTYPES:
        for each in ({}, *factors) if dtype != "uint8" else ({},):
            yield {"images": images, "out": out_for(images.shape, dtype, "NCHW"), "dtype": dtype, **each}


# jitter


JITTERS = tuple(
    ("-DOUT_UINT8", f"-DPIXELS={pixels}", f"-DVECTOR={vector}") for pixels, vector in ((4, 16), (4, 4), (1, 1))
)


def some_steps(seed: int, samples: int, count: int) -> Array:
    """Steps of every kind, in any order."""
    rng = np.random.default_rng(seed)
    kinds = rng.integers(0, len(KINDS), (samples, count))
    factors = np.where(kinds == KINDS["hue"], rng.uniform(-0.5, 0.5, kinds.shape), rng.uniform(0, 2, kinds.shape))
    return np.stack([kinds, factors], axis=-1).astype(np.float32)


def pictures(shape: tuple[int, int, int], seed: int = 0) -> Array:
    """Images of all levels, the later ones darker."""
    darker = 1 + np.arange(shape[0], dtype=np.uint8) % 3
    pixels: Array = random_bytes(*shape, 3, seed=seed) // darker[:, None, None, None]
    return pixels


def _jitter_case(images: Array, steps: Array, shift: int = 0) -> Arguments:
    return {"images": images, "out": out_for(images.shape, "uint8", "NHWC", shift), "steps": steps}


@st.composite
def _drawn_jitter(draw: st.DrawFn) -> Arguments:
    """Factors may be NaN, kinds may be none."""
    width = st.integers(1, 9) | st.sampled_from((12, 16, 40))
    shape, seed = draw(st.tuples(st.integers(1, 3), st.integers(1, 9), width)), draw(SEEDS)
    steps = some_steps(seed, shape[0], draw(st.integers(1, 6)))
    if draw(st.booleans()):
        numbers = st.floats(width=32) | st.sampled_from((1.0, 2.0, 4.0, 6.0, 6.5, 7.0))
        steps = draw(hnp.arrays(np.float32, steps.shape, elements=numbers))
    shifts = st.sampled_from((0, 0, 1, 4))
    return _jitter_case(at_offset(pictures(shape, seed), draw(shifts)), steps, draw(shifts))


def _small_jitters() -> Iterator[Arguments]:
    for shape in ((1, 1, 1), (2, 3, 5), (2, 2, 2), (1, 12, 33), (2, 4, 4), (1, 40, 60)):
        steps = some_steps(shape[2], shape[0], 4)
        steps[:, 2] = KINDS["contrast"], np.nan
        yield _jitter_case(pictures(shape), steps)


def _usual_jitters() -> Iterator[tuple[Arguments, str]]:
    """Four pixels at a time and stores of 16 bytes where the size allows."""
    for size, vector in (((224, 224), 16), ((98, 98), 4), ((75, 75), 1), ((4, 8), 16)):
        steps = some_steps(1, 3, 4)
        steps[:, 1] = KINDS["contrast"], 0.3
        yield _jitter_case(pictures((3, *size)), steps), f"-DVECTOR={vector}"
    most = np.zeros((2, MAX_STEPS, 2), np.float32)  # each contrast gets the mean of the image as it enters that step
    most[:, ::3, 0], most[:, 1::3, 0] = KINDS["contrast"], KINDS["brightness"]
    most[:, :, 1] = np.random.default_rng(3).uniform(0.8, 1.25, (2, MAX_STEPS))
    yield _jitter_case(pictures((2, 20, 24)), most), "-DVECTOR=16"


# augment


AUGMENTS = tuple(("-DOUT_UINT8", f"-DVECTOR={vector}") for vector in (16, 4, 1))
# All operations, with every way to move pixels; strong, and as strong as any.
AUTOS: tuple[Auto, ...] = (
    AutoAugment((), fill=(1.0, 200.5, 3.0)),
    TrivialAugmentWide(interpolation="bilinear"),
    RandAugment(interpolation="bilinear", fill=(1.0, 200.5, 3.0)),
)


def some_rows(seed: int, shape: tuple[int, int, int], size: tuple[int, int]) -> Array:
    """Stages of every kind on images of that size, mirrored or not; of every fourth sample nothing is done."""
    rng = np.random.default_rng(seed)
    tables = [stage_table(op, *size) for op in AUTOS]
    names, strong, sign = (rng.integers(0, 10_000, shape) for _ in range(3))
    rows = np.zeros((*shape, WIDTH), np.float32)
    for place in np.ndindex(*shape):
        table = tables[int(rng.integers(len(tables)))]
        rows[place] = table[names[place] % len(table), strong[place] % table.shape[1], sign[place] % 2]
    rows[..., FLIPPED] = rng.integers(0, 2, (*shape, 2))
    rows[3::4, :, :, : FLIPPED.stop] = 0
    return rows


def augment_case(images: Array, rows: Array, weights: Array | None = None, shift: int = 0) -> Arguments:
    """With memory to work in, if that is needed."""
    count = copies(*rows.shape[1:3], mixed=weights is not None)
    spare = at_offset(np.full((count, *images.shape), 0xA5, np.uint8), shift) if count else None
    case = {"images": images, "out": out_for(images.shape, "uint8", "NHWC", shift), "rows": rows}
    return case | {"spare": spare, "weights": weights}


def some_weights(seed: int, samples: int, chains: int) -> Array:
    """Shares of the image and of its chains, which add up to one."""
    shares: Array = np.random.default_rng(seed).dirichlet(np.ones(1 + chains), samples).astype(np.float32)
    return shares


@st.composite
def _drawn_augment(draw: st.DrawFn) -> Arguments:
    """Rows of operations, or of any numbers."""
    width = st.integers(1, 9) | st.sampled_from((12, 16, 40))
    shape, seed = draw(st.tuples(st.integers(1, 4), st.integers(1, 9), width)), draw(SEEDS)
    chains = draw(st.sampled_from((0, 0, 1, 3)))
    rows = some_rows(seed, (shape[0], max(1, chains), draw(st.integers(1, 3))), shape[1:])
    if draw(st.booleans()):
        numbers = st.floats(width=32) | st.sampled_from((0.0, 1.0, 2.5, 7.0, 10.0, 11.0, 12.0, 13.0))
        rows = draw(hnp.arrays(np.float32, rows.shape, elements=numbers))
    weights = some_weights(seed, shape[0], chains) if chains else None
    shifts = st.sampled_from((0, 0, 1, 4))
    return augment_case(at_offset(pictures(shape, seed), draw(shifts)), rows, weights, draw(shifts))


def _small_augments() -> Iterator[Arguments]:
    for n, shape in enumerate(((1, 1, 1), (2, 3, 5), (5, 2, 2), (1, 12, 33), (2, 4, 4), (1, 40, 60), (3, 7, 16))):
        for chains, stages in ((0, 1), (0, 3), (3, 2)):
            weights = some_weights(n, shape[0], chains) if chains else None
            rows = some_rows(n, (shape[0], max(1, chains), stages), shape[1:])
            yield augment_case(pictures(shape), rows, weights)
            bits = np.random.default_rng(n).integers(0, 2**32, rows.shape, np.uint32).view(np.float32)
            bits[..., 0] = np.where(rows[..., 0] > 0, rows[..., 0], bits[..., 0])
            yield augment_case(
                pictures(shape), bits, weights
            )  # memory that nobody has written to: it is rehearsed with


def _usual_augments() -> Iterator[tuple[Arguments, str]]:
    """Two operations of each, and mixed chains; stores of 16 bytes where the size allows."""
    for size, vector, chains in (((224, 224), 16, 0), ((98, 98), 4, 0), ((75, 75), 1, 2), ((4, 8), 16, 3)):
        rows = some_rows(1, (3, max(1, chains), 2), size)
        weights = some_weights(1, 3, chains) if chains else None
        yield augment_case(pictures((3, *size)), rows, weights), f"-DVECTOR={vector}"
    yield augment_case(pictures((64, 33, 47)), some_rows(2, (64, 1, 2), (33, 47))), "-DVECTOR=1"


# unpack


STREAMS = ((8, "little"), (10, "little"), (10, "big"), (12, "little"), (12, "big"), (16, "little"), (16, "big"))
CHANNELS = (1, 2, 3, 4)
ORDERS = ("interleaved", "planar")
# Every kind of record: its stream, channels and order, and the layout and type that it becomes.
RECORDS: list[Arguments] = [
    {"bits": bits, "endian": endian, "channels": channels, "order": order, "layout": layout, "dtype": dtype}
    for (bits, endian), channels, order, layout, dtype in itertools.product(STREAMS, CHANNELS, ORDERS, LAYOUTS, DTYPES)
    if bits == 8 or dtype != "uint8"
]


def payload_of(case: Arguments) -> int:
    """Bytes that the elements of one record fill."""
    return int(-(-math.prod(case["shape"]) * case.get("bits", 8) // 8))


def unpack_case(
    kind: Arguments,
    samples: int,
    size: tuple[int, int],
    *,
    offset: int = 0,
    gap: int = 0,
    shifts: tuple[int, int] = (0, 0),
    seed: int = 0,
) -> Arguments:
    """Records of exactly the bytes they need, `gap` bytes between them, records and `out` behind a 64-byte border.

    Also the bytes that belong to nobody are random, those between records among them. A scale and a bias per channel.
    """
    channels: int = kind["channels"]
    rng = np.random.default_rng(seed)
    case = {name: value for name, value in kind.items() if name != "channels"}
    case |= {"shape": (*size, channels), "offset": offset}
    length = offset + payload_of(case)
    room = at_offset(random_bytes((samples - 1) * (length + gap) + length, seed=seed), shifts[0])
    case["records"] = np.lib.stride_tricks.as_strided(room, (samples, length), (length + gap, 1))
    case["out"] = out_for((samples, *size, channels), case["dtype"], case["layout"], shifts[1])
    if case["dtype"] != "uint8":
        case["scale"] = tuple(rng.uniform(0.5, 2, channels) / (2 ** case["bits"] - 1))
        case["bias"] = tuple(rng.standard_normal(channels).tolist())
    return case


def packed(values: Sequence[int], bits: int, endian: str) -> Array:
    """The values as one stream of bits, zeros behind the last: put together as one long number of Python's."""
    digits = [format(value, f"0{bits}b") for value in values]
    size = -(-len(digits) * bits // 8)
    text = "".join(digits).ljust(8 * size, "0") if endian == "big" else "".join(reversed(digits))
    return np.frombuffer(int(text, 2).to_bytes(size, "big" if endian == "big" else "little"), np.uint8)


@st.composite
def _drawn_unpack(draw: st.DrawFn) -> Arguments:
    """Shapes, headers, pitches and memory of any alignment, factors of any size."""
    few = st.sampled_from((0, 0, 1, 2, 4, 8, 16)) | st.integers(0, 40)
    case = unpack_case(
        draw(st.sampled_from(RECORDS)),
        draw(st.integers(1, 5)),
        (draw(st.integers(1, 9)), draw(st.integers(1, 9) | st.sampled_from((16, 24, 40, 73)))),
        offset=draw(few),
        gap=draw(few),
        shifts=(draw(few), draw(st.sampled_from((0, 1, 2, 4, 8)))),
        seed=draw(SEEDS),
    )
    for name in {"scale", "bias"} & set(case):
        channels = case["shape"][2]
        case[name] = draw(st.sampled_from((case[name], 1.0)) | FINITE | st.tuples(*(FINITE,) * channels))
    return case


def _small_unpacks() -> Iterator[Arguments]:
    sizes, places = ((1, 1), (1, 3), (5, 7), (2, 4), (8, 33)), ((0, 0), (16, 5), (3, 0))
    for kind, size, (offset, gap) in zip(RECORDS, itertools.cycle(sizes), itertools.cycle(places)):
        yield unpack_case(kind, 3, size, offset=offset, gap=gap)


def _usual_unpacks() -> Iterator[tuple[Arguments, str]]:
    """Few large images and many small ones behind a header of 64 bytes; one record again and again, as broadcast."""
    for number, kind in enumerate(RECORDS[:: len(RECORDS) // 40]):
        samples, size = ((3, (32, 40)), (40, (28, 28)), (700, (2, 4)), (2, (224, 224)))[number % 4]
        yield unpack_case(kind, samples, size, offset=64), f"-DOUT_{kind['dtype'].upper()}"
    case = unpack_case(RECORDS[0], 1, (4, 8))
    case["out"] = out_for((5, 4, 8, 1), case["dtype"], case["layout"])
    case["records"] = np.broadcast_to(case["records"], (5, case["records"].shape[1]))
    yield case, "-DOUT_FLOAT32"


def _edges_of_unpack() -> Iterator[Arguments]:
    tiny = 2.0**-140
    factors = ({"bias": -0.0}, {"scale": -1, "bias": -0.0}, {"scale": tiny, "bias": 3 * tiny}, {"scale": 3e38})
    for bits, endian in STREAMS:
        side, records = 2 ** (bits // 2), packed(range(2**bits), bits, endian)[None]
        for dtype, each in itertools.product(DTYPES, ({}, *factors)):
            if dtype == "uint8" and (each or bits != 8):
                continue
            case = {"shape": (side, side, 1), "bits": bits, "endian": endian, "dtype": dtype, **each}
            yield {"records": records, "out": out_for((1, side, side, 1), dtype, "NCHW"), **case}


KERNELS = {
    "augment": Kernel(
        *(augment, AUGMENTS, augment_reference, _drawn_augment()),
        *(_small_augments, _usual_augments, lambda: iter(())),
    ),
    "finish": Kernel(
        *(finish, FINISHES, finish_reference, _drawn_finish()),
        *(_small_finishes, _usual_finishes, _edges_of_finish),
    ),
    "jitter": Kernel(
        *(jitter, JITTERS, jitter_reference, _drawn_jitter()),
        *(_small_jitters, _usual_jitters, lambda: iter(())),
    ),
    "unpack": Kernel(
        *(unpack, tuple((f"-DOUT_{dtype.upper()}",) for dtype in DTYPES), unpack_reference, _drawn_unpack()),
        *(_small_unpacks, _usual_unpacks, _edges_of_unpack),
    ),
}
