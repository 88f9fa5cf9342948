"""How long a reader has waited, and what came up meanwhile."""

from __future__ import annotations

import time

__all__ = ["Wait"]


class Wait:
    """How long nothing came, within one run."""

    def __init__(self, timeout: float) -> None:
        self._half = timeout / 2
        self._since = time.monotonic()
        self._renewed = False
        self.end_seen: int | None = None
        self.refused = -1  # the last offset that the broker said it does not have

    @property
    def seconds(self) -> float:
        """Since the last record, or the begin."""
        return time.monotonic() - self._since

    def progress(self) -> None:
        """A record came."""
        self._since = time.monotonic()
        self._renewed = False
        self.end_seen = None

    def due(self) -> bool:
        """True once, when half of the timeout has passed."""
        if self._renewed or self.seconds < self._half:
            return False
        self._renewed = True
        return True
