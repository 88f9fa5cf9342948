"""The process that chaos_stream.py kills: it follows a topic, logs each batch, saves its state after it, goes on.

    python bench/_chaos_follow.py SERVERS TOPIC FOLDER WAY UNTIL

FOLDER/log has a line per batch, of [partition, offset, digest] of each record. FOLDER/state says how many bytes of it
and how many records it stands behind: what follows was written by a process that died before it saved, and is cut off.
It ends half a second after record UNTIL, so that what came twice is logged too; -1: never.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dali_feed.external_sources import KafkaStream
from dali_feed.records import unpack_id

WAYS = ("reader", "loader")
BATCH = 16
MORE_SECONDS = 0.5
Line = list[list[Any]]


@contextmanager
def followed(stream: KafkaStream, way: str, state: dict[str, Any] | None) -> Iterator[Iterator[tuple[Line, Any]]]:
    """The stream's batches, each with the state behind it; empty ones where nothing comes."""
    if way == "reader":
        reader, position = stream.live(state), dict[int, int]()

        def polled() -> Iterator[tuple[Line, Any]]:
            while True:
                found = reader.poll(BATCH, 1 << 20, 0.05)
                position.update(found.position)
                block = found.block
                line = [_told(*each) for each in zip(block.ids.tolist(), block.payloads, strict=True)]
                block.lease.release()
                yield line, stream.mark(position)

        try:
            yield polled()
        finally:
            reader.close()
        return
    from dali_feed import DataLoader  # torch takes seconds, which the other way needs not
    from dali_feed.columns import Bytes

    with DataLoader(stream, BATCH, columns={"value": Bytes("value")}, info=True, device="cpu") as loader:
        if state is not None:
            loader.load_state_dict(state)

        def taken() -> Iterator[tuple[Line, Any]]:
            for batch, info in loader:
                ids = info.ids.tolist()
                yield [_told(*each) for each in zip(ids, batch["value"], strict=True)], loader.state_dict()

        yield taken()


def _told(record: int, value: Any) -> list[Any]:
    return [*unpack_id(record), hashlib.sha256(value).hexdigest()[:16]]


def main(servers: str, topic: str, folder: Path, way: str, until: int) -> None:
    """Follow: a line per batch on the log, then on the state, then how many records there are on standard output."""
    stream = KafkaStream(topic, servers, start="earliest", batch_timeout=0.02, idle_timeout=0.1, label=None)
    kept = records = 0
    saved, state = folder / "state", None
    if saved.exists():
        known = json.loads(saved.read_text())
        kept, records, state = known["bytes"], known["records"], known["state"]
    ends = 0.0
    with (folder / "log").open("ab") as log, followed(stream, way, state) as batches:
        log.truncate(kept)
        for line, behind in batches:
            if 0 <= until <= records:
                ends = ends or time.monotonic() + MORE_SECONDS
                if time.monotonic() > ends:
                    return
            kept, records = kept + log.write((json.dumps(line) + "\n").encode()), records + len(line)
            log.flush()
            new = saved.with_suffix(".new")
            new.write_text(json.dumps({"bytes": kept, "records": records, "state": behind}))
            new.replace(saved)
            if line:
                print(records, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4], int(sys.argv[5]))
