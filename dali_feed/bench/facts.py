"""Where and with what a row was made: the machine, the versions of what took part, the commit."""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import os
import platform
import shutil
import subprocess
from pathlib import Path

from dali_feed.cores import whole_cores
from dali_feed.native.library import used

__all__ = ["RUN", "driver", "facts", "jpeg_engine", "version"]

RUN = "DALI_FEED_BENCH_DATE"  # of a run that is made of several processes


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def _commit() -> str:
    """Of the tree this file is kept in, with a "+" where that has changes; else the version that is installed."""
    here, installed = Path(__file__), version("dali-feed")
    if _git("ls-files", "--error-unmatch", here.name) is None:
        return installed
    head, changed = _git("rev-parse", "--short", "HEAD"), _git("status", "--porcelain")
    return installed if head is None else head + ("+" if changed else "")


def _git(*command: str) -> str | None:
    """What git says in this file's folder; None where it fails."""
    git = shutil.which("git")
    if git is None:
        return None
    line = [git, "-C", str(Path(__file__).parent), *command]
    done = subprocess.run(line, capture_output=True, text=True, check=False)  # noqa: S603  nothing of a user's in it
    return None if done.returncode else done.stdout.strip()


def version(*packages: str) -> str:
    """Of the first of these packages that is installed; "none" where none is."""
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
        "cpus": whole_cores(),
        "load": f"{os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
        "driver": driver(),
        "dali": version("nvidia-dali-cuda120", "nvidia-dali-cuda130"),
        "nvimgcodec": version("nvidia-nvimgcodec-cu12", "nvidia-nvimgcodec-cu13"),
        "cupy": version("cupy-cuda12x", "cupy-cuda13x"),
        "jpeg engine": jpeg_engine(),
        "torch": version("torch"),
        "numpy": version("numpy"),
        "librdkafka": confluent_kafka.libversion()[0],
        "native": used(),
    }
