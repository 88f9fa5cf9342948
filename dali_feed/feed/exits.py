"""Feeds that are open when the interpreter ends are closed first; decoders that still work are waited for.

A daemon thread of the user's may be in the middle of an epoch then. It is told that the feed is closed, as any thread
is, and ends by that; the end of the process is no error of its, so that nothing is printed.
"""

from __future__ import annotations

import atexit
import logging
import threading
import weakref
from collections.abc import Callable
from typing import Protocol

from dali_feed.engines import workers as lingering
from dali_feed.errors import ClosedError, DeadLetterError

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


def _quiet(hook: Callable[[threading.ExceptHookArgs], object]) -> Callable[[threading.ExceptHookArgs], object]:
    """`hook`, but for daemon threads that came to their end by a feed that is closed."""

    def told(args: threading.ExceptHookArgs) -> None:
        if not (isinstance(args.exc_value, ClosedError) and args.thread is not None and args.thread.daemon):
            hook(args)

    return told


def _close_all() -> None:
    try:
        threading.excepthook = _quiet(threading.excepthook)
        for opened in list(_live):
            try:
                opened.close()
            except DeadLetterError:
                log.exception("dead letters were lost at exit")
        lingering.wait()
    except KeyboardInterrupt:
        lingering.abandon()
