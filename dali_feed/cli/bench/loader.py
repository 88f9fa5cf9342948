"""`dali-feed bench loader`: our loader beside its ceiling and beside other loaders, over one's own images."""

from __future__ import annotations

from dali_feed.cli.bench.options import (
    Batch,
    Crop,
    Csv,
    Data,
    Device,
    Engine,
    Images,
    Json,
    Peers,
    Plots,
    Quick,
    Repeats,
    Report,
    Seconds,
    Source,
    Threads,
)
from dali_feed.cli.options import Config, Timeout

__all__ = ["loader"]


def loader(  # noqa: PLR0913, PLR0917  an option each
    source: Source = None,
    batch: Batch = 256,
    threads: Threads = None,
    seconds: Seconds = 4.0,
    repeats: Repeats = 3,
    device: Device = None,
    engine: Engine = None,
    images: Images = 3000,
    crop: Crop = 224,
    peers: Peers = True,
    quick: Quick = False,
    csv: Csv = None,
    json: Json = False,
    report: Report = None,
    plots: Plots = None,
    data: Data = None,
    config: Config = None,
    timeout: Timeout = 10.0,
) -> None:
    """Measure images per second of our loader, of its ceiling and of other loaders over the same images, in turns.

    Each of them crops at random to --crop, flips, and normalizes to float32. The images are read into the page cache
    first; Ctrl-C ends with a table of what was measured. docs/benchmarking.md says how to
    read it.
    """
    options = locals()
    from dali_feed.cli.bench.asked import Asked
    from dali_feed.cli.bench.loader_run import run

    run(Asked.of(options))
