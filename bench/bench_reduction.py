"""What `decode="reduced"` saves on large photographs, and what it costs in pixels.

    python bench/bench_reduction.py [--size 2000x1500] [--repeats 5] [--draws 8]

Photographs that come with scikit-image and scikit-learn, enlarged to --size, JPEGs of quality 90, through the host
engine on one thread, exact and reduced in turns. Columns: CPU milliseconds per image of each (median of the repeats),
their ratio, how many of the images were decoded at 1, 1/2, 1/4, 1/8, and the mean and largest difference of a value of
those that were decoded smaller, in levels of 255. Rows go to results/reduction.csv.
"""

from __future__ import annotations

import argparse
import io
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import skimage
import torch
from _results import RESULTS
from PIL import Image
from sklearn.datasets import load_sample_images
from torchvision.transforms import v2

from dali_feed.bench.facts import facts
from dali_feed.bench.rows import append, table
from dali_feed.engines.choose import make_engine
from dali_feed.engines.compiling import compiled
from dali_feed.engines.engine import Engine, Work
from dali_feed.options import Tuning
from dali_feed.transforms.keys import Key

SKIMAGE = ("astronaut.png", "chelsea.png", "coffee.png", "hubble_deep_field.jpg", "rocket.jpg")
TRANSFORMS: dict[str, Any] = {
    "RandomResizedCrop(224)": v2.RandomResizedCrop(224),
    "Resize(256), CenterCrop(224)": v2.Compose([v2.Resize(256), v2.CenterCrop(224)]),
}


def photographs(width: int, height: int) -> list[memoryview]:
    """The JPEGs."""
    folder = Path(skimage.__file__).parent / "data"
    pictures = [Image.open(folder / name).convert("RGB") for name in SKIMAGE]
    pictures += [Image.fromarray(image) for image in load_sample_images().images]
    files = []
    for picture in pictures:
        out = io.BytesIO()
        picture.resize((width, height), Image.Resampling.LANCZOS).save(out, "JPEG", quality=90)
        files.append(memoryview(out.getvalue()))
    return files


class Way:
    """One way of decoding: an engine of one thread and the parameters of all samples."""

    def __init__(self, transform: Any, decode: Any, files: list[memoryview], size: tuple[int, int], draws: int) -> None:
        _, self.program = compiled(transform, "NCHW", decode, "host", None)
        self.engine: Engine = make_engine(
            "host", self.program, batch_size=1, device=None, tuning=Tuning(threads=1, prefetch=1)
        )
        self.files = [files[n % len(files)] for n in range(len(files) * draws)]
        count = len(self.files)
        sizes = np.array([size[::-1]] * count, np.int32)
        self.arrays = self.program.parameters(sizes, np.arange(count), 0, 0).arrays

    def run(self) -> tuple[float, list[torch.Tensor]]:
        """CPU seconds of this process, and the images."""
        out, begun = [], time.process_time()
        for n, payload in enumerate(self.files):
            work = Work([payload], {name: rows[n : n + 1] for name, rows in self.arrays.items()})
            result = self.engine.redo(work)
            assert result.images is not None
            out.append(result.images[0])
        return time.process_time() - begun, out


def main() -> None:
    """Measure, print, and add rows to results/reduction.csv."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="2000x1500", help="width x height (default %(default)s)")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--draws", type=int, default=8, help="samples of each photograph (default %(default)s)")
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    width, height = map(int, args.size.split("x"))
    files = photographs(width, height)
    made = facts() | {"image": args.size, "mean bytes": sum(map(len, files)) // len(files), "repeats": args.repeats}
    rows: list[dict[str, object]] = []
    for name, transform in TRANSFORMS.items():
        ways = {d: Way(transform, d, files, (width, height), args.draws) for d in ("exact", "reduced")}
        for way in ways.values():
            way.run()
        times: dict[str, list[float]] = {d: [] for d in ways}
        images: dict[str, list[torch.Tensor]] = {}
        for _ in range(args.repeats):
            for d, way in ways.items():
                seconds, images[d] = way.run()
                times[d].append(seconds / len(way.files))
        by = ways["reduced"].arrays[Key("reduce")]
        differences = [
            (one.double() - other.double()).abs()
            for one, other, k in zip(images["exact"], images["reduced"], by.tolist(), strict=True)
            if k > 1
        ]
        ratio = median(a / b for a, b in zip(times["exact"], times["reduced"], strict=True))
        rows.append(
            {
                "transform": name,
                "exact ms": f"{median(times['exact']) * 1e3:.2f}",
                "reduced ms": f"{median(times['reduced']) * 1e3:.2f}",
                "ratio": f"{ratio:.2f}",
                "at 1, 1/2, 1/4, 1/8": " ".join(str(int((by == k).sum())) for k in (1, 2, 4, 8)),
                "mean": f"{float(np.mean([float(d.mean()) for d in differences])):.2f}" if differences else "",
                "largest": f"{max(float(d.max()) for d in differences):.0f}" if differences else "",
            }
        )
        for way in ways.values():
            way.engine.close()
    print(table(rows, list(rows[0])))
    print(f"\nadded {len(rows)} rows to {append('reduction', [made | row for row in rows], args.results)}")


if __name__ == "__main__":
    main()
