"""What the kernels' launchers refuse, what that of finish reads off the memory that it is given, and where it runs."""

from __future__ import annotations

import os
import subprocess
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from kernels_host import OnDevice
from nvidia.dali.backend import TensorCPU

from dali_feed.errors import ConfigError, EngineError
from dali_feed.kernels import launch
from dali_feed.kernels.augment import augment
from dali_feed.kernels.finish import MixArrays, finish, normalize_factors
from dali_feed.kernels.jitter import jitter
from dali_feed.kernels.unpack import unpack

IMAGES = np.zeros((2, 4, 6, 3), np.uint8)
OUT = np.zeros((2, 3, 4, 6), np.float32)
BYTES = OnDevice(np.zeros(OUT.shape, np.uint8))
STEPS = np.zeros((2, 3, 2), np.float32)
ROWS = np.zeros((2, 1, 3, 12), np.float32)
RECORDS = np.zeros((2, 80), np.uint8)
BOXES = {"erase": OnDevice(np.zeros((2, 4), np.int32))}
PAIR = OnDevice(np.zeros(2, np.int32))
CUBES, OF_CUBES = (OnDevice(np.zeros((5, 3, 3, 3), kind)) for kind in (np.uint8, np.float32))
READ_ONLY = {"data": (OUT.ctypes.data, True)}


# What each kernel is given, which breaks no rule, and changes of it with what is said of them. What `kernels.arguments`
# asks of the arrays and numbers of all stands at the first.
FINISH = {"images": OnDevice(IMAGES), "out": OnDevice(OUT)}
JITTER = {"images": OnDevice(IMAGES), "out": OnDevice(IMAGES.copy()), "steps": OnDevice(STEPS)}
AUGMENT = {
    "images": OnDevice(IMAGES),
    "out": OnDevice(IMAGES.copy()),
    "rows": OnDevice(ROWS),
    "spare": OnDevice(IMAGES[None].copy()),
}
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
    ({"out": OnDevice(IMAGES[:1].copy())}, r"out must have the shape of images, \(2, 4, 6, 3\)"),
    ({"steps": OnDevice(STEPS[:1])}, r"steps must have shape \(2, 1 to 64, 2\), found \(1, 3, 2\)"),
    ({"steps": OnDevice(np.zeros((2, 65, 2), np.float32))}, r"steps must have shape \(2, 1 to 64, 2\)"),
    ({"steps": OnDevice(STEPS.astype(float))}, "steps must have dtype float32, found float64"),
]
OF_AUGMENT: list[tuple[dict[str, Any], str]] = [
    ({"out": OnDevice(IMAGES)}, "out must not overlap images"),
    (
        {"rows": OnDevice(ROWS[..., :11].copy())},
        r"rows must have shape \(2, chains, stages, 12\), found \(2, 1, 3, 11\)",
    ),
    ({"rows": OnDevice(ROWS[:, :, :0])}, r"rows must have shape \(2, chains, stages, 12\), found \(2, 1, 0, 12\)"),
    ({"rows": OnDevice(ROWS.astype(float))}, "rows must have dtype float32, found float64"),
    ({"rows": OnDevice(ROWS.repeat(2, 1))}, "rows must have one chain without weights, found 2"),
    ({"spare": None}, "spare must be an array on a GPU .* found NoneType"),
    ({"spare": OnDevice(IMAGES)}, r"spare must have shape \(1, 2, 4, 6, 3\), found \(2, 4, 6, 3\)"),
    ({"spare": OnDevice(IMAGES[None])}, "spare must not overlap images"),
    ({"weights": OnDevice(np.zeros((2, 3), np.float32))}, r"weights must have shape \(2, 2\), .* found \(2, 3\)"),
]
OF_UNPACK: list[tuple[dict[str, Any], str]] = [
    ({"records": OnDevice(RECORDS.view(np.uint16))}, r"records must have dtype uint8, found uint16"),
    ({"records": OnDevice(RECORDS[0])}, r"records must have shape \(N, bytes\) with N >= 1, found \(80,\)"),
    ({"records": OnDevice(RECORDS[:, :71])}, r"records must have 0 \+ 72 bytes each, .* found 71"),
    ({"offset": 9}, r"records must have 9 \+ 72 bytes each, .* found 80"),
    ({"records": OnDevice(np.zeros((2, 160), np.uint8)[:, ::2])}, r"bytes of a record side by side, .* \(160, 2\)"),
    ({"records": OnDevice(RECORDS[::-1])}, r"each record after the one before it, found .* \(-80, 1\) bytes"),
    ({"records": OnDevice(RECORDS, strides=(2**31, 1))}, "must be fewer than 2,147,483,648, of fewer bytes"),
    ({"shape": (4, 6)}, r"shape must be \(height, width, channels\), found \(4, 6\)"),
    ({"shape": (4, 0, 3)}, r"shape, \(4, 0, 3\): must be an int of at least 1; found 0"),
    ({"shape": (4, 3, 6)}, "shape must have at most 4 channels .* more records or rows.*, found .*6"),
    ({"bits": 14}, "bits must be one of 8, 10, 12, 16, found 14"),
    ({"offset": -1}, "offset: must be an int of at least 0; found -1"),
    (
        {"out": OnDevice(OUT[:, :, ::2])},
        r"out must be dense, of shape \(2, 3, 4, 6\) or \(2, 4, 6, 3\), as records have",
    ),
    ({"out": OnDevice(BYTES.array, data=(RECORDS.ctypes.data + 159, False))}, "out must not overlap records"),
    (
        {"out": OnDevice(BYTES.array[:, :, :2].copy()), "bits": 12, "shape": (2, 6, 3)},
        "bits must be 8 if out is uint8, found 12",
    ),
    ({"scale": (1.0, 2.0)}, "scale must be three finite float32 numbers or one, found .1.0, 2.0"),
]


KERNELS = (
    *((augment, AUGMENT, OF_AUGMENT), (finish, FINISH, BROKEN)),
    *((jitter, JITTER, OF_JITTER), (unpack, UNPACK, OF_UNPACK)),
)


@pytest.mark.parametrize(
    ("launcher", "arguments", "changes", "said"),
    [(launcher, arguments, *row) for launcher, arguments, rows in KERNELS for row in rows],
)
def test_a_broken_rule_is_named(launcher: Any, arguments: dict[str, Any], changes: dict[str, Any], said: str) -> None:
    """What cannot be launched is refused before anything runs: kernel, argument, rule and what was found."""
    with pytest.raises(ConfigError, match=f"^{launcher.__name__}: .*{said}"):
        launcher(**{**arguments, **changes})


@pytest.mark.parametrize(("mean", "std"), [((0,), (1, 1, 1)), ((0, 0, 0), (1, 0, 1)), ((0, 0, np.inf), (1, 1, 1))])
def test_normalization_has_three_numbers_each(mean: Any, std: Any) -> None:
    """Finite ones, and no std 0."""
    with pytest.raises(ConfigError, match="finish: mean and std must "):
        normalize_factors(mean, std)


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
    assert option in finish.prepare(images, out, **given).options


@pytest.mark.parametrize(
    ("size", "kind", "layout", "shifts", "pixels", "vector"),
    [
        ((4, 8), np.float32, "NCHW", (0, 0), 4, 0),
        ((4, 8), np.float32, "NCHW", (4, 16), 4, 0),
        ((4, 8), np.float32, "NCHW", (2, 0), 2, 0),
        ((4, 8), np.float32, "NCHW", (0, 8), 2, 0),
        ((4, 8), np.float32, "NCHW", (2, 24), 2, 0),
        ((4, 8), np.float32, "NCHW", (1, 0), 1, 0),
        ((4, 8), np.float32, "NCHW", (0, 4), 1, 0),
        ((4, 8), np.float32, "NCHW", (3, 12), 1, 0),
        ((4, 98), np.float32, "NCHW", (0, 0), 2, 0),
        ((4, 299), np.float32, "NCHW", (0, 0), 1, 0),
        ((224, 224), np.float16, "NHWC", (0, 0), 4, 16),
        ((224, 224), np.uint8, "NHWC", (0, 0), 4, 16),
        ((518, 518), np.float16, "NHWC", (0, 0), 2, 4),  # samples of 8 bytes more than a multiple of 16
        ((98, 98), np.float32, "NHWC", (0, 0), 2, 16),
        ((1, 4), np.float16, "NHWC", (0, 0), 4, 8),
        ((224, 224), np.float16, "NHWC", (0, 8), 4, 8),
        ((224, 224), np.float16, "NHWC", (0, 4), 2, 4),
        ((299, 299), np.float32, "NHWC", (0, 0), 1, 0),
    ],
)
def test_pixels_of_a_thread_and_bytes_of_a_store_where_memory_allows(
    size: tuple[int, int], kind: type, layout: str, shifts: tuple[int, int], pixels: int, vector: int
) -> None:
    """Rows, images and out at their own borders; channels last, samples that begin at multiples of a store."""
    images = np.zeros((2, *size, 3), np.uint8)
    out: Any = np.zeros((2, 3, *size) if layout == "NCHW" else images.shape, kind)
    read, written = (array.ctypes.data // 64 * 64 + far for array, far in ((images, 0), (out, 2**32)))
    job = finish.prepare(
        OnDevice(images, data=(read + shifts[0], False)),
        OnDevice(out, data=(written + shifts[1], False)),
        layout=layout,
    )
    assert job.options[2::2] == (f"-DPIXELS={pixels}", f"-DVECTOR={vector}")


def test_images_as_dali_describes_them() -> None:
    """A DALI tensor spells its dtype and strides in its own way and is understood."""
    tensor = TensorCPU(IMAGES)
    job = finish.prepare(OnDevice(IMAGES, **tensor.__array_interface__), OnDevice(OUT))
    assert int(job.arguments["images"]) == tensor.data_ptr()


DEVICE, HOST = 2, 1  # kinds of memory, as the runtime counts them


class Played:
    """A CUDA whose current device is number 1, with memory elsewhere at one address; launches are kept."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, elsewhere: int = 0, place: tuple[int, int] = (DEVICE, 1)
    ) -> None:
        self.launched: list[tuple[Any, ...]] = []
        self.elsewhere, self.place = elsewhere, place
        cupy, compiler = ModuleType("cupy"), ModuleType("cupy.cuda.compiler")
        runtime = SimpleNamespace(
            getDevice=lambda: 1, pointerGetAttributes=self.place_of, memoryTypeDevice=DEVICE, memoryTypeManaged=3
        )
        device = SimpleNamespace(compute_capability="90")
        vars(cupy).update(cuda=SimpleNamespace(runtime=runtime, Device=lambda: device), RawModule=self.module)
        vars(compiler)["CompileException"] = ValueError
        monkeypatch.setitem(sys.modules, "cupy", cupy)
        monkeypatch.setitem(sys.modules, "cupy.cuda.compiler", compiler)
        monkeypatch.setattr(launch, "_kernels", {})

    def place_of(self, pointer: int) -> Any:
        """Where memory lies."""
        kind, device = self.place if pointer == self.elsewhere else (DEVICE, 1)
        return SimpleNamespace(type=kind, device=device)

    def module(self, **_: Any) -> Any:
        """A module with one function."""

        def function(*given: Any, stream: Any) -> None:
            self.launched.append((*given, stream))

        vars(function)["compile"] = lambda: None
        return SimpleNamespace(get_function=lambda _: function)


def test_a_kernel_is_launched_on_the_device_that_torch_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is compiled once for that one, and CuPy is asked for no other: it would put back what it was told before."""
    cuda = Played(monkeypatch)
    for stream in (7, SimpleNamespace(cuda_stream=8)):
        finish(OnDevice(IMAGES), OnDevice(OUT), stream=stream)
    assert [job[-1].ptr for job in cuda.launched] == [7, 8]
    assert [device for _, _, device in launch._kernels] == [1]


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ((DEVICE, 0), "images must lie on the current device, cuda:1, .* found cuda:0"),
        ((HOST, 0), "images must lie in a GPU's memory, found memory of the host"),
    ],
)
def test_memory_of_another_place_is_refused(monkeypatch: pytest.MonkeyPatch, place: tuple[int, int], said: str) -> None:
    """By name, before it is a fault that ends the process's work there."""
    cuda = Played(monkeypatch, IMAGES.ctypes.data, place)
    with pytest.raises(ConfigError, match=f"^finish: {said}"):
        finish(OnDevice(IMAGES), OnDevice(OUT), stream=7)
    assert not cuda.launched


def test_a_failed_compilation_says_what_and_where(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names kernel, architecture and options, and carries the compiler's first lines."""

    def module(**_: Any) -> Any:
        raise ValueError("\n".join(["error: define one of OUT_FLOAT32", "", *map(str, range(20))]))

    cuda = Played(monkeypatch)
    monkeypatch.setattr(sys.modules["cupy"], "RawModule", module)
    with pytest.raises(EngineError, match=r"^kernel finish for sm_90, options -DOUT_FLOAT32 (?s:.*)\(9 more lines\)$"):
        finish(OnDevice(IMAGES), OnDevice(OUT), stream=7)
    assert not cuda.launched


def test_a_folder_of_kernels_that_cannot_be_written_to_is_not_needed() -> None:
    """CuPy makes it where it is imported, which would raise; kernels stay in memory then."""
    code = "from dali_feed.kernels.launch import compiles; from os import environ; compiles()"
    env = {**os.environ, "CUPY_CACHE_DIR": "/dev/null/kernels", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-P", "-c", f"{code}; print(environ['CUPY_CACHE_IN_MEMORY'])"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("1\n", 0), done.stderr
