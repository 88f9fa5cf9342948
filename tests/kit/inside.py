"""The internals that contract tests may have, each with its reason."""

from __future__ import annotations

from typing import Any

# What a place for dead letters is handed.
from dali_feed.bad_records import DeadLetters, Letter

# The commands as functions: a process each would cost a second, and typer's runner wants the app.
from dali_feed.cli.app import app, main

# A column of a user's own is made by this class.
from dali_feed.columns.column import Column

# How a test reads some records by hand.
from dali_feed.columns.request import open_reader

# The engine of loaders on a CPU that choose none: all of a file's laws are run on both.
from dali_feed.engines import choose

# The loader without torch. Laws of the feed are told apart best without a transform or a collate function beside it.
from dali_feed.feed import Batch, Feed

# Figures of `loader.stats()`, which a test makes by hand to see what is said of them.
from dali_feed.feed.stats import CpuStats, Running, StageStats, Stats, WaitCause, verdict

# What runs a loader: where torch's own loader is to run it, and where a warning comes from.
from dali_feed.loader import arguments
from dali_feed.loader.torch_run import TorchEpochs as TorchFeed

# Whether the loops in C are there; None without a compiler.
from dali_feed.native.library import library
from dali_feed.packing.sinks import write_shard

# The contract of a source: what its authors implement.
from dali_feed.records.extents import Extents, pack_ids, unpack_ids
from dali_feed.records.live import Pace
from dali_feed.records.pieces import Pieces
from dali_feed.records.slabs import SlabPool
from dali_feed.records.source import Block, Fault, Lease, Member, Reader, Snapshot, Source

# Faults and shards as data.
from dali_feed.testing.scripted import GARBAGE, Abort, Corrupt, Gap, Item, Stall

__all__ = [
    "GARBAGE",
    "Abort",
    "Batch",
    "Block",
    "Column",
    "Corrupt",
    "CpuStats",
    "DeadLetters",
    "Extents",
    "Fault",
    "Feed",
    "Gap",
    "Item",
    "Lease",
    "Letter",
    "Member",
    "Pace",
    "Pieces",
    "Reader",
    "Running",
    "SlabPool",
    "Snapshot",
    "Source",
    "StageStats",
    "Stall",
    "Stats",
    "TorchFeed",
    "WaitCause",
    "app",
    "arguments",
    "choose",
    "leased",
    "library",
    "main",
    "open_reader",
    "pack_ids",
    "running",
    "torchs",
    "unpack_ids",
    "verdict",
    "write_shard",
]


def leased(feed: Any) -> int:
    """Bytes of memory that are lent to readers, batches and engines. No public figure says so yet."""
    return int(feed._slabs.leased)


def running(loader: Any) -> Any:
    """What runs the loader: a feed of ours, or torch's own loader behind ours. A batch looks the same of both."""
    return loader._positions if loader._feed is None else loader._feed


def torchs(loader: Any) -> Any:
    """Torch's own loader, where that runs ours: what it was given says how arguments are handed on."""
    return loader._positions._machine.loader
