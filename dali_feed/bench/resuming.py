"""`dali-feed bench resume`: how long a restored loader takes to its first batch, by where in the epoch it stands.

Each contestant stands at three places, beside itself at the start. Ours over tar shards and over files is made, given a
state, asked for a batch. torch's DataLoader has no state: the batches before are made and dropped.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from dali_feed.bench.data import BenchJob
from dali_feed.bench.ours import loader, transform
from dali_feed.bench.runner import Called, Contestant, Opens, Race, installed, opened
from dali_feed.external_sources import FileList, ShardSet
from dali_feed.loader import DataLoader
from dali_feed.options import Tuning

UNIT = "s"
SHOWN = ["who", "batches before", "s", "least", "most", "beside", "of it", "busy"]
PLACES = {"start": 0.0, "middle": 0.5, "end": 0.9}  # parts of an epoch that are over
FLAT = 1.5  # of the time at the start: no more is said to grow


def state_at(make: Callable[[], DataLoader], batches: int, batch: int) -> dict[str, Any]:
    """The state of a run whose loop has received so many batches."""
    with make() as running:
        return running.state_dict() | {"consumed": batches * batch}


def first_batch(make: Callable[[], DataLoader], state: dict[str, Any]) -> int:
    """A loader is made, restored, and asked for its first batch."""
    with make() as restored:
        restored.load_state_dict(state)
        next(iter(restored))
    return 1


def contestants(job: BenchJob, *, peers: bool = True) -> list[Contestant]:
    """Each at each place, in the order of their turns."""
    shards, batches = [str(path) for path in job.data.shards], job.data.count // job.batch
    at = {place: min(int(batches * part), batches - 1) for place, part in PLACES.items()}
    options: dict[str, Any] = {"device": job.device, "engine": job.engine, "transform": transform(job.crop)}
    options |= {"tuning": Tuning(threads=job.threads)}

    def restored(make: Callable[[], DataLoader], before: int) -> Opens:
        state = state_at(make, before, job.batch)
        return opened(lambda: Called(lambda: (first_batch(make, state), {"batches before": before})))

    def forwarded(before: int) -> Opens:
        from dali_feed.bench.peers import torch_loader

        def call() -> tuple[float, dict[str, float | str]]:
            with torch_loader(job, f"pil x{job.threads}") as steps:
                next(itertools.islice(steps, before, None))
                return 1, {"batches before": before}

        return opened(lambda: Called(call))

    makers: dict[str, Callable[[], DataLoader]] = {
        "tar": lambda: loader(ShardSet(shards), job.batch, **options),
        "folder": lambda: loader(FileList.from_folder(job.data.files), job.batch, **options),
    }
    chosen = []
    for place, before in at.items():
        for who, make in makers.items():
            opens, version = restored(make, before), installed("dali-feed")
            chosen.append(Contestant(f"{who}, {place}", opens, role="ours", beside=f"{who}, start", version=version))
        if peers:
            name, version = f"torch, {place}", installed("torch")
            chosen.append(Contestant(name, forwarded(before), beside="torch, start", version=version))
    return chosen


def findings(race: Race) -> list[str]:
    """What the place costs each contestant."""
    sentences = []
    for row in race.rows:
        ratio = race.ratio(row, row.beside)
        if not row.who.endswith("end") or ratio is None:
            continue
        before = race.cell(row, "batches before")
        start = f"{row.who.partition(',')[0]}: after {before:,.0f} batches the first one comes "
        grows = f"{ratio.median:.1f} times what it takes at the start"
        flat = "as at the start: the batches before it cost nothing"
        sentences.append(f"{start}in {race.cell(row, 's'):.2f} s, {grows if ratio.median > FLAT else flat}.")
    return sentences
