"""`dali-feed bench report`: results that were kept as JSON are made into a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["report"]


def report(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="What `dali-feed bench ... --json` printed.")],
    out: Annotated[Path, typer.Option("--out", help="The page to write.")] = Path("report.html"),
) -> None:
    """Make a page of HTML from kept outcomes: from one, or from several of one kind, compared with the first."""
    from dali_feed.bench.kept import read
    from dali_feed.bench.report import compared, page
    from dali_feed.errors import ConfigError

    found = [(path.name, read(path)) for path in files]
    kinds = list(dict.fromkeys(each.kind for _, each in found))
    if len(kinds) > 1:
        msg = f"FILE: all must be of one kind of benchmark; found {' and '.join(kinds)}; make a page of each"
        raise ConfigError(msg)
    try:
        out.write_text(page(found[0][1]) if len(found) == 1 else compared(found), encoding="utf-8")
    except OSError as error:
        msg = f"--out: must be a file that can be written; found {str(out)!r}: {error.strerror}"
        raise ConfigError(msg) from error
    typer.echo(f"kept in {out}", err=True)
