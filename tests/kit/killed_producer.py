"""A run that kills itself at a record: `killed_producer.py SHARD SERVERS TOPIC JOURNAL RECORD True|False [CLAIMS]`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from dali_feed.external_sources import Claim, Produced, Producer, ShardSet
from dali_feed.external_sources.kafka import sender
from dali_feed.external_sources.kafka.sender import Sender

CLAIMED_ABOVE = 110


def produced(
    shard: Path, servers: str, topic: str, journal: Path, transactional: bool, claims: Path | None = None
) -> Produced:
    """The run; it keeps where it is after each few records."""
    source = ShardSet(shard, image=("bin",), index_dir=shard.parent)
    claim = None if claims is None else Claim(claims, CLAIMED_ABOVE)
    transactional_id = "auto" if transactional else None
    producer = Producer(topic, servers, claim=claim, transactional_id=transactional_id, config={"linger.ms": 0})
    return producer.run(source, journal=journal, every=0.02)


def killed_at(
    record: int, shard: Path, servers: str, topic: str, journal: Path, transactional: bool, claims: Path | None = None
) -> int:
    """Run it in a process of its own; how that ended."""
    command = [sys.executable, "-P", __file__, str(shard), servers, topic, str(journal), str(record)]
    more = [str(transactional), *([] if claims is None else [str(claims)])]
    done = subprocess.run([*command, *more], capture_output=True, check=False)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr.decode()
    return done.returncode


def _dies(record: int) -> None:
    send: Any = Sender.send

    def sent(self: Sender, written: Any, partition: int, number: int) -> None:
        send(self, written, partition, number)
        if number == record:
            os.kill(os.getpid(), signal.SIGKILL)

    vars(sender)["Sender"].send = sent


if __name__ == "__main__":
    _dies(int(sys.argv[5]))
    shard, servers, topic, journal, _, transactional, *claims = sys.argv[1:]
    folder = Path(claims[0]) if claims else None
    produced(Path(shard), servers, topic, Path(journal), transactional == "True", folder)
