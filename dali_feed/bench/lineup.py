"""Who takes part in a bench of loaders, and what it says of itself."""

from __future__ import annotations

from typing import Any

from dali_feed.bench.ceiling import Ceiling
from dali_feed.bench.contract import Contestant, Job
from dali_feed.bench.facts import facts
from dali_feed.bench.loop import Loop, LoopRead
from dali_feed.bench.ours import Ours

__all__ = ["about", "lineup"]


def lineup(engine: str, *, peers: bool) -> list[Contestant]:
    """Ours, what stands above it, and the others, in the order of their turns. `engine`: "host" or "dali"."""
    chosen: list[Contestant] = [Ours("tar", engine), Ours("folder", engine), Ceiling(engine)]
    if engine == "host":
        chosen += [Loop(), LoopRead()]
    if peers:
        from dali_feed.bench.peers.table import image_peers
        from dali_feed.bench.peers.torch_loader import Torch

        chosen.append(Torch())
        chosen += image_peers()
    return chosen


def about(job: Job, engine: str, *, seconds: float, repeats: int) -> dict[str, Any]:
    """Where and with what: what all rows of a run have alike."""
    import torch

    data = job.data
    size = f"{data.width}x{data.height}" if data.width else "several"
    name = job.device if job.device == "cpu" else torch.cuda.get_device_name(job.device)
    told = {"data": data.name, "image": size, "crop": job.crop, "mean bytes": data.mean_bytes, "images": data.count}
    how = {"device": name, "threads": job.threads, "seconds": seconds, "repeats": repeats}
    return {**facts(), **told, **how, "engine": engine, "batch": job.batch}
