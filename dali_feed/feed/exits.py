"""Feeds that are open when the interpreter ends are closed first, and decoders that are still at work waited for."""

from __future__ import annotations

import atexit
import logging
import weakref
from typing import TYPE_CHECKING

from dali_feed.engines import lingering
from dali_feed.errors import DeadLetterError

if TYPE_CHECKING:
    from dali_feed.feed.feed import Feed

__all__ = ["close_at_exit"]

log = logging.getLogger("dali_feed")
_live: weakref.WeakSet[Feed] = weakref.WeakSet()


def close_at_exit(feed: Feed) -> None:
    """Close it before DALI takes its pipelines away from under it; called when its engine is there."""
    _live.add(feed)
    atexit.unregister(_close_all)
    atexit.register(_close_all)  # anew: what comes last runs first, and DALI's own hook is there by now


def _close_all() -> None:
    try:
        for feed in list(_live):
            try:
                feed.close()
            except DeadLetterError:
                log.exception("dead letters were lost at exit")
        lingering.wait()
    except KeyboardInterrupt:
        lingering.abandon()
