"""`dali-feed show`: one batch as a model gets it, on a sheet. What it needs is imported when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dali_feed.cli.arguments import Config, Timeout

__all__ = ["show"]


def show(  # noqa: PLR0913, PLR0917  an option each
    source: Annotated[
        list[str],
        typer.Argument(help="Tar shards ('train-*.tar', 's3://...'), image folders, or kafka://host:port/topic."),
    ],
    transform: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py:NAME",
            help="torchvision transforms, by the name that the file gives them. The file is run.",
        ),
    ] = None,
    batch: Annotated[int, typer.Option(min=0, metavar="N", help="Number of the batch in the epoch.")] = 0,
    batch_size: Annotated[int, typer.Option(min=1, max=1024, metavar="N", help="Samples in a batch.")] = 24,
    epoch: Annotated[int, typer.Option(min=0, metavar="N", help="Number of the epoch.")] = 0,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Seed of order and augmentation.")] = 0,
    shuffle: Annotated[bool, typer.Option(help="Take the shuffled order of a run, or the source's own.")] = True,
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="The file to write: .png, or .html with images in their full size.")
    ] = Path("sheet.png"),
    config: Config = None,
    timeout: Timeout = 10.0,
) -> None:
    """Draw one batch as a model gets it, by the CPU's engine: each image with its place, its label and its random
    numbers.

    Normalizing is undone. A slot whose record is bad or absent is marked, with that record and the reason. A training
    run on one rank with one lane, with the same seed and epoch, gets the same batch. Nothing before the batch is read.
    """
    from dali_feed.cli.batch_sheet import Shown, cells_of_batch
    from dali_feed.cli.sheet import drawn, place_for, put_whole
    from dali_feed.cli.sheet_page import page
    from dali_feed.cli.targets import one_source
    from dali_feed.cli.text import plural
    from dali_feed.cli.user_file import object_of

    place_for("--out", out, ".png", ".html")
    made = None if transform is None else object_of("--transform", transform)
    found = one_source(source, config=config or [], timeout=timeout)
    cells = cells_of_batch(found, made, Shown(batch, batch_size, epoch, seed, shuffle))
    title = f"batch {batch} of epoch {epoch}, seed {seed}: {', '.join(source)}"
    put_whole("--out", out, page(title, cells) if out.suffix.lower() == ".html" else drawn(cells))
    replaced = sum(bool(cell.mark) for cell in cells)
    more = f", {replaced} of them in place of another" if replaced else ""
    print(f"{out}: {len(cells)} record{plural(len(cells))}{more}")
