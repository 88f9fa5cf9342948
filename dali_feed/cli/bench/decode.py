"""`dali-feed bench decode`: decoders over numbers of threads, whole images and windows."""

from __future__ import annotations

from typing import Annotated

import typer

from dali_feed.cli.bench.options import Batch, Csv, Data, Device, Images, Json, Plots, Quick, Repeats, Report, Seconds
from dali_feed.cli.options import Names

__all__ = ["decode"]


def decode(  # noqa: PLR0913, PLR0917  an option each
    source: Annotated[
        Names, typer.Argument(help="Images: a folder, tar shards ('train-*.tar').", show_default="photos made here")
    ] = None,
    batch: Batch = 32,
    threads: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            help="Number of decoder threads; can be given several times.",
            show_default="1, half the CPUs, the CPUs",
        ),
    ] = None,
    seconds: Seconds = 2.0,
    repeats: Repeats = 3,
    device: Device = None,
    images: Images = 1000,
    quick: Quick = False,
    csv: Csv = None,
    json: Json = False,
    report: Report = None,
    plots: Plots = None,
    data: Data = None,
) -> None:
    """Measure images per second of decoding alone, from memory: our decoders, Pillow, torchvision, by threads.

    It decodes `whole` images, and the `windows` of a random crop, as our loader does on the CPU. Ctrl-C ends with a
    table of what was measured.
    """
    from dali_feed.bench.contract import Job, Outcome
    from dali_feed.bench.decoding import SHOWN, Images, measure
    from dali_feed.bench.held import payloads_of
    from dali_feed.bench.lineup import about
    from dali_feed.cli.bench.data import data_for, scratch_in
    from dali_feed.cli.bench.ending import Ending, ending
    from dali_feed.cli.bench.progress import listening
    from dali_feed.loader.arguments import torch_device
    from dali_feed.options import Tuning

    if quick:
        images, seconds, repeats = min(images, 64), min(seconds, 0.2), 1
    where, cpus, outcome = torch_device(device), Tuning().cpu_threads, Outcome("decode", {})
    counts = sorted(set(threads or {1, max(1, cpus // 2), cpus}))
    with ending(outcome, Ending(SHOWN, csv=csv, report=report, plots=plots, json=json)), scratch_in(data) as scratch:
        found = data_for(tuple(source or ()), images, scratch, data)
        job = Job(found, batch, str(where), cpus, scratch)
        told = about(job, "", seconds=seconds, repeats=repeats)
        outcome.about |= {name: value for name, value in told.items() if name not in {"engine", "threads"}}
        with listening() as listener:
            measure(
                Images(payloads_of(found), job.crop),
                outcome,
                batch=batch,
                threads=counts,
                device=where,
                repeats=repeats,
                seconds=seconds,
                listener=listener,
            )
