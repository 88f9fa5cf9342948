"""What the watchdog says of a run that is stuck, until it has spoken."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from dali_feed import DataLoader, Tuning
from dali_feed.records.source import Source


class Lines(logging.Handler):
    """Runs a cure at the first line of the watchdog that speaks of something, and keeps such lines."""

    def __init__(self, cure: Callable[[], object], about: str = "") -> None:
        super().__init__()
        self.lines: list[str] = []
        self._cure, self._about = cure, about

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it, and cure."""
        line = record.getMessage()  # on a busy machine another stage may take its time before
        if line.startswith("no batch for") and self._about in line:
            self.lines.append(line)
            self._cure()


def said_of(source: Source, go_on: threading.Event, *, samples: int = 32, about: str = "", **options: Any) -> list[str]:
    """What the watchdog says of a run that goes on when it has spoken, and then delivers everything."""
    lines = Lines(go_on.set, about)
    logging.getLogger("dali_feed").addHandler(lines)
    tuning = Tuning(threads=2, readers=1, watchdog=0.2)
    try:
        with DataLoader(source, 4, device="cpu", tuning=tuning, **options) as loader:
            assert sum(len(labels) for _, labels in loader) == samples
    finally:
        logging.getLogger("dali_feed").removeHandler(lines)
    return lines.lines
