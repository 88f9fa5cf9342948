"""A run that kills itself at a record: `killed_producer.py SHARD SERVERS TOPIC JOURNAL RECORD [transactional]`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from dali_feed.external_sources import Producer, ShardSet
from dali_feed.external_sources.kafka.lanes import SharedLanes, TransactionLanes

__all__ = ["killed_at", "producer"]


def producer(shard: Path, servers: str, topic: str, journal: Path, transactional: bool) -> Producer:
    """The run; it keeps where it is after each few records."""
    source = ShardSet(shard, image=("bin",), index_dir=shard.parent)
    return Producer(source, topic, servers, journal=journal, transactional=transactional, every=0.02, linger=0)


def killed_at(record: int, shard: Path, servers: str, topic: str, journal: Path, transactional: bool) -> int:
    """Run it in a process of its own; how that ended."""
    command = [sys.executable, "-P", __file__, str(shard), servers, topic, str(journal), str(record)]
    done = subprocess.run([*command, *(["transactional"] if transactional else [])], capture_output=True, check=False)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr.decode()
    return done.returncode


def _dies(lanes: Any, record: int) -> None:
    take = lanes.take

    def taken(self: Any, number: int, *others: Any) -> None:
        take(self, number, *others)
        if number == record:
            os.kill(os.getpid(), signal.SIGKILL)

    lanes.take = taken


if __name__ == "__main__":
    _dies(SharedLanes, int(sys.argv[5]))
    _dies(TransactionLanes, int(sys.argv[5]))
    producer(Path(sys.argv[1]), sys.argv[2], sys.argv[3], Path(sys.argv[4]), len(sys.argv) > 6).run()
