"""How looks at something that goes on are shown: live on a terminal, one after another elsewhere, or as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec

from rich.console import Console, RenderableType
from rich.live import Live

__all__ = ["looking"]

WIDTH = 160
_P = ParamSpec("_P")


@contextmanager
def looking(
    screen: Callable[_P, RenderableType], told: Callable[_P, dict[str, Any]], *, as_json: bool, live: bool
) -> Iterator[Callable[_P, None]]:
    """What shows a look: as `screen` draws it, or a line with the JSON of what `told` makes of it."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=WIDTH)  # nobody has to see all of a line at once
    if as_json:
        yield lambda *look, **more: print(json.dumps(told(*look, **more)), flush=True)
    elif live and console.is_terminal:
        with Live(console=console, auto_refresh=False) as table:
            yield lambda *look, **more: table.update(screen(*look, **more), refresh=True)
    else:
        yield lambda *look, **more: console.print(screen(*look, **more), soft_wrap=True)
