"""A set written by many machines: a Ray task per shard.

The law: who writes a shard shows nowhere in it, so that a set by Ray is the set by threads, bit for bit. A task is
given the source, the options and the plan, never a client or an open file: it makes its own, and looks whether its
source is the one that was planned. A task whose machine dies is run again elsewhere, under temporary names of its own.
"""

from __future__ import annotations

import logging
import os
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dali_feed.errors import ConfigError, DaliFeedError, EngineError, SourceChangedError, SourceDeniedError
from dali_feed.packages import needed
from dali_feed.packing.plan import Plan
from dali_feed.packing.runner import Output, PackJob, Receipt, ShardMaker, WorkFolder, as_source, contents_for
from dali_feed.records.source import Snapshot
from dali_feed.storage.striping import Layout, check_targets

__all__ = ["PackTask", "check_ray", "write_on_ray"]

TRIES = 5  # of a task whose worker or machine dies
AHEAD = 2  # tasks for each CPU, so that none waits for the driver


@dataclass(frozen=True, slots=True)
class PackTask:
    """What `pack` was asked for, as a task is given it."""

    source: Any
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Parcel:
    """Everything a task needs; the same for all shards of a set."""

    run: str
    asked: PackTask
    fallback: str
    snapshot: Snapshot
    plan: Plan
    out: Path
    name: str
    layout: Layout | None


_PROCESS = uuid.uuid4().hex


class _Attempt(WorkFolder):
    """The work folder, with files of its own: a task that was given up may still be writing."""

    attempt = _PROCESS

    def temporary(self, k: int) -> Path:
        """Where this attempt writes shard k."""
        return self.path / f"{k:06d}-{_PROCESS}.tar"


_MADE: dict[str, tuple[Output, ShardMaker]] = {}  # of this process: the set that it writes shards of


def check_ray(asked: PackTask) -> None:
    """Raise MissingPackageError where there is no Ray, ConfigError for what no other process can be given."""
    with needed():
        import ray  # noqa: F401
        from ray import cloudpickle
    try:
        cloudpickle.dumps(asked)
    except Exception as error:  # whatever a user's object raises
        msg = f'engine="ray": source and options must be objects that can be sent to other processes; found: {error}'
        raise ConfigError(msg) from error


def write_on_ray(
    job: PackJob,
    work: WorkFolder,
    asked: PackTask,
    todo: Sequence[int],
    most: int | None,
    done: Callable[[int, Receipt], None],
    layout: Layout | None = None,
) -> None:
    """Write the shards `todo`; `done` hears of each as it is finished. At most `most` at a time.

    Joins the cluster of this process or of RAY_ADDRESS, or starts one on this machine, which ends with the call.

    Raises:
        ConfigError: a machine of the cluster wrote a shard that is not seen here, or does not see all targets.
        SourceDeniedError: a target is not seen here.
        SourceChangedError: a machine sees another source than was planned.
        EngineError: the tasks of a shard ended without a result, again and again.
    """
    import ray

    if layout is not None:
        check_targets(work.out, layout)
    started = not ray.is_initialized()
    if started:
        ray.init(log_to_driver=False, logging_level=logging.ERROR)
    parcel = ray.put(
        _Parcel(uuid.uuid4().hex, asked, job.contents.fallback, job.snapshot, job.plan, work.out, work.name, layout)
    )
    task = ray.remote(num_cpus=1, max_retries=TRIES, scheduling_strategy="SPREAD")(_one)
    at_once = most or max(1, AHEAD * int(ray.cluster_resources().get("CPU", 1)))
    waiting: dict[Any, int] = {}
    left, output = iter(todo), Output(work, layout)
    try:
        while True:
            while len(waiting) < at_once and (k := next(left, None)) is not None:
                waiting[task.remote(parcel, k)] = k
            if not waiting:
                return
            ended, _ = ray.wait(list(waiting), num_returns=1)
            for ref in ended:
                k = waiting.pop(ref)
                receipt, node = _result(ref, job.plan.shard(k))
                _seen(output, work, job.plan.shard(k), k, node)
                done(k, receipt)
    finally:
        for ref in waiting:
            ray.cancel(ref, force=True)
        if started:
            ray.shutdown()


def _result(ref: Any, shard: str) -> tuple[Receipt, str]:
    """What a task gave; its errors as they would be without Ray."""
    import ray

    try:
        told, node = ray.get(ref)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, DaliFeedError):
            raise error.cause from None
        raise
    except ray.exceptions.RayError as error:
        msg = f"{shard}: its task must end with a result, within {TRIES + 1} tries; found: {error}; look at Ray's logs"
        raise EngineError(msg) from error
    return Receipt.of(told), node


def _seen(output: Output, work: WorkFolder, name: str, k: int, node: str) -> None:
    if output.there(name, k) is None:
        if output.layout is not None:
            targets = [output.layout.folder(k, str(work.out)) for k in range(len(output.layout.targets))]
            msg = (
                f"{work.out / name}: all machines of a Ray cluster must see the folder of a set, and its targets "
                f"{', '.join(targets)}; {node} wrote this shard, and this machine does not see it; mount the "
                "shared folders on each machine"
            )
            raise ConfigError(msg)
        msg = (
            f"{work.out / name}: all machines of a Ray cluster must see the folder of a set; {node} wrote this "
            "shard, and this machine does not see it; give a folder on shared storage"
        )
        raise ConfigError(msg)


def _one(parcel: _Parcel, k: int) -> tuple[dict[str, Any], str]:
    """A task: shard k is written, with its index and its receipt."""
    made = _MADE.get(parcel.run)
    if made is None:
        for _, maker in _MADE.values():
            maker.close()
        _MADE.clear()
        made = _MADE[parcel.run] = _made(parcel)
    output, maker = made
    receipt = output.write(k, parcel.plan.shard(k), maker, lambda *_: None)
    return receipt.told(), os.uname().nodename


def _made(parcel: _Parcel) -> tuple[Output, ShardMaker]:
    source = as_source(parcel.asked.source)
    found = source.snapshot(parcel.snapshot.pin)
    if found.fingerprint != parcel.snapshot.fingerprint:
        msg = (
            f"{found.source}: all machines of a Ray cluster must see the same records; {os.uname().nodename} "
            f"sees other records (fingerprint {found.fingerprint}, planned {parcel.snapshot.fingerprint}); give "
            "it the same files"
        )
        raise SourceChangedError(msg)
    contents = replace(contents_for(source, parcel.asked.options), fallback=parcel.fallback)
    attempt = _Attempt(parcel.out, parcel.name)
    attempt.path.mkdir(parents=True, exist_ok=True)  # a machine without this folder says so by what is not seen
    if parcel.layout is not None:
        try:
            check_targets(parcel.out, parcel.layout)
        except SourceDeniedError as error:
            msg = f"{os.uname().nodename}: every machine of a Ray cluster must see all targets of a set; {error}"
            raise ConfigError(msg) from error
    return Output(attempt, parcel.layout), ShardMaker(contents, parcel.snapshot, parcel.plan, threading.Event())
