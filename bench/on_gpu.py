"""What bench/on_gpu.sh runs, and in which order: parts of checks, each a process of its own (see _checks.py)."""

from __future__ import annotations

import argparse
import datetime as dt
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from _checks import Check, run_checks, sources_digest

from dali_feed.bench.facts import RUN
from dali_feed.cores import whole_cores

HERE = Path(__file__).parent
ROOT = HERE.parent
GPU_TEST = re.compile(r"mark\.gpu|\bboth_ways\(")
TOY = ("--photos", "24")
FIRST = (
    *("versions", "kernel-finish", "kernel-jitter", "kernel-unpack", "decode"),
    *("engine-dali", "engine-host", "neighbours-dali", "neighbours-host", "decoder-load", "next-returns", "no-sync"),
)


def gpu_tests() -> list[str]:
    """The files with GPU tests, those of the loader first; the others may import packages that are not here."""
    found = [
        str(path.relative_to(ROOT / "tests"))
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if GPU_TEST.search(path.read_text())
    ]
    first = ("test_next", "test_loader", "test_pixels_in")
    return sorted(found, key=lambda name: (not Path(name).name.startswith(first), Path(name).name))


class Parts:
    """The checks of each part, for a device ("cuda:0", or "cpu" in a rehearsal) and a folder of results."""

    def __init__(self, device: str, out: Path) -> None:
        self._device, self._out = device, out
        self._rehearsed = device == "cpu"

    def _bench(self, part: str, name: str, script: str, *args: str, limit: float = 240, needs: float = 60) -> Check:
        command = (sys.executable, str(HERE / script), *args)
        return Check(part, name, command, limit, needs)

    def first(self) -> Iterator[Check]:
        """Whether anything works at all, in about a minute."""
        for name in FIRST:
            yield self._bench("first", name, "gpu_first.py", name, "--device", self._device, limit=120, needs=15)

    def tests(self) -> Iterator[Check]:
        """The GPU tests, a file at a time. Rehearsed, they are collected and not run."""
        junit = self._out / "junit"
        for name in gpu_tests():
            how = ["-m", "pytest", "-m", "gpu", "-q", "-p", "no:cacheprovider", "-W", "default"]
            how += ["--collect-only"] if self._rehearsed else [f"--junitxml={junit / Path(name).name}.xml"]
            yield Check("tests", name, (sys.executable, "-P", *how, str(ROOT / "tests" / name)), 400, 30)

    def photos(self) -> Iterator[Check]:
        """The images of the benches, made before their clocks run."""
        yield self._bench("photos", "made", "_photos.py", *(TOY if self._rehearsed else ()))

    def kernels(self) -> Iterator[Check]:
        """Each kernel beside a copy of as many bytes."""
        for kernel in ("finish", "jitter", "unpack"):
            yield self._bench("kernels", kernel, "bench_kernels.py", "--kernels", kernel, *self._results())

    def decode(self) -> Iterator[Check]:
        """The engines from memory, over their settings."""
        toy = (*TOY, "--batches", "4", "--threads", "1", "--seconds", "0.1") if self._rehearsed else ("--seconds", "2")
        for engine in ("dali", "host"):
            how = ("--engines", engine, "--device", self._device, *toy, *self._results())
            yield self._bench("decode", engine, "bench_decode.py", *how, limit=300)

    def training(self) -> Iterator[Check]:
        """What a training loop waits."""
        toy = (*TOY, "--model", "mobilenet_v3_small", "--batch", "2", "--steps", "2", "--warm", "1")
        size = toy if self._rehearsed else ("--steps", "100")
        workers = str(1 if self._rehearsed else whole_cores())
        for name, how in (
            ("dali", ("--engines", "dali", "--workers", "0")),
            ("host", ("--engines", "host", "--workers", "0")),
            ("torch", ("--engines", "--workers", workers)),
        ):
            yield self._bench(
                "training", name, "bench_training.py", *how, "--device", self._device, *size, *self._results()
            )

    def loader(self) -> Iterator[Check]:
        """Ours beside its ceiling and the others."""
        toy = (*TOY, "--batches", "4", "--repeats", "1", "--seconds", "0.1")
        size = toy if self._rehearsed else ("--batches", "256", "--repeats", "3", "--seconds", "4")
        workers = str(1 if self._rehearsed else whole_cores())
        for engine, how in (("dali", ()), ("host", ("--no-peers",))):
            given = ("--engines", engine, "--sources", "tar", "--device", self._device, "--workers", workers, *how)
            yield self._bench("loader", engine, "bench_loader.py", *given, *size, *self._results(), limit=400)

    def cache(self) -> Iterator[Check]:
        """Later epochs from each cache, the GPU's memory among them."""
        toy = (*TOY, "--batch", "4", "--repeats", "1", "--threads", "1")
        size = toy if self._rehearsed else ("--photos", "3000", "--batch", "256", "--threads", str(whole_cores()))
        for name in ("still", "crop"):
            how = ("--parts", name, "--device", self._device, *size, *self._results())
            yield self._bench("cache", name, "bench_cache.py", *how, limit=400)

    def top1(self) -> Iterator[Check]:
        """A small net's accuracy behind torch's loader and behind ours."""
        if not self._rehearsed:  # it trains for minutes on a CPU, and is a test there
            yield self._bench("top1", "resnet18", "measure_top1.py", *self._results(), limit=300)

    def plots(self) -> Iterator[Check]:
        """Pictures of the rows."""
        yield self._bench("plots", "drawn", "plot.py", *self._results(), needs=10)

    def _results(self) -> tuple[str, str]:
        return "--results", str(self._out)


BENCH = ("photos", "kernels", "decode", "training", "loader", "cache", "top1", "plots")
PARTS = ("first", "tests", *BENCH)


def begun(out: Path, sources: str) -> str:
    """When the run with these sources began, whichever call that was: the date of all its rows."""
    path = out / "begun.txt"
    known, _, date = path.read_text().partition(" ") if path.exists() else ("", "", "")
    if known != sources:
        date = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        path.write_text(f"{sources} {date}")
    return date


def main() -> int:
    """Run the parts; 0 all is well, 1 something failed, 3 nothing failed and another call goes on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--seconds", type=float, default=480)
    parser.add_argument("out", type=Path)
    parser.add_argument("parts", nargs="+", choices=PARTS)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "junit").mkdir(exist_ok=True)
    sources = f"{sources_digest(ROOT)}-{args.device}"
    os.environ[RUN] = begun(args.out, sources)
    of = Parts(args.device, args.out)
    each: list[Callable[[], Iterator[Check]]] = [getattr(of, part) for part in args.parts]
    checks = [check for part in each for check in part()]
    failed, left = run_checks(checks, args.out, sources, args.seconds)
    print(
        f"{len(checks)} checks: {failed} failed, {left} left for the next call; all of it in {args.out}/results.tar.gz"
    )
    return 1 if failed else 3 if left else 0


if __name__ == "__main__":
    sys.exit(main())
