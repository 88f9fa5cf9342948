"""Decodes every kind of image on both engines and says what became of each: run by test_kinds.py, in a process.

    python kinds_run.py PROGRESS

PROGRESS is a file whose last line names what was being decoded. Prints JSON: per engine, name of each and what was
found.
"""

from __future__ import annotations

import functools
import io
import itertools
import json
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import imagecodecs
import numpy as np
import tifffile
from kit import kinds
from numpy.typing import NDArray
from PIL import Image, ImageCms
from torchvision.transforms import v2

from dali_feed.engines.host.decode import decoded, new_decoder
from dali_feed.feed import Feed
from dali_feed.options import BadRecords, Decode, Tuning
from dali_feed.screen.header import Header, UnusableError
from dali_feed.screen.screen import header_of
from dali_feed.testing import ScriptedSource

BATCH = 96  # the last hundred bad records are told with their reasons
GOOD = "good"
WIDE = ("I", "F")  # modes of Pillow, and those that begin with "I;16": what people expect of them is another test's
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


def images() -> Iterator[tuple[str, bytes]]:
    """Name and file of each."""
    for some in (kinds.tiffs, kinds.pnms, kinds.bmps, kinds.pillows, kinds.made_odd, by_tifffile, by_imagecodecs):
        yield from some()


def by_pillow(payload: bytes) -> NDArray[np.uint8] | None:
    """What ImageFolder gets; None where Pillow cannot, or cuts wide numbers off."""
    try:
        with Image.open(io.BytesIO(payload)) as image:
            wide = image.mode in WIDE or image.mode.startswith("I;16")
            return None if wide else np.asarray(image.convert("RGB"))
    except (OSError, ValueError, SyntaxError):
        return None


def apart(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> int:
    """The largest difference."""
    return int(np.abs(one.astype(int) - other).max()) if one.shape == other.shape else 256


def rounded(payload: bytes, header: Header) -> int:
    """By how much decoders differ: 16 bits are cut off or rounded to 8, four colours are multiplied in two ways."""
    return int((header.format == "png" and payload[24] == 16) or (header.format == "jpeg" and header.components == 4))


def on_host(
    some: dict[str, bytes], progress: TextIO
) -> tuple[dict[str, str], dict[str, NDArray[np.uint8]], dict[str, Header]]:
    """Each alone: its reason, or whether its pixels are Pillow's and the same again; these pixels, and headers."""
    out, pixels, headers, decoder = {}, {}, {}, new_decoder()
    for name, payload in some.items():
        print(f"host: {name}", file=progress, flush=True)
        try:
            header = headers[name] = header_of(payload)
            plain = memoryview(header.plain or payload)
            first, again = (decoded(decoder, plain, None).copy() for _ in range(2))
        except UnusableError as error:
            out[name] = str(error)
            continue
        want, pixels[name] = by_pillow(payload), first
        same = np.array_equal(first, again) and (want is None or apart(first, want) <= rounded(payload, header))
        out[name] = GOOD if same else "other pixels than Pillow's"
    return out, pixels, headers


def on_dali(
    some: dict[str, bytes], pixels: dict[str, NDArray[np.uint8]], headers: dict[str, Header], progress: TextIO
) -> dict[str, str]:
    """Batches of one size, whose pixels must be the host engine's, with a good image at the end of each."""
    sizes: dict[tuple[int, int], list[str]] = defaultdict(list)
    out = {}
    for name, header in headers.items():
        sizes[header.height, header.width].append(name)
    for size, named in sizes.items():
        good = kinds.tiff(kinds.levels(3, height=size[0], width=size[1]), photometric=2)
        for first in range(0, len(named), BATCH):
            names = named[first : first + BATCH]
            print(f"dali: {names}", file=progress, flush=True)
            payloads = [*(some[name] for name in names), good]
            source = ScriptedSource([(payload, n) for n, payload in enumerate(payloads)], extent=len(payloads))
            how: Any = {
                "transform": v2.Resize(size),
                "decode": Decode(engine="dali"),
                "bad": BadRecords(limit=None),
                "shuffle": False,
            }
            with Feed(source, len(payloads), tuning=Tuning(threads=2, readers=1), **how) as feed:
                (batch,) = list(feed)
                reasons = {int(where.rpartition("@")[2]): why for where, why in feed.stats().recent_bad}
            images = np.asarray(batch.images).transpose(0, 2, 3, 1)
            for n, name in enumerate(names):
                if n in reasons:
                    out[name] = reasons[n]
                    continue
                same = name in pixels and apart(images[n], pixels[name]) <= rounded(some[name], headers[name])
                out[name] = GOOD if same else "other pixels than the host engine's"
    return out


def main() -> None:
    """Run both engines over all of them, the second over what the screen takes."""
    warnings.simplefilter("ignore")
    for name in ("createProfile", "buildTransform"):  # of LAB, anew for each image: as long as ten images take
        setattr(ImageCms, name, functools.cache(getattr(ImageCms, name)))
    some = dict(images())
    with Path(sys.argv[1]).open("w") as progress:
        host, pixels, headers = on_host(some, progress)
        dali = on_dali(some, pixels, headers, progress)
    print(json.dumps({"host": host, "dali": dali}))  # noqa: T201  its answer


if __name__ == "__main__":
    main()
