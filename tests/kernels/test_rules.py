"""What the kernels' launchers refuse, and what that of finish reads off the memory that it is given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from kernels_host import OnDevice
from nvidia.dali.backend import TensorCPU

from dali_feed.errors import ConfigError
from dali_feed.kernels.finish import MixArrays, finish, prepare
from dali_feed.kernels.jitter import jitter
from dali_feed.kernels.unpack import unpack

IMAGES = np.zeros((2, 4, 6, 3), np.uint8)
OUT = np.zeros((2, 3, 4, 6), np.float32)
BYTES = OnDevice(np.zeros(OUT.shape, np.uint8))
STEPS = np.zeros((2, 3, 2), np.float32)
RECORDS = np.zeros((2, 80), np.uint8)
BOXES = {"erase": OnDevice(np.zeros((2, 4), np.int32))}
PAIR = OnDevice(np.zeros(2, np.int32))
CUBES, OF_CUBES = (OnDevice(np.zeros((5, 3, 3, 3), kind)) for kind in (np.uint8, np.float32))
READ_ONLY = {"data": (OUT.ctypes.data, True)}


# What each kernel is given, which breaks no rule, and changes of it with what is said of them. What `kernels.arguments`
# asks of the arrays and numbers of all stands at the first.
FINISH = {"images": OnDevice(IMAGES), "out": OnDevice(OUT)}
JITTER = {"images": OnDevice(IMAGES), "out": OnDevice(IMAGES.copy()), "steps": OnDevice(STEPS)}
UNPACK: dict[str, Any] = {"records": OnDevice(RECORDS), "out": OnDevice(OUT), "shape": (4, 6, 3)}
BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"images": CUBES, "out": OF_CUBES}, "layout must be given"),  # planes or channels last: nothing is guessed
    ({"images": IMAGES}, "images must be an array on a GPU .* found ndarray"),
    ({"images": torch.zeros(2, 4, 6, 3)}, "images must be an array on a GPU .* found Tensor"),
    ({"images": OnDevice(IMAGES.astype(np.int8))}, r"images must have dtype uint8, found int8"),
    ({"images": OnDevice(IMAGES[0])}, r"images must have shape \(N, H, W, 3\) .* found \(4, 6, 3\)"),
    ({"images": OnDevice(IMAGES[:0])}, r"N, H, W >= 1, found \(0, 4, 6, 3\)"),
    (
        {"images": OnDevice(IMAGES[:, :, ::2])},
        r"images must be C contiguous \(give a contiguous copy\), found shape .* strides",
    ),
    (
        {"images": OnDevice(IMAGES, shape=(1, 65536, 32768, 3), strides=None)},
        "images must be fewer than 2,147,483,648, of fewer pixels",
    ),
    ({"out": OnDevice(OUT[:, :, ::2])}, r"out must be dense, of shape \(2, 3, 4, 6\) or \(2, 4, 6, 3\)"),
    ({"out": OnDevice(OUT.astype(np.float64))}, "out must be float32, float16, bfloat16 or uint8 .* found float64"),
    ({"out": OnDevice(OUT.astype(np.uint16))}, "out must be .* give dtype='bfloat16'"),
    ({"dtype": "bfloat16"}, "out must have the type that dtype='bfloat16' names.* found float32"),
    ({"dtype": "double"}, "out must have the type that dtype='double' names"),
    ({"layout": "NHWC"}, "out must have the order in memory that layout='NHWC' names"),
    ({"layout": "CHWN"}, "layout must be one of NCHW, NHWC or None, found 'CHWN'"),
    ({"out": OnDevice(OUT, **READ_ONLY)}, "out must be writable"),
    ({"out": OnDevice(IMAGES), "layout": "NHWC"}, "out must not overlap images"),
    ({"out": OnDevice(OUT, data=(OUT.ctypes.data + 2, False))}, "multiple of its element size, 4 bytes"),
    ({"flip_x": OnDevice(np.zeros(3, np.int32))}, r"flip_x must have shape \(2,\), .* found \(3,\)"),
    ({"flip_y": OnDevice(np.zeros(2, np.int64))}, r"flip_y must have dtype int32 or uint8 or bool, found int64"),
    ({"flip_y": OnDevice(np.zeros(4, np.int32)[::2])}, "flip_y must be C contiguous"),
    ({"erase": OnDevice(np.zeros((2, 2), np.int32))}, r"erase must have shape \(2, 4\)"),
    ({"erase_value": 1.0}, "erase_value must be None without erase.* found 1.0"),
    ({**BOXES, "erase_value": (1, 2)}, "erase_value must be three finite float32 numbers or one"),
    ({**BOXES, "erase_value": float("inf")}, "erase_value must be three finite float32 numbers or one"),
    ({**BOXES, "out": BYTES, "erase_value": 1.5}, "erase_value must be whole and from 0 to 255 if out is uint8"),
    ({"mix": MixArrays(None)}, "mix.partner must be an int32 array, found None"),
    ({"mix": MixArrays(OnDevice(np.zeros(2, np.int64)))}, "mix.partner must have dtype int32, found int64"),
    ({"mix": MixArrays(PAIR, weight=PAIR)}, "mix.weight must have dtype float32, found int32"),
    ({"mix": MixArrays(PAIR, box=PAIR)}, r"mix.box must have shape \(2, 4\)"),
    ({"scale": (1.0, 2.0)}, "scale must be three finite float32 numbers or one"),
    ({"scale": "big"}, "scale must be three finite float32 numbers or one, found 'big'"),
    ({"scale": 1e39}, "scale must be three finite float32 numbers or one, found 1e"),
    ({"bias": float("nan")}, "bias must be three finite"),
    ({"out": BYTES, "scale": 2.0}, "must be None if out is uint8"),
]
OF_JITTER: list[tuple[dict[str, Any], str]] = [
    ({"images": IMAGES}, "images must be an array on a GPU .* found ndarray"),
    ({"images": OnDevice(IMAGES[0])}, r"images must have shape \(N, H, W, 3\)"),
    ({"images": OnDevice(IMAGES[:, :, ::2])}, "images must be C contiguous"),
    ({"out": OnDevice(IMAGES)}, "out must not overlap images"),
    ({"out": OnDevice(IMAGES[:1].copy())}, r"out must have the shape of images, \(2, 4, 6, 3\)"),
    ({"out": OnDevice(IMAGES.copy(), data=(IMAGES.ctypes.data + 4096, True))}, "out must be writable"),
    ({"steps": OnDevice(STEPS[:1])}, r"steps must have shape \(2, 1 to 64, 2\), found \(1, 3, 2\)"),
    ({"steps": OnDevice(np.zeros((2, 65, 2), np.float32))}, r"steps must have shape \(2, 1 to 64, 2\)"),
    ({"steps": OnDevice(STEPS.astype(float))}, "steps must have dtype float32, found float64"),
]
OF_UNPACK: list[tuple[dict[str, Any], str]] = [
    ({"records": RECORDS}, "records must be an array on a GPU .* found ndarray"),
    ({"records": OnDevice(RECORDS.view(np.uint16))}, r"records must have dtype uint8, found uint16"),
    ({"records": OnDevice(RECORDS[0])}, r"records must have shape \(N, bytes\) with N >= 1, found \(80,\)"),
    ({"records": OnDevice(RECORDS[:0])}, r"records must have shape .* found \(0, 80\)"),
    ({"records": OnDevice(RECORDS[:, :71])}, r"records must have 0 \+ 72 bytes each, .* found 71"),
    ({"offset": 9}, r"records must have 9 \+ 72 bytes each, .* found 80"),
    ({"bits": 10}, r"records must have 0 \+ 90 bytes each"),
    ({"records": OnDevice(np.zeros((2, 160), np.uint8)[:, ::2])}, r"bytes of a record side by side, .* \(160, 2\)"),
    ({"records": OnDevice(RECORDS[::-1])}, r"each record after the one before it, found .* \(-80, 1\) bytes"),
    ({"records": OnDevice(RECORDS, strides=(2**31, 1))}, "must be fewer than 2,147,483,648, of fewer bytes"),
    ({"shape": (4, 6)}, r"shape must be \(height, width, channels\), each at least 1, found \(4, 6\)"),
    ({"shape": (4, 0, 3)}, "shape must be .* each at least 1"),
    ({"shape": (4, 6.5, 3)}, "shape must be .* found .*6.5"),
    ({"shape": 72}, "shape must be .* found 72"),
    ({"shape": (4, 3, 6)}, "shape must have at most 4 channels .* more records or rows.*, found .*6"),
    ({"bits": 14}, "bits must be one of 8, 10, 12, 16, found 14"),
    ({"order": "CHW"}, "order must be one of interleaved, planar, found 'CHW'"),
    ({"endian": "native"}, "endian must be one of little, big, found 'native'"),
    ({"offset": -1}, "offset must be 0 or more bytes, found -1"),
    ({"offset": 0.5}, "offset must be a whole number of bytes, found 0.5"),
    (
        {"out": OnDevice(OUT[:, :, ::2])},
        r"out must be dense, of shape \(2, 3, 4, 6\) or \(2, 4, 6, 3\), as records have",
    ),
    ({"out": OnDevice(BYTES.array, data=(RECORDS.ctypes.data + 159, False))}, "out must not overlap records"),
    ({"out": BYTES, "scale": 2.0}, "scale and bias must be None if out is uint8"),
    (
        {"out": OnDevice(BYTES.array[:, :, :2].copy()), "bits": 12, "shape": (2, 6, 3)},
        "bits must be 8 if out is uint8, found 12",
    ),
    ({"scale": (1.0, 2.0)}, "scale must be three finite float32 numbers or one, found .1.0, 2.0"),
]


@pytest.mark.parametrize(
    ("launcher", "arguments", "changes", "told"),
    [
        (launcher, arguments, *row)
        for launcher, arguments, rows in (
            *((finish, FINISH, BROKEN), (jitter, JITTER, OF_JITTER), (unpack, UNPACK, OF_UNPACK)),
        )
        for row in rows
    ],
)
def test_a_broken_rule_is_named(launcher: Any, arguments: dict[str, Any], changes: dict[str, Any], told: str) -> None:
    """What cannot be launched is refused before anything runs: kernel, argument, rule and what was found."""
    with pytest.raises(ConfigError, match=f"^{launcher.__name__}: .*{told}"):
        launcher(**{**arguments, **changes})


@pytest.mark.parametrize("stream", [True, -1, "main", 2.5])
def test_a_stream_is_a_stream(stream: object) -> None:
    """A stream that is none is refused by name."""
    with pytest.raises(ConfigError, match="finish: stream must be a cudaStream_t"):
        finish(OnDevice(IMAGES), OnDevice(OUT), stream=stream)


LAST, ONE = np.zeros((2, 4, 6, 3), np.float32), np.zeros((1, 4, 6, 3), np.uint8)
BITS = np.zeros(OUT.shape, np.uint16)


@pytest.mark.parametrize(
    ("images", "out", "given", "option"),
    [
        (OnDevice(IMAGES), OnDevice(OUT), {}, "-DCHANNELS_LAST=0"),
        (OnDevice(IMAGES), OnDevice(LAST), {}, "-DCHANNELS_LAST=1"),
        (OnDevice(IMAGES), OnDevice(LAST.transpose(0, 3, 1, 2)), {}, "-DCHANNELS_LAST=1"),  # torch's memory format
        # A dimension of size 1 may have any stride, as in torch.
        (OnDevice(ONE, strides=(1, 18, 3, 1)), OnDevice(OUT[:1], strides=(4, 96, 24, 4)), {}, "-DCHANNELS_LAST=0"),
        (CUBES, OF_CUBES, {"layout": "NCHW"}, "-DCHANNELS_LAST=0"),
        (CUBES, OF_CUBES, {"layout": "NHWC"}, "-DCHANNELS_LAST=1"),
        (OnDevice(IMAGES), OnDevice(BITS), {"dtype": "bfloat16"}, "-DOUT_BFLOAT16"),
        (OnDevice(IMAGES), OnDevice(BITS, typestr="<V2"), {}, "-DOUT_BFLOAT16"),  # as torch spells it
    ],
)
def test_options_follow_from_the_memory(images: Any, out: Any, given: dict[str, Any], option: str) -> None:
    """Shape, strides and type say which variant runs; what they leave open the caller says."""
    assert option in prepare(images, out, **given).options


def test_four_or_two_pixels_at_a_time_only_where_words_are_aligned() -> None:
    """Vectors need rows, images and out at their own borders; anything else goes pixel by pixel."""
    images, out = np.zeros((2, 4, 8, 3), np.uint8), np.zeros((2, 3, 4, 8), np.float32)
    at, to = images.ctypes.data // 64 * 64, out.ctypes.data // 64 * 64 + 2**32

    def pixels(shift_in: int, shift_out: int) -> str:
        moved = OnDevice(images, data=(at + shift_in, False)), OnDevice(out, data=(to + shift_out, False))
        return prepare(*moved).options[2]

    assert pixels(0, 0) == pixels(4, 16) == "-DPIXELS=4"
    assert pixels(2, 0) == pixels(0, 8) == pixels(2, 24) == "-DPIXELS=2"
    assert {pixels(1, 0), pixels(0, 4), pixels(2, 4), pixels(3, 12)} == {"-DPIXELS=1"}
    for width, expected in ((98, 2), (518, 2), (224, 4), (299, 1)):
        some = np.zeros((2, 4, width, 3), np.uint8), np.zeros((2, 3, 4, width), np.float32)
        assert prepare(*(OnDevice(array) for array in some)).options[2] == f"-DPIXELS={expected}"


@pytest.mark.parametrize(
    ("size", "kind", "at", "vector"),
    [
        ((224, 224), np.float16, 0, 16),
        ((224, 224), np.uint8, 0, 16),
        ((518, 518), np.float32, 0, 16),
        ((518, 518), np.float16, 0, 4),  # samples of 8 bytes more than a multiple of 16
        ((98, 98), np.float32, 0, 16),
        ((2, 6), np.uint8, 0, 2),
        ((1, 4), np.float16, 0, 8),
        ((224, 224), np.float16, 8, 8),
        ((224, 224), np.float16, 4, 4),
        ((299, 299), np.float32, 0, 0),
    ],
)
def test_stores_of_sixteen_bytes_where_every_sample_begins_at_one(
    size: tuple[int, int], kind: type, at: int, vector: int
) -> None:
    """Channels last is stored in vectors of 16 bytes, or of the pixels that a thread has, by size and alignment."""
    images: Any = np.zeros((3, *size, 3), np.uint8)
    out: Any = np.zeros((3, *size, 3), kind)
    images_at, out_at = images.ctypes.data // 64 * 64, out.ctypes.data // 64 * 64 + 2**32 + at
    job = prepare(OnDevice(images, data=(images_at, False)), OnDevice(out, data=(out_at, False)), layout="NHWC")
    assert job.options[4] == f"-DVECTOR={vector}"


def test_images_as_dali_describes_them() -> None:
    """A DALI tensor spells its dtype and strides in its own way and is understood."""
    tensor = TensorCPU(IMAGES)
    job = prepare(OnDevice(IMAGES, **tensor.__array_interface__), OnDevice(OUT))
    assert int(job.arguments[0]) == tensor.data_ptr()
