"""What the tests of unpack share: which variants are compiled, and records that exercise everything at once."""

from __future__ import annotations

import itertools
import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from finish_cases import MEMORY, Array, at_offset
from hypothesis import strategies as st
from kernels_host import OnDevice

from dali_feed.kernels.launch import Launch
from dali_feed.kernels.unpack import prepare

STREAMS = ((8, "little"), (10, "little"), (10, "big"), (12, "little"), (12, "big"), (16, "little"), (16, "big"))
CHANNELS = (1, 2, 3, 4)
ORDERS = ("interleaved", "planar")
LAYOUTS = ("NCHW", "NHWC")
FLOATS = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Kind:
    """What a variant does."""

    bits: int
    endian: str
    channels: int
    order: str
    layout: str
    dtype: str

    @property
    def options(self) -> tuple[str, ...]:
        """The compiler's options of the variant."""
        return (
            f"-DOUT_{self.dtype.upper()}",
            f"-DBITS={self.bits}",
            f"-DMSB_FIRST={int(self.endian == 'big')}",
            f"-DCHANNELS={self.channels}",
            f"-DPLANAR_IN={int(self.order == 'planar')}",
            f"-DCHANNELS_LAST={int(self.layout == 'NHWC')}",
        )

    def arguments(self, height: int, width: int, **more: Any) -> dict[str, Any]:
        """The keywords of unpack_reference for images of that size."""
        return {
            "shape": (height, width, self.channels),
            "bits": self.bits,
            "order": self.order,
            "endian": self.endian,
            "dtype": self.dtype,
            "layout": self.layout,
            **more,
        }


def _kinds() -> tuple[Kind, ...]:
    """Of the 286 kinds there are those 42 in which every stream, order, layout, type and number of channels occurs."""
    found = []
    for s, (bits, endian) in enumerate(STREAMS):
        for channels in CHANNELS:
            turn = s + channels
            layout = "NCHW" if channels == 1 else LAYOUTS[turn % 2]
            found.append(Kind(bits, endian, channels, "interleaved", layout, FLOATS[turn % 3]))
        found.append(Kind(bits, endian, 2 + s % 3, "planar", LAYOUTS[s % 2], FLOATS[s % 3]))
    found.append(Kind(8, "little", 1, "interleaved", "NCHW", "uint8"))
    for channels, (turn, layout) in itertools.product(CHANNELS[1:], enumerate(LAYOUTS)):
        found.append(Kind(8, "little", channels, ORDERS[(channels + turn) % 2], layout, "uint8"))
    return tuple(found)


KINDS = _kinds()
VARIANTS = tuple(dict.fromkeys(kind.options for kind in KINDS))


def name_of(kind: Kind) -> str:
    """For the report of a test."""
    return f"{kind.bits}-{kind.endian}-{kind.channels}-{kind.order}-{kind.layout}-{kind.dtype}"


def payload_of(case: dict[str, Any]) -> int:
    """Bytes that the elements of one record fill."""
    return int(-(-math.prod(case["shape"]) * case["bits"] // 8))


def random_records(samples: int, case: dict[str, Any], *, gap: int = 0, shift: int = 0, seed: int = 0) -> Array:
    """Records of exactly the bytes they need, `gap` bytes between them, `shift` bytes behind a 64-byte border.

    Also the bytes that belong to nobody are random, those between records among them.
    """
    length = case.get("offset", 0) + payload_of(case)
    room = np.random.default_rng(seed).integers(0, 256, (samples - 1) * (length + gap) + length, np.uint8)
    return np.lib.stride_tricks.as_strided(at_offset(room, shift), (samples, length), (length + gap, 1))


def packed(values: Sequence[int], bits: int, endian: str) -> Array:
    """The values as one stream of bits, zeros behind the last: put together as one long number of Python's."""
    digits = [format(value, f"0{bits}b") for value in values]
    size = -(-len(digits) * bits // 8)
    text = "".join(digits).ljust(8 * size, "0") if endian == "big" else "".join(reversed(digits))
    return np.frombuffer(int(text, 2).to_bytes(size, "big" if endian == "big" else "little"), np.uint8)


def random_factors(kind: Kind, seed: int = 0) -> dict[str, Any]:
    """A scale and a bias per channel, none where there may be none."""
    if kind.dtype == "uint8":
        return {}
    rng = np.random.default_rng(seed)
    scale, bias = rng.uniform(0.5, 2, kind.channels) / (2**kind.bits - 1), rng.standard_normal(kind.channels)
    return {"scale": tuple(scale.tolist()), "bias": tuple(bias.tolist())}


def out_for(samples: int, case: dict[str, Any], shift: int = 0) -> Array:
    """Memory for the result, filled with a pattern that no test expects, `shift` elements behind a 64-byte border."""
    height, width, channels = case["shape"]
    shape = (channels, height, width) if case["layout"] == "NCHW" else (height, width, channels)
    out = np.empty((samples, *shape), MEMORY[case["dtype"]])
    out.view(np.uint8)[...] = 0xA5
    return at_offset(out, shift)


def untouched(size: int) -> Array:
    """So many bytes of which a page takes memory only once it is touched."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    return np.frombuffer(mmap.mmap(-1, size, flags=flags), np.uint8)


def prepared(records: Array, out: Array, case: dict[str, Any]) -> Launch:
    """The launch for host arrays."""
    return prepare(OnDevice(records), OnDevice(out), **case)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Array, Array, dict[str, Any]]:
    """Shapes, headers, pitches and memory that vectors fit and do not fit, factors of any size."""
    kind, fits = draw(st.sampled_from(KINDS)), draw(st.booleans())
    height, width = draw(st.integers(1, 9)), draw(st.integers(1, 9) | st.sampled_from((16, 24, 40, 73)))
    few = st.sampled_from((0, 0, 1, 2, 4, 8, 16)) | st.integers(0, 40)
    case = kind.arguments(height, -(-width // 8) * 8 if fits else width, offset=draw(few))
    if kind.dtype != "uint8":
        finite = st.floats(width=32, allow_nan=False, allow_infinity=False) | st.floats(-4, 4, width=32)
        for name in draw(st.sampled_from(((), ("scale",), ("bias",), ("scale", "bias")))):
            case[name] = draw(finite | st.tuples(*(finite,) * kind.channels))
    samples, gap, shift = draw(st.integers(1, 5)), draw(few), draw(few)
    if fits:  # on to the next border, which few headers and pitches reach by chance
        gap, shift = gap + -(case["offset"] + payload_of(case) + gap) % 16, -case["offset"] % 16
    records = random_records(samples, case, gap=gap, shift=shift, seed=draw(st.integers(0, 2**32 - 1)))
    return records, out_for(samples, case, 0 if fits else draw(st.sampled_from((0, 1, 2, 4, 8)))), case
