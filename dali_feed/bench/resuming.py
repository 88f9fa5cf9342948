"""`dali-feed bench resume`: how long a restored loader takes to its first batch, by where in the epoch it stands.

Contestants, in turns:

    tar, folder  our loader over tar shards and over files: made, given a state, asked for a batch
    torch        torch's DataLoader over the same files, which has no state: the batches before are made and dropped
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from dali_feed.bench.contract import Job, Outcome
from dali_feed.bench.peers.torch_loader import torch_loader
from dali_feed.bench.turns import spread
from dali_feed.bench.work import CROP, transform
from dali_feed.external_sources import FileList, ShardSet
from dali_feed.loader import DataLoader
from dali_feed.options import BadRecords, Decode, Tuning
from dali_feed.plan import Shuffle
from dali_feed.records.source import Source

__all__ = ["PLACES", "SHOWN", "contestants", "findings", "first_batch", "loader_of", "measure", "state_at"]

SHOWN = ("who", "at", "batches before", "s", "least", "most", "of start", "of tar")
PLACES = {"start": 0.0, "middle": 0.5, "end": 0.9}  # parts of an epoch that are over
FLAT = 1.5  # of the time at the start: no more is said to grow

First = Callable[[int], float]  # given how many batches are over: seconds to the next one


def loader_of(
    source: Source,
    batch: int,
    *,
    shuffle: bool | Shuffle = True,
    device: str = "cpu",
    engine: str | None = None,
    threads: int | None = None,
    crop: int = CROP,
) -> DataLoader:
    """As anybody would make it."""
    return DataLoader(
        source,
        batch,
        shuffle=shuffle,
        drop_last=True,
        transform=transform(crop),
        device=torch.device(device),
        bad=BadRecords(limit=None),
        decode=Decode(engine=engine),
        tuning=Tuning(threads=threads),
    )


def state_at(make: Callable[[], DataLoader], batches: int, batch: int) -> dict[str, Any]:
    """The state of a run whose loop has received so many batches."""
    with make() as loader:
        return loader.state_dict() | {"consumed": batches * batch}


def first_batch(make: Callable[[], DataLoader], state: dict[str, Any]) -> float:
    """Seconds from making a loader to its first batch."""
    begun = time.perf_counter()
    with make() as loader:
        loader.load_state_dict(state)
        next(iter(loader))
        return time.perf_counter() - begun


def contestants(job: Job, engine: str | None, *, peers: bool) -> dict[str, First]:
    """By name."""

    def ours(source: Callable[[], Source]) -> First:
        def make() -> DataLoader:
            given = {"device": job.device, "engine": engine, "threads": job.threads, "crop": job.crop}
            return loader_of(source(), job.batch, **given)  # type: ignore[arg-type]

        return lambda batches: first_batch(make, state_at(make, batches, job.batch))

    def fast_forward(batches: int) -> float:
        begun, device = time.perf_counter(), torch.device(job.device)
        with torch_loader(job.data.files, job.batch, job.threads, device, way="pil", crop=job.crop) as steps:
            next(itertools.islice(steps, batches, None))
            return time.perf_counter() - begun

    shards = [str(path) for path in job.data.shards]
    found = {"tar": ours(lambda: ShardSet(shards)), "folder": ours(lambda: FileList.from_folder(job.data.files))}
    return found | ({"torch": fast_forward} if peers else {})


def measure(
    firsts: Mapping[str, First],
    batches: int,
    outcome: Outcome,
    *,
    repeats: int,
    heard: Callable[[str, str, float], None] | None = None,
) -> None:
    """Let them resume in turns at each place; `outcome` holds what was found, also where it is interrupted.

    Args:
        firsts: the contestants; whoever fails is out, and the others go on.
        batches: of an epoch.
        outcome: gets rows, who is missing and findings.
        repeats: rounds.
        heard: is told who resumed where, and the seconds it took.
    """
    at = {place: min(int(batches * part), batches - 1) for place, part in PLACES.items()}
    found: dict[tuple[str, str], list[float]] = {}
    try:
        for number in range(repeats + 1):  # in the first round libraries are loaded and files come to be known
            for place, who in itertools.product(at, firsts):
                if who in outcome.missing or (number == 0 and place != "start"):
                    continue
                try:
                    seconds = firsts[who](at[place])
                except Exception as error:  # noqa: BLE001  whatever it fails on, the others are measured
                    outcome.missing[who] = f"failed: {type(error).__name__}: {error}"
                    continue
                if number:
                    found.setdefault((who, place), []).append(seconds)
                    if heard:
                        heard(who, place, seconds)
    finally:
        outcome.rows += [_row(who, place, at[place], found) for (who, place) in found if who not in outcome.missing]
        outcome.findings += findings(outcome.rows)


def _row(who: str, place: str, before: int, found: Mapping[tuple[str, str], Sequence[float]]) -> dict[str, Any]:
    middle, least, most = spread(found[who, place])

    def beside(other: tuple[str, str]) -> float | None:
        pairs = list(zip(found[who, place], found.get(other, ()), strict=False))
        return round(spread(mine / its for mine, its in pairs)[0], 3) if pairs else None

    times = {"s": round(middle, 4), "least": round(least, 4), "most": round(most, 4)}
    ratios = {"of start": beside((who, "start")), "of tar": beside(("tar", place))}
    return {"who": who, "at": place, "batches before": before} | times | ratios


def findings(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence for each contestant about what the place costs it."""
    found = []
    for row in rows:
        if row["at"] != "end" or row["of start"] is None:
            continue
        said = f"{row['who']}: after {row['batches before']:,} batches the first one comes in {row['s']:.2f} s, "
        grows = f"{row['of start']:.1f} times what it takes at the start"
        found.append(
            said + (grows if row["of start"] > FLAT else "as at the start: the batches before it cost nothing") + "."
        )
    return found
