"""What launchers ask of their arguments. Every refusal names the kernel, the argument, the rule and what was found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import numpy as np

from dali_feed.errors import ConfigError
from dali_feed.kernels.launch import DeviceArray, device_array

COUNT_LIMIT = 2**31  # kernels count samples, and positions inside a sample, in 32 bits
GRID_Y = 65535
LAYOUTS = ("NCHW", "NHWC")
# What memory of each type may call itself: bfloat16 has no name of its own there, so it comes as torch and
# ml_dtypes spell it or as 16-bit integers.
_TYPESTRS = {"float32": ("<f4",), "float16": ("<f2",), "bfloat16": ("|V2", "<u2", "<i2"), "uint8": ("|u1",)}
_FROM_TYPESTR = {"<f4": "float32", "<f2": "float16", "|V2": "bfloat16", "|u1": "uint8"}
_NAMES = {"|V2": "bfloat16"}  # NumPy's name of it is void16
_IN_WORDS = {2: "two", 3: "three", 4: "four"}

Factors = float | Sequence[float] | None


class Rules:
    """The rules of one kernel; all raise ConfigError."""

    def __init__(self, kernel: str) -> None:
        self._kernel = kernel

    def refuse(self, name: str, rule: str, value: object, cause: Exception | None = None) -> NoReturn:
        """Raise."""
        raise ConfigError(f"{self._kernel}: {name} {rule}, found {value}") from cause

    def one_of(self, name: str, value: object, allowed: Sequence[object]) -> None:
        """A choice."""
        if value not in allowed:
            self.refuse(name, f"must be one of {', '.join(map(str, allowed))}", repr(value))

    def array(self, name: str, array: object, typestrs: Sequence[str]) -> DeviceArray:
        """An array on a GPU of one of these types."""
        known = device_array(self._kernel, name, array)
        if known.typestr not in typestrs:
            self.refuse(name, f"must have dtype {' or '.join(map(_named, typestrs))}", _named(known.typestr))
        return known

    def images(self, array: object) -> DeviceArray:
        """A batch of images: uint8 (N, H, W, 3), C contiguous."""
        known = self.array("images", array, ("|u1",))
        if len(known.shape) != 4 or known.shape[3] != 3 or 0 in known.shape:
            self.refuse("images", "must have shape (N, H, W, 3) with N, H, W >= 1", known.shape)
        self.dense("images", known)
        samples, height, width, _ = known.shape
        if max(height * width, samples) >= COUNT_LIMIT:
            self.refuse("images", f"must be fewer than {COUNT_LIMIT:,}, of fewer pixels than that each", known.shape)
        return known

    def like_images(self, name: str, array: object, images: DeviceArray) -> DeviceArray:
        """Memory to write to, of the type and shape of the images and apart from them."""
        known = self.array(name, array, ("|u1",))
        if known.shape != images.shape:
            self.refuse(name, f"must have the shape of images, {images.shape}", known.shape)
        self.dense(name, known)
        self.writable(name, known, ("images", images))
        return known

    def dense(self, name: str, array: DeviceArray) -> None:
        """C contiguous."""
        if not array.is_dense():
            strides = f"shape {array.shape}, strides {array.strides} bytes"
            self.refuse(name, "must be C contiguous (give a contiguous copy)", strides)

    def parameter(
        self, name: str, array: object, typestrs: Sequence[str], shape: tuple[int, ...]
    ) -> tuple[np.uint64, np.int32]:
        """The pointer and the element size of an optional array per image, both 0 where there is none."""
        if array is None:
            return np.uint64(0), np.int32(0)
        known = self.array(name, array, typestrs)
        if known.shape != shape:
            self.refuse(name, f"must have shape {shape}, as images have {shape[0]} samples", known.shape)
        self.dense(name, known)
        return np.uint64(known.pointer), np.int32(known.itemsize)

    def kind(self, name: str, array: DeviceArray, dtype: str | None) -> str:
        """The type that the memory says it holds, or that `dtype` says."""
        kind = _FROM_TYPESTR.get(array.typestr) if dtype is None else dtype
        if kind is None or array.typestr not in _TYPESTRS.get(kind, ()):
            rule = (
                "must be float32, float16, bfloat16 or uint8 (for bfloat16 as 16-bit integers give dtype='bfloat16')"
                if dtype is None
                else f"must have the type that dtype={dtype!r} names, one of {', '.join(_TYPESTRS)}"
            )
            self.refuse(name, rule, _named(array.typestr))
        return kind

    def channels_last(
        self, out: DeviceArray, sizes: tuple[int, int, int, int], layout: str | None, *, of: str = "images"
    ) -> bool:
        """Whether `out` for N, C, H, W lies channels last: by its shape, by its strides or as `layout` says."""
        samples, channels, height, width = sizes
        planes, last = (samples, channels, height, width), (samples, height, width, channels)
        fits = ["NCHW"] if out.shape == planes and out.is_dense() else []
        if (out.shape == planes and out.is_dense((0, 2, 3, 1))) or (out.shape == last and out.is_dense()):
            fits.append("NHWC")
        if layout is not None and layout not in LAYOUTS:
            self.refuse("layout", f"must be one of {', '.join(LAYOUTS)} or None", repr(layout))
        strides = f"shape {out.shape}, strides {out.strides} bytes"
        if not fits:
            self.refuse("out", f"must be dense, of shape {planes} or {last}, as {of} have these sizes", strides)
        same = height * width == 1 or channels == 1  # then both orders are one
        if layout is None and len(fits) == 2 and not same:
            self.refuse("layout", f"must be given, {' or '.join(LAYOUTS)}: out fits both", strides)
        if layout is not None and layout not in fits and not same:
            self.refuse("out", f"must have the order in memory that layout={layout!r} names", strides)
        return (layout or fits[0]) == "NHWC"

    def writable(self, name: str, out: DeviceArray, *sources: tuple[str, DeviceArray]) -> None:
        """Not read-only, and apart from what is read. Of sources with a pitch give all that lies between their ends."""
        if out.read_only:
            self.refuse(name, "must be writable", "a read-only array")
        for other, source in sources:
            if source.pointer < out.pointer + out.nbytes and out.pointer < source.pointer + source.nbytes:
                self.refuse(name, f"must not overlap {other}", f"{source.pointer:#x} and {out.pointer:#x}")

    def numbers(self, name: str, factors: Factors, neutral: float, count: int) -> list[np.float32]:
        """`count` finite float32 numbers, of as many or of one; `neutral` where there are none."""
        some = "a finite float32 number" if count == 1 else f"{_IN_WORDS[count]} finite float32 numbers or one"
        try:
            with np.errstate(over="ignore"):  # infinite, and refused below
                values = np.asarray(neutral if factors is None else factors, np.float32)
        except (TypeError, ValueError) as error:
            self.refuse(name, f"must be {some}", repr(factors), error)
        if values.shape not in ((), (count,)) or not np.isfinite(values).all():
            self.refuse(name, f"must be {some}", repr(factors))
        return list(np.broadcast_to(values, (count,)))

    def factors(
        self, kind: str, scale: Factors, bias: Factors, count: int
    ) -> tuple[list[np.float32], list[np.float32]]:
        """`count` of each; of uint8, which is not scaled, there may be none given."""
        if kind == "uint8" and not (scale is None and bias is None):
            self.refuse("scale and bias", "must be None if out is uint8", f"{scale} and {bias}")
        return self.numbers("scale", scale, 1.0, count), self.numbers("bias", bias, 0.0, count)


def _named(typestr: str) -> str:
    """The name that users know a type by: float32, and not <f4."""
    return _NAMES.get(typestr) or np.dtype(typestr).name
