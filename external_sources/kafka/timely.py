"""A call into librdkafka that may never come back, ended after a time."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["StuckError", "timely"]


class StuckError(Exception):
    """The call has not come back; its thread is left with it."""


def timely(what: Callable[[], object], seconds: float) -> None:
    """Do it in a thread of its own. Raises what it raises, or StuckError where it does not end in so many seconds."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            what()
        except BaseException as error:  # noqa: BLE001  the caller's
            raised.append(error)

    doing = threading.Thread(target=run, name="dali_feed-kafka-call", daemon=True)
    doing.start()
    doing.join(seconds)
    if doing.is_alive():
        raise StuckError
    if raised:
        raise raised[0]
