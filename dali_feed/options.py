"""Options in small frozen groups, validated when they are made; and the cores of a process, which defaults go by."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dali_feed.bad_records import BadRecords
from dali_feed.checks import bytes_of, flag, whole
from dali_feed.errors import ConfigError
from dali_feed.screen.screen import MAX_PIXELS, MAX_WORK

__all__ = ["BadRecords", "Cache", "Decode", "Tuning", "check_groups", "local_processes", "whole"]


GPU_THREADS = 16  # that prepare a GPU decoder's work: more wait for each other


@dataclass(frozen=True, slots=True)
class Decode:
    """How images are decoded, and which are too large to be.

    A state is refused where `exif`, `hardware`, `max_pixels` or `max_work` differ from those that it was saved with;
    `engine` and `memory_format` may change.

    Args:
        engine: what makes images: "dali" or "host". None: dali on a GPU and for a DALI graph function, else host.
        exif: True turns images as their EXIF orientation says, before the first transform; False takes them as stored.
            None: as the dataset itself does, so not for sources and ImageFolder, and for Hugging Face's datasets where
            they decode (a table given as a `Table` is a source). A torch.utils.data loader in our place, and a DALI
            pipeline of your own, have decoders of their own: a ConfigError there.
        hardware: share of a batch's JPEGs, 0..1, that a GPU's JPEG engine decodes, where it has one. Its pixels are not
            the CUDA decoder's, and which JPEGs go there depends on the batch: above 0 a run is not repeated bit for
            bit.
        memory_format: torch.channels_last, or torch.contiguous_format; None is the latter, or a graph function's own.
        max_pixels: an image of more pixels is a bad record. This bounds the memory that a header can make a decoder
            allocate.
        max_work: an image of more pixels times scans is a bad record: a decoder goes over a progressive JPEG once per
            scan, about 1.5 ns a pixel at worst, and ordinary ones have about ten.

    Raises:
        ConfigError: for values that are not allowed.
    """

    engine: str | None = None
    exif: bool | None = None
    hardware: float = 0.0
    memory_format: Any = None
    max_pixels: int = MAX_PIXELS
    max_work: int = MAX_WORK

    def __post_init__(self) -> None:
        if self.engine not in ("dali", "host", None):
            msg = f"Decode(engine=...): must be 'dali', 'host' or None; found {self.engine!r}"
            raise ConfigError(msg)
        if not isinstance(self.exif, bool | None):
            msg = f"Decode(exif=...): must be True, False or None; found {self.exif!r}"
            raise ConfigError(msg)
        share = self.hardware
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
            msg = f"Decode(hardware=...): must lie in 0..1; found {share!r}"
            raise ConfigError(msg)
        if self.memory_format is not None and str(self.memory_format) not in _LAYOUTS:
            rule = "must be torch.contiguous_format or torch.channels_last"
            msg = f"Decode(memory_format=...): {rule}; found {self.memory_format!r}"
            raise ConfigError(msg)
        whole("Decode(max_pixels=...)", self.max_pixels, 1)
        whole("Decode(max_work=...)", self.max_work, 1)

    @property
    def compared(self) -> dict[str, Any]:
        """What decides pixels, and which records are good: a state is refused where any of it differs."""
        return {
            "exif": bool(self.exif),
            "hardware": float(self.hardware),
            "max_pixels": self.max_pixels,
            "max_work": self.max_work,
        }

    @property
    def informing(self) -> dict[str, Any]:
        """What a state names for people alone."""
        return {"memory_format": None if self.memory_format is None else str(self.memory_format)}

    @property
    def layout(self) -> Literal["NCHW", "NHWC"]:
        """The layout of a batch in memory that `memory_format` is."""
        return _LAYOUTS.get(str(self.memory_format), "NCHW")


_LAYOUTS: dict[str, Literal["NCHW", "NHWC"]] = {  # by name, for torch is not imported here
    "torch.contiguous_format": "NCHW",
    "torch.channels_last": "NHWC",
}


@dataclass(frozen=True, slots=True)
class Cache:
    """Records of a bounded source, kept from the first time they are read: in memory, on a disk, on the GPU.

    In memory a loader keeps what it read itself: each rank of several fills a cache of its own. docs/caching.md says
    which cache is for what.

    Args:
        memory: bytes that they may take in this process's memory, or a size such as "8GB" (of 10^9) or "8GiB"; records
            that come when it is full are read every time. 0: none, beside `disk` or `device`.
        disk: a folder on a local file system: what is read is kept there as well, for later runs of the same source
            and for the other processes of the machine, from their next epoch on.
        disk_limit: bytes that records of all sources may take there, or a size; each process may be 8 MiB above it.
        device: bytes of the loader's GPU that images may take there, or a size: the images as they are before flips,
            floats and the like, so that later epochs neither decode them nor send them to the GPU. Records are read
            every time, unless `memory` or `disk` keeps them too. For transforms of which nothing is random but flips
            and a last RandomErasing; any other is a ConfigError, and so is a loader on the CPU.
        pixels: keep images decoded, uncompressed, so that later epochs decode nothing. They are what the `host` engine
            decodes, bit for bit; any other engine is a ConfigError. False keeps them encoded.

    Raises:
        ConfigError: for values that are not allowed.
    """

    memory: int | str = 0
    disk: str | os.PathLike[str] | None = None
    disk_limit: int | str | None = None
    device: int | str = 0
    pixels: bool = False

    def __post_init__(self) -> None:
        whole("Cache(device=...)", self.device_bytes, 0)
        whole("Cache(memory=...)", self.limit, 1 if self.disk is None and not self.device_bytes else 0)
        flag("Cache(pixels=...)", self.pixels)
        if self.pixels and self.disk is None and not self.limit:
            msg = "Cache(pixels=True): keeps images in memory or on a disk; found neither. Give memory or disk"
            raise ConfigError(msg)
        if (self.disk is None) != (self.disk_limit is None):
            msg = (
                "Cache: disk is a folder and disk_limit the bytes that may be kept there, one with the other; found "
                f"disk={self.disk!r}, disk_limit={self.disk_limit!r}"
            )
            raise ConfigError(msg)
        if self.disk is not None:
            whole("Cache(disk_limit=...)", self.disk_bytes, 1)
            if not os.fspath(self.disk).strip():
                msg = f"Cache(disk=...): must be a folder; found {self.disk!r}, which has no name"
                raise ConfigError(msg)

    @property
    def limit(self) -> int:
        """`memory` in bytes."""
        return bytes_of("Cache(memory=...)", self.memory)

    @property
    def device_bytes(self) -> int:
        """`device` in bytes."""
        return bytes_of("Cache(device=...)", self.device)

    @property
    def disk_bytes(self) -> int:
        """`disk_limit` in bytes; 0 without a disk."""
        return bytes_of("Cache(disk_limit=...)", 0 if self.disk_limit is None else self.disk_limit)


@dataclass(frozen=True, slots=True)
class Tuning:
    """Threads, memory and time limits. Nothing here changes what a batch contains.

    Args:
        threads: decoder threads of each image column, and threads of the user's own functions on columns. None: the
            CPUs this process may use, by its affinity and by the quota of its container or job, shared by the
            LOCAL_WORLD_SIZE processes that torchrun says are on the machine; before a GPU decoder 16 at most.
        readers: threads that read the source, each with its own connection or open files. "auto" begins with 2, then
            takes 1 to 8 by what it measures while they read (docs/kafka.md has the rules); for a
            stream that is a ConfigError.
        prefetch: batches in flight in the engine, and as many finished ones waiting for the training loop.
        memory: bytes of encoded images held at once, or a size such as "4GiB". All windows that `prefetch + 1` batches
            touch must fit (docs/start.md explains window and lane). Checked with the source's mean record size before
            a pass; a window that turns out larger ends the pass with an error. Copies of the few files whose header is
            rewritten for the decoder are not counted.
        watchdog: seconds without a batch after which a warning names the stage that is stuck, and its work.
        next_epoch: begin the next epoch while the last batches of this one are used: up to `prefetch` batches of it,
            and the first window of each lane, in the same `memory`. Not where a sampler gives the order, nor where an
            order takes more than `memory` (docs/resume.md). False holds nothing between epochs, and a stream, which
            has none, does as False says.
        cache: a `Cache` that keeps records in memory, on a disk or on the GPU, beside `memory`; None: none.

    Raises:
        ConfigError: for values that are not allowed.
    """

    threads: int | None = None
    readers: int | Literal["auto"] = 2
    prefetch: int = 2
    memory: int | str = "1GiB"
    watchdog: float = 30.0
    next_epoch: bool = True
    cache: Cache | None = None

    def __post_init__(self) -> None:
        if self.threads is not None:
            whole("Tuning(threads=...)", self.threads, 1)
        if self.readers != "auto":
            whole('Tuning(readers=...) other than "auto"', self.readers, 1)
        whole("Tuning(prefetch=...)", self.prefetch, 1)
        whole("Tuning(memory=...)", self.memory_bytes, 1 << 20)
        if not isinstance(self.watchdog, int | float) or isinstance(self.watchdog, bool) or not self.watchdog > 0:
            msg = f"Tuning(watchdog=...): must be seconds above 0, math.inf for never; found {self.watchdog!r}"
            raise ConfigError(msg)
        flag("Tuning(next_epoch=...)", self.next_epoch)
        if self.cache is not None and not isinstance(self.cache, Cache):
            msg = f"Tuning(cache=...): must be a Cache or None; found {self.cache!r}"
            raise ConfigError(msg)

    @property
    def memory_bytes(self) -> int:
        """`memory` in bytes."""
        return bytes_of("Tuning(memory=...)", self.memory)

    @property
    def cpu_threads(self) -> int:
        """`threads`, or this process's part of the CPUs that it may use; ConfigError if that is not known."""
        return self.threads or max(1, whole_cores() // local_processes())

    @property
    def gpu_threads(self) -> int:
        """`cpu_threads` for a decoder that leaves most of its work to a GPU; unless given, 16 at most."""
        return self.threads or min(GPU_THREADS, self.cpu_threads)


def check_groups(**groups: object) -> None:
    """Raise ConfigError for an argument `decode`, `bad` or `tuning` that is not of its group."""
    kinds = {"decode": Decode, "bad": BadRecords, "tuning": Tuning}
    for name, value in groups.items():
        if not isinstance(value, kinds[name]):
            msg = f"{name}: must be a {kinds[name].__name__}; found {value!r}"
            raise ConfigError(msg)


def local_processes() -> int:
    """How many processes of this run share the machine's CPUs; 1 where LOCAL_WORLD_SIZE is not set."""
    count = os.environ.get("LOCAL_WORLD_SIZE") or "1"
    if not count.isdecimal() or int(count) < 1:
        msg = f"LOCAL_WORLD_SIZE: must be an int of at least 1 where it is set; found {count!r}. Unset it"
        raise ConfigError(msg)
    return int(count)


# How many cores the process may use.
#
# The law: every default that counts cores asks here. A container that is given 4 of a machine's 64 cores by a quota
# still sees all of them, and 64 threads would stand still together whenever the quota of 0.1 s is used up.


ROOT = Path("/")  # of the kernel's files


def cores(root: Path | None = None) -> float:
    """Cores, which may be a part of one; `root`: where proc/ and sys/ lie, None for the machine's own."""
    return min([float(len(os.sched_getaffinity(0))), *_quotas(ROOT if root is None else root)])


def whole_cores(root: Path | None = None) -> int:
    """The same rounded up, at least 1: so many threads can use all that is allowed, whose sum is limited anyway."""
    return max(1, math.ceil(cores(root)))


def _quotas(root: Path) -> list[float]:
    """Cores that each control group above the process allows."""
    try:
        with open(f"{root}/proc/self/cgroup") as file:  # noqa: PTH123  as below
            groups = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return []
    quotas: list[float] = []
    for _, controllers, path in (group for group in groups if len(group) == 3):
        old = "cpu" in controllers.split(",")
        if controllers and not old:
            continue
        base = f"{root}/sys/fs/cgroup{'/cpu' if old else ''}"
        names = [name for name in path.split("/") if name]
        # A container may see the machine's path and have `base` alone.
        for depth in range(len(names), -1, -1):
            folder = "/".join([base, *names[:depth]])
            if old:
                numbers = [*_numbers(f"{folder}/cpu.cfs_quota_us"), *_numbers(f"{folder}/cpu.cfs_period_us")]
            else:
                numbers = _numbers(f"{folder}/cpu.max")
            if len(numbers) == 2 and numbers[0] > 0 < numbers[1]:
                quotas.append(numbers[0] / numbers[1])
    return quotas


def _numbers(path: str) -> list[float]:
    """Those in a file of the kernel's; none where there is no file, or it says "max"."""
    try:
        with open(path) as file:  # noqa: PTH123  Path's own takes twice as long, and each loader reads some
            return [float(each) for each in file.read().split()]
    except (OSError, ValueError):
        return []
