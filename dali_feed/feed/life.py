"""Whether a feed may still be used: until it is closed, and in the process that made it."""

from __future__ import annotations

import os

from dali_feed.errors import ClosedError, ConfigError

__all__ = ["Life"]


class Life:
    """Begins in this process; its owner sets it when it is closed."""

    def __init__(self) -> None:
        self.closed = False
        self._asked = os.getpid  # held here: a child of a fork drops its passes when modules have been taken apart
        self._pid = self._asked()

    @property
    def here(self) -> bool:
        """Whether this is the process that it began in, the only one with its threads."""
        return self._asked() == self._pid

    def check(self) -> None:
        """Raise ClosedError after close(), ConfigError in another process."""
        if self.closed:
            msg = "loader: used after close(); make a new one"
            raise ClosedError(msg)
        if not self.here:
            msg = (
                "loader: made in another process; threads and connections do not survive fork. Make it in this process"
            )
            raise ConfigError(msg)
