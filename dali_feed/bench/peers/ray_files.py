"""Ray Data's read_binary_files, in an order of files that is drawn anew for each epoch."""

from __future__ import annotations

from typing import Any

from dali_feed.bench.contract import Job
from dali_feed.bench.peers._peer import image_files
from dali_feed.bench.peers._ray import REPEATS, RayPeer

__all__ = ["RayFiles"]


class RayFiles(RayPeer):
    """`read_images` would decode whole images where it reads, one by one, with Pillow."""

    name, modules, column = "ray-files", ("ray.data",), "bytes"

    def rows(self, job: Job) -> Any:
        """The files' bytes."""
        import ray.data

        return ray.data.read_binary_files(image_files(job.data.files) * REPEATS, shuffle="files")
