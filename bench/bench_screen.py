"""What screening costs: microseconds of CPU time per sample, best of several passes.

    python bench/bench_screen.py [--batch 64 512] [--passes 40] [--min-kb 70]

The payloads are 500x375 JPEGs of photographs, end to end in one anonymous map, as a reader leaves them.
Kinds: `jfif` (quality 85), `exif` (plus about 2 KB of EXIF and ICC), `optimized` and `progressive` (Huffman
tables of their own in every file), `png`.
"""

from __future__ import annotations

import argparse
import io
import mmap
import time
from itertools import product
from typing import Any

from PIL import Image, ImageCms, ImageEnhance
from skimage import data

from dali_feed.screen.screen import screen

SIZE = (500, 375)


def encoded(image: Image.Image, kind: str) -> bytes:
    """One image as a file of that kind."""
    options: dict[str, Any] = {"format": "JPEG", "quality": 85}
    if kind == "exif":
        exif = Image.Exif()
        exif[0x0112], exif[0x010F], exif[0x0110] = 1, "maker " * 50, "model " * 180
        profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
        options |= {"exif": exif, "icc_profile": profile}
    elif kind == "png":
        options = {"format": "PNG", "compress_level": 1}
    elif kind != "jfif":
        options[{"optimized": "optimize"}.get(kind, kind)] = True
    file = io.BytesIO()
    image.info.clear()
    image.save(file, **options)
    return file.getvalue()


def photographs(min_kb: float) -> list[Image.Image]:
    """Photographs that make JPEGs of at least `min_kb`: sharpened in steps until they do."""
    out = []
    for name in ("astronaut", "chelsea", "coffee", "rocket", "immunohistochemistry", "retina", "grass", "gravel"):
        whole = Image.fromarray(getattr(data, name)()).convert("RGB").resize(SIZE)
        image, sharpness = whole, 1.0
        while len(encoded(image, "jfif")) < min_kb * 1024 and sharpness < 64:
            sharpness *= 1.3
            image = ImageEnhance.Sharpness(whole).enhance(sharpness)
        out.append(image)
    return out


def slab(files: list[bytes], count: int) -> list[memoryview]:
    """`count` payloads, the files in turn, end to end in one map."""
    chosen = [files[k % len(files)] for k in range(count)]
    whole = memoryview(mmap.mmap(-1, sum(map(len, chosen))))
    views, at = [], 0
    for file in chosen:
        views.append(whole[at : at + len(file)])
        views[-1][:] = file
        at += len(file)
    return views


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[64, 512])
    parser.add_argument("--passes", type=int, default=40)
    parser.add_argument("--min-kb", type=float, default=70)
    args = parser.parse_args()
    images = photographs(args.min_kb)
    for kind, batch in product(("jfif", "exif", "optimized", "progressive", "png"), args.batch):
        files = [encoded(image, kind) for image in images]
        views = slab(files, batch)
        best = float("inf")
        for _ in range(args.passes):
            start = time.thread_time()
            screened = screen(views)
            best = min(best, time.thread_time() - start)
        if screened.reasons:
            parser.error(f"{kind}: {screened.reasons}")
        mean = sum(map(len, files)) / len(files) / 1024
        print(f"{kind:12} batch {batch:4}: {best / batch * 1e6:5.2f} us per sample ({mean:.0f} KB each)")


if __name__ == "__main__":
    main()
