"""A set written by many machines: a Ray task per shard.

The law: who writes a shard shows nowhere in it, so that a set by Ray is the set by threads, bit for bit. A task is
given a job, never a client or an open file: it makes its own, and looks whether its source is the one that was planned.
A task whose machine dies is run again elsewhere.
"""

from __future__ import annotations

import logging
import os
import threading
import uuid
from concurrent.futures import Future
from typing import Any

from dali_feed.errors import ConfigError, DaliFeedError, EngineError, SourceChangedError, SourceDeniedError
from dali_feed.packages import needed
from dali_feed.packing.job import PackJob, PackTask
from dali_feed.packing.runner import Advance, finished, write_shard
from dali_feed.packing.work import Receipt
from dali_feed.storage.striping import check_targets

TRIES = 5  # of a task whose worker or machine dies
AHEAD = 2  # tasks for each CPU, so that none waits for the driver
_JOBS: dict[str, PackJob] = {}  # of this process: the set that it writes shards of


def check_ray(packed: PackTask) -> None:
    """Raise MissingPackageError where there is no Ray, ConfigError for what no other process can be given."""
    with needed():
        import ray  # noqa: F401
        from ray import cloudpickle
    try:
        cloudpickle.dumps(packed)
    except Exception as error:  # whatever a user's object raises
        msg = f'engine="ray": source and options must be objects that can be sent to other processes; found: {error}'
        raise ConfigError(msg) from error


class RayTasks:
    """Shards by tasks; as `run.Threads` has it.

    Joins the cluster of this process or of RAY_ADDRESS, or starts one on this machine, which ends with it.

    Raises SourceDeniedError where this process does not see a target.
    """

    def __init__(self, job: PackJob, most: int | None, advance: Advance) -> None:
        import ray

        if job.layout is not None:
            check_targets(job.work.out, job.layout)
        self._job, self._advance, self._started = job, advance, not ray.is_initialized()
        if self._started:
            ray.init(log_to_driver=False, logging_level=logging.ERROR)
        self._box, self._run = [ray.put(job)], uuid.uuid4().hex  # in a list it is fetched once by each process
        self._task = ray.remote(num_cpus=1, max_retries=TRIES, scheduling_strategy="SPREAD")(_write)
        self._refs: dict[Future[Any], Any] = {}
        self.at_once = most or max(1, AHEAD * int(ray.cluster_resources().get("CPU", 1)))

    def submit(self, k: int) -> Future[Any]:
        """Have shard k written."""
        ref = self._task.remote(self._box, self._run, k)
        future: Future[Any] = ref.future()
        self._refs[future] = ref
        return future

    def receipt(self, k: int, future: Future[Any]) -> Receipt:
        """What a task gave; its errors as they would be without Ray.

        ConfigError: a machine's shard is not seen here, or it does not see all targets. EngineError: they gave none.
        """
        import ray

        shard = self._job.plan.shard(k)
        try:
            self._refs.pop(future)
            receipt, node = future.result()
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, DaliFeedError):
                raise error.cause from None
            raise
        except ray.exceptions.RayError as error:
            rule = f"its task must end with a result, within {TRIES + 1} tries"
            raise EngineError(f"{shard}: {rule}; found: {error}; look at Ray's logs") from error
        if finished(self._job, k) is None:
            raise self._unseen(shard, node)
        borders = self._job.plan.borders
        self._advance(int(borders[k + 1] - borders[k]), receipt.size)
        done: Receipt = receipt
        return done

    def close(self) -> None:
        """End what is under way."""
        import ray

        for ref in self._refs.values():
            ray.cancel(ref, force=True)
        if self._started:
            ray.shutdown()

    def _unseen(self, shard: str, node: str) -> ConfigError:
        out, layout = self._job.work.out, self._job.layout
        targets, cure = "", "give a folder on shared storage"
        if layout is not None:
            folders = ", ".join(layout.folder(k, str(out)) for k in range(len(layout.targets)))
            targets, cure = f", and its targets {folders}", "mount the shared folders on each machine"
        rule = f"all machines of a Ray cluster must see the folder of a set{targets}"
        what = f"{node} wrote this shard, and this machine does not see it"
        return ConfigError(f"{out / shard}: {rule}; {what}; {cure}")


def _write(box: list[Any], run: str, k: int) -> tuple[Receipt, str]:
    """A task: shard k is written, with its index and its receipt."""
    import ray

    if run not in _JOBS:
        _JOBS.clear()
        job: PackJob = ray.get(box[0])
        _check(job)
        _JOBS[run] = job
    return write_shard(_JOBS[run], k, lambda *_: None, threading.Event()), os.uname().nodename


def _check(job: PackJob) -> None:
    """Raise SourceChangedError or ConfigError where this machine sees other records, or not all targets."""
    here, seen, planned = os.uname().nodename, job.packed.snapshot(job.snapshot.pin), job.snapshot.fingerprint
    if seen.fingerprint != planned:
        rule = "all machines of a Ray cluster must see the same records"
        what = f"{here} sees other records (fingerprint {seen.fingerprint}, planned {planned})"
        raise SourceChangedError(f"{seen.source}: {rule}; {what}; give it the same files")
    job.work.path.mkdir(parents=True, exist_ok=True)  # a machine without this folder says so by what is not seen
    if job.layout is not None:
        try:
            check_targets(job.work.out, job.layout)
        except SourceDeniedError as error:
            msg = f"{here}: every machine of a Ray cluster must see all targets of a set; {error}"
            raise ConfigError(msg) from error
