"""Processes that fork while they have a writer of dead letters, one for each thing that a child does then.

The argument are the servers. Each parent then writes on, and its child has ended well. Where a child does something
with its parent's client of librdkafka, that client says so on stderr. Parents are forked from one that has imported
what they need, in which there is neither a thread nor a client, and end as any process does.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import sys
from collections.abc import Callable
from typing import Any

import confluent_kafka

from dali_feed.bad_records import Letter
from dali_feed.errors import DeadLetterError
from dali_feed.external_sources import Producer
from dali_feed.external_sources.kafka import client


def letter(n: int) -> Letter:
    """A letter of position n."""
    return Letter(f"s[0]@{n}", "s", 0, n, n, "screen", "why", b"payload %d" % n)


def topic() -> Producer:
    """Where to."""
    return Producer(sys.argv[2], sys.argv[1])


def speaking(config: dict[str, Any]) -> confluent_kafka.Producer:
    """A client that writes all that is done with it to stderr, by itself: to the end of Python."""
    del config["logger"]
    return confluent_kafka.Producer({**config, "debug": "all"})


def forked(child: Callable[[Any], None]) -> None:
    """Fork with a writer that is connected, which modules hold, as long as they are there."""
    stderr, silent = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 2)
    vars(client)["Producer"] = speaking
    writer = globals()["left"] = topic().writer()
    writer.write([letter(0)])
    vars(client)["Producer"] = confluent_kafka.Producer
    if pid := os.fork():
        status = os.waitpid(pid, 0)[1]
        writer.write([letter(1)])
        writer.close()
        os.dup2(stderr, 2)
        assert status == 0
        assert {found.position for found in topic().read()} >= {0, 1}
    else:
        os.dup2(stderr, 2)
        child(writer)


def ends() -> None:
    """It comes to the end of the script."""
    forked(lambda _: None)


def exits() -> None:
    """It ends by sys.exit."""
    forked(lambda _: sys.exit(0))


def drops() -> None:
    """It drops all that it has of it."""

    def child(writer: Any) -> None:
        del globals()["left"], writer.__dict__["_sender"]

    forked(child)


def closes() -> None:
    """It closes it, as a `finally` that it is in does."""
    forked(lambda writer: writer.close())


def writes() -> None:
    """It writes: refused at once, and what it makes by itself writes."""

    def child(writer: Any) -> None:
        found = ""
        try:
            writer.write([letter(2)])
        except DeadLetterError as error:
            found = str(error)
        assert "forked" in found, found
        own = topic().writer()
        own.write([letter(3)])
        own.close()

    forked(child)


HOWS = {each.__name__: each for each in (ends, exits, drops, closes, writes)}  # the name is that of a topic too

if __name__ == "__main__":
    faulthandler.enable()
    gc.freeze()  # what was imported is no garbage, and need not be looked through as each of them ends
    for how, does in HOWS.items():
        if not (parent := os.fork()):
            sys.argv.append(how)
            does()
            break
        assert os.waitpid(parent, 0)[1] == 0, how
