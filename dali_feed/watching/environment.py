"""DALI_FEED_METRICS=host:port: an endpoint for every loader of a process, without a line of code.

A run is not ended by a port that somebody else has: one line in the log says so. A value that is no address is an
error, as any option.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import threading
from typing import TYPE_CHECKING

from dali_feed.errors import ConfigError, MissingPackageError

if TYPE_CHECKING:  # every loader imports this file, and few are watched
    from dali_feed.watching.endpoint import Endpoint
    from dali_feed.watching.watched import Gives

__all__ = ["VARIABLE", "told_by_environment"]

VARIABLE = "DALI_FEED_METRICS"
FORM = re.compile(r"(?:(?P<address>\[[0-9a-fA-F:.]+\]|[^\s:/\[\]]*):)?(?P<port>\d{1,5})")

log = logging.getLogger("dali_feed")


class _Shared:
    """The endpoint of this process: started by its first loader; the others are added."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.endpoint: Endpoint | None = None
        self.of: tuple[int, str] | None = None  # process and value that it was begun, or tried, for
        self.count = 0


_shared = _Shared()


def told_by_environment(loader: Gives) -> None:
    """Let the process's endpoint report `loader` too, where the environment asks for one; it does nothing else.

    Raises ConfigError where the value is not `host:port`.
    """
    value = os.environ.get(VARIABLE, "")
    if not value:
        return
    from dali_feed.watching.watched import Watched

    address, port = _address(value)
    watched = Watched(loader)
    with _shared.lock:
        if _shared.of != (os.getpid(), value):
            if _shared.endpoint is not None:
                _shared.endpoint.close()
            _shared.of, _shared.count = (os.getpid(), value), 0
            _shared.endpoint = _begun(address, port + watched.rank if port else 0)
        if _shared.endpoint is not None:
            watched.name = str(_shared.count)
            _shared.count += 1
            _shared.endpoint.add(watched)


def _address(value: str) -> tuple[str, int]:
    found = FORM.fullmatch(value)
    if found is None or int(found["port"]) >= 1 << 16:
        msg = f"{VARIABLE}: must be host:port, such as 127.0.0.1:9400; found {value!r}"
        raise ConfigError(msg)
    return (found["address"] or "127.0.0.1").strip("[]"), int(found["port"])


def _begun(address: str, port: int) -> Endpoint | None:
    from dali_feed.watching.endpoint import Endpoint

    try:
        endpoint = Endpoint(address, port)
    except (ConfigError, MissingPackageError) as error:
        said = str(error)
        log.warning("%s: %s. The run goes on without metrics", VARIABLE, said)
        return None
    atexit.register(endpoint.close)
    log.info("%s: metrics at %s/metrics", VARIABLE, endpoint.url)
    return endpoint
