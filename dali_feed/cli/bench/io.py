"""`dali-feed bench io`: what storage gives."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dali_feed.storage.measure import Measured

__all__ = ["advice", "io"]


def io(
    path: Annotated[
        Path, typer.Argument(help="A large file on the storage to measure, such as a shard. It is only read.")
    ],
    size: Annotated[str, typer.Option(metavar="SIZE", help="Most bytes to read in each measurement.")] = "256MiB",
    depth: Annotated[
        int | None, typer.Option(min=1, max=256, help="Number of threads.", show_default="1, 4 and 16")
    ] = None,
    block: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Bytes of one read.", show_default="4 KiB to 8 MiB")
    ] = None,
    direct: Annotated[bool, typer.Option("--direct", help="Only reads that bypass the page cache.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer measurements, a fifth of a second each.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print a line of JSON for each measurement.")] = False,
) -> None:
    """Read a file in order and at random places, cold and from the page cache, and say which settings to use.

    Cold reads ask the kernel to drop the file's pages first, which it does for clean ones. Ctrl-C keeps what was
    measured.
    """
    import dataclasses
    import json as text

    from dali_feed.checks import bytes_of
    from dali_feed.storage.measure import BLOCKS, THREADS, measures

    found: list[Measured] = []
    blocks = BLOCKS if block is None else (bytes_of("--block", block),)
    threads = THREADS if depth is None else (depth,)
    every = measures(
        str(path),
        blocks=blocks[1:3] if quick and block is None else blocks,
        threads=threads,
        modes=("direct",) if direct else ("cold", "warm") if quick else ("cold", "warm", "direct"),
        most_bytes=bytes_of("--size", size),
        seconds=0.2 if quick else 1.0,
    )
    try:
        for each in every:
            found.append(each)
            if json:
                typer.echo(text.dumps(dataclasses.asdict(each) | {"mb_per_second": round(each.rate / 1e6, 1)}))
    except KeyboardInterrupt:
        typer.echo("interrupted: what follows was measured before", err=True)
    if not json:
        _show(found)


def advice(found: Sequence[Measured]) -> str:
    """Which settings the measurements speak for: readers within a tenth of the best, and whether to stripe."""
    slow = [each for each in found if each.mode != "warm"] or list(found)
    if not slow:
        return "nothing was measured"
    best = max(slow, key=lambda each: each.rate)
    near = [
        each for each in slow if each.block == best.block and each.pattern == best.pattern and each.mode == best.mode
    ]
    readers = min(each.threads for each in near if each.rate >= 0.9 * best.rate)
    return (
        f"Tuning(readers={readers}): {best.rate / 1e6:,.0f} MB/s at best ({best.pattern}, {best.mode}); where a run "
        "needs more, lay the shards over several such storages: dali-feed pack --targets"
    )


def _show(found: Sequence[Measured]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("pattern", "mode", "block", "threads", "MB/s", "reads/s", "p50 ms", "p99 ms")
    for each in found:
        numbers = (f"{each.rate / 1e6:,.0f}", f"{each.reads / each.seconds:,.0f}")
        times = (f"{1e3 * each.p50:.3f}", f"{1e3 * each.p99:.3f}")
        table.add_row(each.pattern, each.mode, f"{each.block:,}", str(each.threads), *numbers, *times)
    console = Console()
    console.print(table)
    console.print(advice(found), highlight=False, soft_wrap=True)
