"""`dali-feed bench kafka`: what of a topic's records reaches a training loop."""

from __future__ import annotations

from typing import Annotated

import typer

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
    Seconds,
    Threads,
)
from dali_feed.cli.options import Config, Timeout

__all__ = ["kafka"]


def kafka(  # noqa: PLR0913, PLR0917  an option each
    target: Annotated[
        str | None,
        typer.Argument(
            help="kafka://host:port/topic, which is only read; or kafka://host:port: a topic of photos is made there "
            "and deleted.",
            show_default="photos on a mock broker in this process",
        ),
    ] = None,
    batch: Batch = 64,
    threads: Threads = None,
    seconds: Seconds = 4.0,
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
    """Measure records per second of a topic, as tensors and read alone, beside librdkafka's plain consumer, in turns.

    Tensors are images decoded, cropped at random to 224x224, flipped and normalized to float32; other loaders make
    them of the same topic, if each value is an image. The mock broker runs on the CPUs of this process; name a broker
    to measure a real one. Ctrl-C ends with a table of what was measured.
    """
    options = locals() | {"source": [target] if target else []}
    from dali_feed.cli.bench.asked import Asked
    from dali_feed.cli.bench.kafka_run import run

    run(Asked.of(options))
