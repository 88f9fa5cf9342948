"""What a bench is made of: a job, contestants that do it in turns, and the outcome that tables and reports show.

The law: everybody does the same work, from encoded bytes to a normalized float batch on the device, and whoever cannot
take part is named with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

__all__ = ["Contestant", "Data", "Job", "Outcome", "Steps", "Topic"]


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic with an image in each record's value; `pid`: the broker's process on this machine, if any."""

    name: str
    servers: str
    pid: int | None = None


@dataclass(frozen=True, slots=True)
class Data:
    """The same images in every form that somebody reads.

    name        what it is, as a table says it: "3,000 photos of 500x375"
    files       a folder with a folder for each class, as ImageFolder reads it
    shards      tar files, as WebDataset reads them: members `jpg` (or another suffix) and `cls`
    count       images
    mean_bytes  of an image, encoded
    height, width  of the images; 0 where they differ
    topic       None: not in a topic
    linked      the shards under several names each, so that an epoch is long and its end is not what is measured;
                (): they have one name each
    """

    name: str
    files: Path
    shards: tuple[Path, ...]
    count: int
    mean_bytes: int
    height: int
    width: int
    topic: Topic | None = None
    linked: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class Job:
    """What everybody does, shuffled: RandomResizedCrop(crop), a flip, float32 (n, 3, crop, crop), Normalize.

    device   "cpu" or "cuda:K"; where the batch has to be
    threads  that each may use for decoding, or processes where it has those
    scratch  a folder for what a contestant has to write for itself, such as shards of its own; it is kept for the
             run, and what is written there is not counted
    """

    data: Data
    batch: int
    device: str
    threads: int
    scratch: Path
    crop: int = 224
    seed: int = 0


class Steps(Iterator[int]):
    """What a contestant runs: each step takes a batch, on its device, and gives its size. It never ends.

    beside  a process of its own that serves it, whose CPU time is counted separately
    notes   what it has to say, numbers by name; asked for once it is closed. Seconds that it went through waiting for
            STAGE are `STAGE_wait`
    told    what our loader says of itself, see `told.told_of`; asked for once it is closed
    keeps   whether the last step's batch is left in `images`: it costs memory that is otherwise free by then
    """

    beside: int | None = None
    notes: Mapping[str, float] = {}
    told: Mapping[str, Any] = {}
    keeps: bool = False
    images: Any = None

    def begins(self) -> None:
        """The warm-up is over: what it tells of itself from here on is what is counted."""

    def kept(self, images: Any) -> int:
        """What a step gives: the number of images."""
        if self.keeps:
            self.images = images
        return len(images)


class Contestant(Protocol):
    """Somebody who can do the job. `ways` are settings of which the fastest counts: nobody knows it beforehand."""

    @property
    def name(self) -> str:
        """As a table says it."""

    @property
    def version(self) -> str:
        """Of the package it is; "" where it is not installed."""

    def missing(self, job: Job) -> str | None:
        """Why it cannot do this job here, with the cure; None: it can."""

    def ways(self, job: Job) -> Sequence[str]:
        """Names of its settings, at least one."""

    def turn(self, job: Job, way: str) -> AbstractContextManager[Steps]:
        """Make it afresh; leaving the context ends its threads and processes."""


@dataclass(slots=True)
class Outcome:
    """What one command of the bench found. JSON all through, so that it can be kept, shown again and compared.

    kind      "loader", "kafka", "io", ...
    about     where and with what it was made: machine, versions, commit, data, batch, threads, device
    rows      what a table and a CSV say, one for each contestant and case; keys are columns
    waits     by contestant: how long each step of its last turn took, in seconds
    stages    by contestant: seconds of its last turn by what they went to, such as "source", "decode", "trainer"
    told      by contestant that is our loader: its verdict, stages and waits, as `told.told_of` gives them
    missing   who could not take part, and why
    findings  what the figures say, in sentences, the most useful one first
    """

    kind: str
    about: dict[str, Any]
    rows: list[dict[str, Any]] = field(default_factory=list)
    waits: dict[str, list[float]] = field(default_factory=dict)
    stages: dict[str, dict[str, float]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    told: dict[str, dict[str, Any]] = field(default_factory=dict)
