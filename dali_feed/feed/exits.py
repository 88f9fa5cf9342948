"""Feeds that are open when the interpreter ends are closed first; decoders that still work are waited for."""

from __future__ import annotations

import atexit
import logging
import weakref
from typing import Protocol

from dali_feed.engines import lingering
from dali_feed.errors import DeadLetterError

__all__ = ["Closes", "close_at_exit"]

log = logging.getLogger("dali_feed")


class Closes(Protocol):
    """Something that is open until it is closed; twice does no harm."""

    def close(self) -> None:
        """Release all it holds."""
        ...


_live: weakref.WeakSet[Closes] = weakref.WeakSet()


def close_at_exit(opened: Closes) -> None:
    """Close it before DALI destroys its pipelines; called when its engine has been made."""
    _live.add(opened)
    atexit.unregister(_close_all)
    atexit.register(_close_all)  # registered again: what comes last runs first, and DALI's own hook is there by now


def _close_all() -> None:
    try:
        for opened in list(_live):
            try:
                opened.close()
            except DeadLetterError:
                log.exception("dead letters were lost at exit")
        lingering.wait()
    except KeyboardInterrupt:
        lingering.abandon()
