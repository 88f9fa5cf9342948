"""A place whose rights are taken away for a while: a real fault, for root too."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NOBODY = 65534


@contextmanager
def denied(path: Path, mode: int = 0) -> Iterator[None]:
    """Nobody may do more with `path` than `mode` says. What is called inside has been imported before."""
    before, root = path.stat().st_mode, os.geteuid() == 0
    path.chmod(mode)
    if root:
        os.seteuid(_NOBODY)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
        path.chmod(before)
