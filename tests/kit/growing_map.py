"""A run whose map= makes records 75 times as large, in little memory: `growing_map.py SHARD SERVERS TOPIC BYTES`."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

from dali_feed.external_sources import Producer, ShardSet

GROWS = 75


def grown(payload: bytes) -> bytes:
    """What no record of the source lets expect."""
    return payload * GROWS


if __name__ == "__main__":
    shard, servers, topic, room = sys.argv[1:]
    source = ShardSet(shard, image=("bin",), index_dir=Path(shard).parent)
    source.snapshot()
    data = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmData"))
    most = int(data.split()[1]) * 1024 + int(room)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    done = Producer(topic, servers, compression="lz4", queue_bytes=8 << 20).run(source, map=grown)
    sys.stdout.write(f"{done.tally.records} {done.tally.size}")
