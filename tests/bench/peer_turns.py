"""What a test of a peer needs: images that any crop of them tells apart, as files, tars and a topic, and one turn."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from kit.limits import LONG
from PIL import Image

from dali_feed.bench.contract import Data, Job
from dali_feed.bench.peers._peer import Peer
from dali_feed.testing.shards import write_shard

__all__ = ["BATCH", "COUNT", "CROP", "Turn", "job_in", "levels", "turn_of"]

COUNT, BATCH, CROP = 24, 8, 32
HEIGHT, WIDTH = 48, 64
SHARDS = 2
STEPS = 13 * COUNT // BATCH  # more than an epoch of those who repeat the images twelve times in one


def levels(k: int) -> tuple[int, int]:
    """Green and blue of the k-th image, which no crop and no flip changes; its red grows from left to right."""
    return 10 * k, 255 - 10 * k


def _jpeg(k: int) -> bytes:
    pixels = np.empty((HEIGHT, WIDTH, 3), np.uint8)
    pixels[..., 0] = np.linspace(0, 255, WIDTH)
    pixels[..., 1], pixels[..., 2] = levels(k)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=95, subsampling=0)
    return file.getvalue()


def job_in(folder: Path, threads: int = 1) -> Job:
    """The images in a folder, and the work on them."""
    images = [(_jpeg(k), k % 2) for k in range(COUNT)]
    for k, (jpeg, label) in enumerate(images):
        path = folder / "files" / f"class-{label}" / f"{k:03d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg)
    each = COUNT // SHARDS
    shards = tuple(folder / f"{n}.tar" for n in range(SHARDS))
    for n, shard in enumerate(shards):
        write_shard(shard, images[n * each : (n + 1) * each], first=n * each)
    (folder / "scratch").mkdir()
    data = Data("ramps", folder / "files", shards, COUNT, len(images[0][0]), HEIGHT, WIDTH)
    return Job(data, BATCH, "cpu", threads, folder / "scratch", crop=CROP)


@dataclass(frozen=True, slots=True)
class Turn:
    """What a peer did: its batches, what a step said of its size, and what was left of it."""

    batches: Sequence[torch.Tensor]
    said: int
    threads: Sequence[str]
    processes: Sequence[str]


def _children() -> set[int]:
    tasks = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    return {int(pid) for task in tasks for pid in task.read_text().split()}


def _kept_by_python(pid: int) -> bool:
    """Whether it is what multiprocessing starts once for a process and keeps as long as that lives."""
    try:
        return b"resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return True  # it has just ended


def _left(threads: set[threading.Thread]) -> Iterator[str]:
    for thread in set(threading.enumerate()) - threads:
        if not thread.name.startswith("tqdm_monitor"):  # that of progress bars is one for the process
            thread.join(LONG / 100)  # it may be on its way out
            if thread.is_alive():
                yield thread.name


def turn_of(peer: Peer, job: Job, way: str, steps: int = STEPS) -> Turn:
    """One turn."""
    threads, processes = set(threading.enumerate()), _children()
    with peer.turn(job, way) as taken:
        said = next(taken)
        batches = [taken.take().clone() for _ in range(steps)]
    left = list(_left(threads))
    kept = [pid for pid in _children() - processes if not _kept_by_python(pid)]
    return Turn(batches, said, left, [Path(f"/proc/{pid}/cmdline").read_text() for pid in kept])
