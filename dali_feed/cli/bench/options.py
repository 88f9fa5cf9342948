"""Options that commands of `dali-feed bench` share, as typer wants them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dali_feed.cli.options import Names

__all__ = [
    "Batch",
    "Crop",
    "Csv",
    "Data",
    "Device",
    "Engine",
    "Images",
    "Json",
    "Peers",
    "Plots",
    "Quick",
    "Repeats",
    "Report",
    "Seconds",
    "Source",
    "Threads",
]

Source = Annotated[
    Names,
    typer.Argument(help="Images: a folder, tar shards ('train-*.tar'), a topic.", show_default="photos made here"),
]
Engine = Annotated[str | None, typer.Option(help="Our engine: host or dali.", show_default="the loader's own")]
Images = Annotated[int, typer.Option(min=1, help="Number of images to use, spread evenly over the source.")]
Data = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Folder for the data that is made.", show_default="the user's cache")
]
Batch = Annotated[int, typer.Option(min=1, help="Images in a batch.")]
Crop = Annotated[int, typer.Option(min=1, metavar="PIXELS", help="Height and width of the output images.")]
Threads = Annotated[
    int | None, typer.Option(min=1, help="Decoder threads, or workers.", show_default="the CPUs of this process")
]
Seconds = Annotated[float, typer.Option(min=0.05, help="Seconds of each measurement, without its warm-up.")]
Repeats = Annotated[int, typer.Option(min=1, help="Number of measurements of each contestant.")]
Device = Annotated[
    str | None, typer.Option(help="cpu or cuda:N.", show_default="the CUDA device, or the CPU where there is none")
]
Peers = Annotated[
    bool, typer.Option("--peers/--no-peers", help="Also measure other loaders, those that are installed.")
]
Quick = Annotated[bool, typer.Option("--quick", help="Under a minute: few images, short turns, rough figures.")]
Csv = Annotated[
    Path | None, typer.Option("--csv", metavar="FILE", dir_okay=False, help="Add a row for each contestant to FILE.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, and no table.")]
Report = Annotated[
    Path | None,
    typer.Option("--report", metavar="FILE.html", dir_okay=False, help="Write one HTML page that needs no other file."),
]
Plots = Annotated[
    Path | None, typer.Option("--plots", metavar="DIR", file_okay=False, help="Write charts as PNG files into DIR.")
]
