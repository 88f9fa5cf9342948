"""Images as tifffile's and imagecodecs' own writers make them, in every kind that they have."""

from __future__ import annotations

import io
import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import imagecodecs
import numpy as np
import tifffile
from kit import kinds

_COMPRESSIONS = ("lzw", "deflate", "packbits", "jpeg", "lzma", "zstd", "webp", "png", "jpeg2000", "jpegxl", "jpegxr")
_SHAPES = (("minisblack", 1), ("miniswhite", 1), ("rgb", 3), ("rgb", 4), ("separated", 4), ("cielab", 3), ("ycbcr", 3))
_CODECS = (
    *("apng", "avif", "bmp", "brunsli", "gif", "heif", "jpeg", "jpeg2k", "jpeg8", "jpegls", "jpegsof3", "jpegxl"),
    *("jpegxr", "ljpeg", "mozjpeg", "png", "qoi", "rgbe", "spng", "tiff", "ultrahdr", "webp"),
)


def by_tifffile() -> Iterator[tuple[str, bytes]]:
    """Every photometric interpretation, depth, layout and compression, turned and not, in both byte orders."""
    layouts: list[dict[str, Any]] = [{}, {"tile": (16, 16)}, {"rowsperstrip": 2}, {"planarconfig": "separate"}]
    layouts += [{"planarconfig": "separate", "tile": (16, 16)}, {"byteorder": ">"}, {"bigtiff": True}]
    layouts += [{"compression": name} for name in _COMPRESSIONS]
    layouts += [{"compression": name, "predictor": True, "tile": (16, 16)} for name in ("lzw", "deflate")]
    layouts += [{"compression": name, "planarconfig": "separate"} for name in ("lzw", "jpeg")]
    for (photometric, samples), dtype, options in itertools.product(
        _SHAPES, ("u1", "u2", "i2", "u4", "f4", "?"), layouts
    ):
        pixels = kinds.levels(samples, "u1") > 99 if dtype == "?" else kinds.levels(samples, dtype)
        if options.get("planarconfig"):
            pixels = np.ascontiguousarray(np.moveaxis(pixels, -1, 0))
        for turned in (1, 6):
            out = io.BytesIO()
            orientation: Any = [(274, "H", 1, turned)]
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    tifffile.imwrite(
                        out,
                        pixels[..., 0] if samples == 1 and "planarconfig" not in options else pixels,
                        photometric=photometric,
                        extratags=orientation,
                        metadata=None,
                        **options,
                    )
            except Exception:  # noqa: BLE001, S112  it has no such thing
                continue
            yield f"tiff of tifffile, {photometric} {samples} {dtype} {options}, turned {turned}", out.getvalue()


def by_imagecodecs() -> Iterator[tuple[str, bytes]]:
    """Each codec of images on one to four samples of 8 and 16 bits and floats."""
    for codec, samples, dtype in itertools.product(_CODECS, (1, 2, 3, 4), ("u1", "u2", "f4")):
        pixels = kinds.levels(samples, dtype)
        try:
            encode = getattr(imagecodecs, f"{codec}_encode")
            file = encode(np.ascontiguousarray(pixels[..., 0] if samples == 1 else pixels))
        except Exception:  # noqa: BLE001, S112  it has no such thing
            continue
        yield f"{codec} of imagecodecs, {samples} {dtype}", bytes(file)
    ways: tuple[dict[str, Any], ...] = ({}, {"optimize": True}, {"level": 100})
    for sub, rest in itertools.product(("444", "422", "420", "411", "440"), ways):
        file = imagecodecs.jpeg8_encode(kinds.levels(3), subsampling=sub, **rest)
        yield f"jpeg of imagecodecs, {sub} {rest}", bytes(file)
