"""How benchmarks measure, and what every row says of where it was made.

Contestants take turns (a, b, c, a, b, c, ...), each made afresh for its turn; a turn's first steps are not counted.
What is reported is the median of the turns with the least and the most of them. Ratios are taken within a round, where
the machine was as busy for both, and then the median of those.
"""

from __future__ import annotations

import csv
import ctypes
import datetime as dt
import gc
import importlib.metadata
import multiprocessing
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

__all__ = [
    "RESULTS",
    "Rows",
    "Turn",
    "append",
    "cpu_seconds",
    "driver",
    "facts",
    "jpeg_engine",
    "peak_rss",
    "quantiles",
    "rate_of",
    "reset_peak",
    "rss",
    "run_turn",
    "spread",
    "table",
]

RESULTS = Path(__file__).parent / "results"
RUN = "DALI_FEED_BENCH_DATE"  # of a run that is made of several processes
WARM_STEPS = 6  # more than the batches that any contestant has in flight
WARM_SECONDS = 0.5
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Turn:
    """One contestant's turn. Times in seconds, memory in bytes.

    cpu           CPU time of this process and its children within the counted time
    beside_cpu    that of the process that the contestant named as `beside`
    consumer_cpu  that of the thread that takes the batches
    waits         how long each step took to give its batch
    peak          most memory held at once, children included
    notes         what the contestant itself has to say, numbers by name
    """

    images: int
    seconds: float
    cpu: float
    beside_cpu: float
    consumer_cpu: float
    waits: list[float]
    peak: int
    notes: dict[str, float] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Images per second."""
        return self.images / self.seconds


class Steps(Iterator[int]):
    """What a contestant runs: each step takes a batch and gives its size.

    beside  a process of its own that serves it, whose CPU time is told apart
    notes   what it has to say, asked for once it is closed
    keeps   whether the last step's batch is left in `images`: it costs memory that is otherwise free by then
    """

    def __init__(self, beside: int | None = None) -> None:
        self.beside = beside
        self.notes: Mapping[str, float] = {}
        self.keeps, self.images = False, None

    def kept(self, images: Any) -> int:
        """What a step gives: the number of images."""
        if self.keeps:
            self.images = images
        return len(images)


def _in_kb(path: str, *names: str) -> int:
    lines = [line.split() for line in Path(path).read_text().splitlines()]
    return sum(int(line[1]) * 1024 for line in lines if line and line[0].rstrip(":") in names)


def reset_peak() -> None:
    """Give back what nobody uses, and let the peak of this process begin anew at what it holds then."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


def peak_rss() -> int:
    """Most memory this process held since `reset_peak`, and what its children hold now that is theirs alone."""
    return _in_kb("/proc/self/status", "VmHWM") + sum(
        _in_kb(f"/proc/{pid}/smaps_rollup", "Private_Clean", "Private_Dirty") for pid in _children()
    )


def rss() -> int:
    """Memory this process holds now."""
    return _in_kb("/proc/self/status", "VmRSS")


def _children() -> list[int]:
    return [child.pid for child in multiprocessing.active_children() if child.pid]


def cpu_seconds(pid: int) -> float:
    """CPU time of another process, to a hundredth of a second."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / TICKS


def _cpu() -> float:
    return time.process_time() + sum(map(cpu_seconds, _children()))


def run_turn(make: Callable[[], AbstractContextManager[Steps]], seconds: float, *, warm: int = WARM_STEPS) -> Turn:
    """Make a contestant, let it warm up, and count what it does for so many seconds."""
    reset_peak()
    with make() as steps:
        begun = time.perf_counter()
        while warm > 0 or time.perf_counter() - begun < min(WARM_SECONDS, seconds):
            next(steps)
            warm -= 1
        images, waits = 0, []
        beside = cpu_seconds(steps.beside) if steps.beside else 0.0
        cpu, consumer, begun = _cpu(), time.thread_time(), time.perf_counter()
        now = begun
        while now - begun < seconds:
            before = now
            images += next(steps)
            now = time.perf_counter()
            waits.append(now - before)
        used, used_here, peak = _cpu() - cpu, time.thread_time() - consumer, peak_rss()
        beside = cpu_seconds(steps.beside) - beside if steps.beside else 0.0
    return Turn(images, now - begun, used, beside, used_here, waits, peak, dict(steps.notes))


def rate_of(batches: Iterable[Any]) -> float:
    """Images per second of one pass over a loader, whose batches are tuples that begin with their images."""
    images, begun = 0, time.perf_counter()
    for batch in batches:
        images += len(batch[0])
    return images / (time.perf_counter() - begun)


def spread(values: Iterable[float]) -> tuple[float, float, float]:
    """Median, least and most."""
    known = list(values)
    return median(known), min(known), max(known)


def quantiles(turns: Sequence[Turn]) -> tuple[float, float]:
    """p50 and p99 of the steps of all turns, in seconds."""
    waits = np.concatenate([turn.waits for turn in turns])
    return float(np.quantile(waits, 0.5)), float(np.quantile(waits, 0.99))


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def _commit() -> str:
    """Of the tree this file lies in; a "+" says that it had changes of its own."""
    if shutil.which("git") is None:
        return "none"
    git = ["git", "-C", str(Path(__file__).parent)]
    head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    if head.returncode:
        return "none"
    changed = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=False)
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "")


def _version(*packages: str) -> str:
    for package in packages:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "none"


def jpeg_engine() -> str:
    """Whether a GPU's JPEG engine worked in the last seconds, by NVML: "none" without a GPU or such an engine."""
    import pynvml

    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        now, _ = pynvml.nvmlDeviceGetJpgUtilization(handle)
        kind, found = pynvml.nvmlDeviceGetSamples(handle, pynvml.NVML_JPG_UTILIZATION_SAMPLES, 0)
        seen = [sample.sampleValue.uiVal for sample in found if kind == pynvml.NVML_VALUE_TYPE_UNSIGNED_INT]
    except pynvml.NVMLError_NotFound:  # no sample yet
        seen = []
    except pynvml.NVMLError:
        return "none"
    most = max([now, *seen])
    return f"worked, {most} % at most" if most else "idle"


def driver() -> str:
    """The version of NVIDIA's driver, or "none"."""
    import pynvml

    try:
        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return "none"


def facts() -> dict[str, str | int]:
    """Where and with what a row was made. Taken after a measurement it also tells what the JPEG engine did in it."""
    import confluent_kafka

    return {
        "date": os.environ.get(RUN) or dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "machine": _cpu_name(),
        "cpus": len(os.sched_getaffinity(0)),
        "load": f"{os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
        "driver": driver(),
        "dali": _version("nvidia-dali-cuda120", "nvidia-dali-cuda130"),
        "nvimgcodec": _version("nvidia-nvimgcodec-cu12", "nvidia-nvimgcodec-cu13"),
        "cupy": _version("cupy-cuda12x", "cupy-cuda13x"),
        "jpeg engine": jpeg_engine(),
        "torch": _version("torch"),
        "numpy": _version("numpy"),
        "librdkafka": confluent_kafka.libversion()[0],
    }


def append(name: str, rows: Sequence[Mapping[str, object]], results: Path = RESULTS) -> Path:
    """Add rows to results/NAME.csv. Rows of other columns go below a heading of their own."""
    path = results / f"{name}.csv"
    results.mkdir(parents=True, exist_ok=True)
    columns = list(rows[0])
    headings = [line for line in csv.reader(path.open()) if line[:1] == columns[:1]] if path.exists() else []
    with path.open("a", newline="") as file:
        writer = csv.writer(file)
        if not headings or headings[-1] != columns:
            writer.writerow(columns)
        writer.writerows([row[column] for column in columns] for row in rows)
    return path


class Rows:
    """The rows of one run, each added to results/NAME.csv as it is made; a case that fails costs its own row alone."""

    def __init__(self, name: str, about: Mapping[str, object], results: Path) -> None:
        self.rows: list[Mapping[str, object]] = []
        self._name, self._about, self._results, self._failed = name, about, results, 0

    def measure(self, case: str, make: Callable[[], Mapping[str, object]], *, told: bool = True) -> None:
        """Add the row that `make` gives, and print it where `told`; or say that the case failed, and why."""
        try:
            row = make()
        except Exception as error:  # noqa: BLE001  whatever one contestant fails on, the others are measured
            self._failed += 1
            print(f"{case}: FAILED: {type(error).__name__}: {error}", flush=True)
            return
        self.rows.append(row)
        append(self._name, [{**self._about, "jpeg engine": jpeg_engine(), **row}], self._results)
        if told:
            print(table([row], list(row)), flush=True)

    def end(self) -> int:
        """Print all and where they are; 1 where a case failed."""
        if self.rows:
            print(table(self.rows, list(self.rows[0])))
        failed = f"; {self._failed} cases FAILED" if self._failed else ""
        print(f"\nadded {len(self.rows)} rows to {self._results / self._name}.csv{failed}")
        return 1 if self._failed else 0


def table(rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> str:
    """Rows as text, numbers to the right."""
    cells = [list(columns)] + [[str(row.get(column, "")) for column in columns] for row in rows]
    widths = [max(len(line[k]) for line in cells) for k in range(len(columns))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if k == 0 else cell.rjust(width)
            for k, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in cells
    )
