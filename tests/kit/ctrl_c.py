"""Children that hear Ctrl-C, also where whoever started the tests ignores it: a child of one that does would, too."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def children_hear_ctrl_c() -> Iterator[None]:
    """Processes that are started in here do. In the main thread."""
    heard = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, heard)
