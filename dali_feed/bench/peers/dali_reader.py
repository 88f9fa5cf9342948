"""DALI's own way from files to floats: fn.readers.file in front of its decoder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from dali_feed.bench.contract import Job
from dali_feed.bench.peers._dali import DaliPeer, graph_ways, pipeline, run_graph
from dali_feed.bench.peers._peer import Batches

__all__ = ["DaliReader"]


class DaliReader(DaliPeer):
    """fn.readers.file, shuffled as it does: in a buffer, and files anew each epoch."""

    name = "dali-reader"

    def ways(self, job: Job) -> Sequence[str]:
        """Threads, and what is decoded."""
        return [*graph_ways(job)]

    @contextmanager
    def turn(self, job: Job, way: str) -> Iterator[Batches]:
        """A pipeline of its own."""
        from nvidia.dali import fn

        graph = graph_ways(job)[way]
        pipe = pipeline(job, graph.threads)
        with pipe:
            encoded, _ = fn.readers.file(file_root=str(job.data.files), random_shuffle=True, seed=job.seed)
            output = graph.made(encoded, job)
        with run_graph(pipe, output, job) as steps:
            yield steps
