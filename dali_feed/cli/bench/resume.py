"""`dali-feed bench resume`: how long a restored loader takes to its first batch."""

from __future__ import annotations

from dali_feed.cli.bench.options import (
    Batch,
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
    Source,
    Threads,
)
from dali_feed.cli.options import Config, Timeout

__all__ = ["resume"]


def resume(  # noqa: PLR0913, PLR0917  an option each
    source: Source = None,
    batch: Batch = 64,
    threads: Threads = None,
    repeats: Repeats = 3,
    device: Device = None,
    engine: Engine = None,
    images: Images = 3000,
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
    """Measure seconds to the first batch of a restored run, at the start, in the middle and near the end of an epoch.

    It compares torch's DataLoader, resumed by hand: batches that were seen before are made and thrown away. Ctrl-C ends
    with a table of what was measured.
    """
    options = locals()
    from dali_feed.cli.bench.asked import Asked
    from dali_feed.cli.bench.resume_run import run

    run(Asked.of(options))
