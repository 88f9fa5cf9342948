"""DALI fed by hand: fn.external_source with a callback that reads files, in this process or in workers of DALI's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from dali_feed.bench.contract import Job
from dali_feed.bench.peers._dali import DaliPeer, Graph, graph_ways, pipeline, run_graph
from dali_feed.bench.peers._endless_files import EndlessFiles
from dali_feed.bench.peers._peer import Batches, image_files

__all__ = ["DaliExternalSource"]


@dataclass(frozen=True, slots=True)
class _Way:
    graph: Graph
    workers: int  # 0: the callback runs in this process

    def __str__(self) -> str:
        return f"{self.graph}{f', {self.workers} readers' if self.workers else ''}"


def _ways(job: Job) -> dict[str, _Way]:
    made = (_Way(graph, workers) for graph in graph_ways(job).values() for workers in (0, job.threads))
    return {str(way): way for way in made}


class DaliExternalSource(DaliPeer):
    """A callback per batch without a copy, or DALI's `parallel=True`."""

    name = "dali-external-source"

    def ways(self, job: Job) -> Sequence[str]:
        """Threads, what is decoded, and who reads."""
        return [*_ways(job)]

    @contextmanager
    def turn(self, job: Job, way: str) -> Iterator[Batches]:
        """A pipeline of its own, with its workers."""
        from nvidia.dali import fn, types

        chosen, files = _ways(job)[way], EndlessFiles(image_files(job.data.files), job.seed)
        options: dict[str, Any] = {}
        if chosen.workers:  # a process that has used a GPU must not be forked; elsewhere that is done at once
            start = "fork" if job.device == "cpu" else "spawn"
            options = {"py_num_workers": chosen.workers, "py_start_method": start}
        pipe = pipeline(job, chosen.graph.threads, **options)
        with pipe:
            if chosen.workers:
                encoded = fn.external_source(source=files, parallel=True, batch=False, dtype=types.UINT8)
            else:
                encoded = fn.external_source(source=files.batches(job.batch), no_copy=True, dtype=types.UINT8)
            output = chosen.graph.made(encoded, job)
        try:
            with run_graph(pipe, output, job) as steps:
                yield steps
        finally:
            if pipe._py_pool is not None:  # or its workers live as long as anything that holds the pipeline
                pipe._py_pool.close()
