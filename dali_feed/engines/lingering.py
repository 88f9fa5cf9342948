"""Threads that should end but are inside a decoder, or a read: the interpreter does not end before they do.

Native code cannot be stopped from outside, and a thread that is still in it when a library shuts down crashes
the process. So the end of the interpreter waits, as it does for any thread that is no daemon. Ctrl-C
meanwhile ends the process at once, without shutting anything down.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import weakref

__all__ = ["abandon", "linger", "wait"]

TELL = 5.0  # seconds after which a message says what the end waits for

log = logging.getLogger("dali_feed")
_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def linger(thread: threading.Thread) -> None:
    """Let the end of the interpreter wait for a thread that ends by itself, as soon as its native call returns."""
    _threads.add(thread)
    atexit.unregister(_at_exit)
    atexit.register(_at_exit)  # registered again: what comes last runs first, before the libraries' own hooks


def wait() -> None:
    """Wait for all of them."""
    for thread in list(_threads):
        while thread.is_alive():
            thread.join(TELL)
            if thread.is_alive():
                log.warning(
                    "the process waits for a decoder or a read to finish (%s); Ctrl-C ends it at once", thread.name
                )


def abandon() -> None:
    """End the process now, after writing out what it has printed."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(130)


def _at_exit() -> None:
    try:
        wait()
    except KeyboardInterrupt:
        abandon()
