"""Kill processes that follow a topic, at random, let others go on from their states, and compare with the topic.

    python bench/chaos_stream.py [--kills 20] [--rate 2000] [--seed 0]

A producer writes to three partitions all the time, some of its records in transactions that it aborts. A process
follows the topic with a state after each batch; at a random moment, mostly while batches come, it is killed, and
another goes on from the state; after so many kills the producer ends, and a last process takes what is left. `reader`
is the source alone, `loader` a DataLoader. `lost` counts records of the topic that no batch had, `repeated` those that
more than one had, `wrong` those whose value was another's, `disordered` partitions whose records came in another
order. Rows go to results/chaos_stream.csv; it ends with 1 where any of them is not 0.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from contextlib import ExitStack
from pathlib import Path

from _chaos_follow import WAYS
from _kafka import broker_module, committed, kafka_missing
from _results import RESULTS
from confluent_kafka import Producer

from dali_feed.bench.facts import facts
from dali_feed.bench.rows import append, table
from dali_feed.external_sources.kafka.errors import QUIET

PARTITIONS = 3
AFTER = 0.5  # seconds that a process has at most once batches come; one in four is killed on its way there
BEFORE = 3.0
Placed = dict[tuple[int, int], str]  # (partition, offset) -> digest of the value


def produce(servers: str, topic: str, rate: float, stop: threading.Event) -> None:
    """Write until told to stop: one turn in eight is a transaction, and every second of those is aborted."""
    rng = random.Random(0)
    plain = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 2, "logger": QUIET})
    inside = Producer({"bootstrap.servers": servers, "transactional.id": topic, "logger": QUIET})
    inside.init_transactions(60)
    begun, sent, turn = time.monotonic(), 0, 0
    while not stop.is_set():
        turn += 1
        within = turn % 8 == 0
        if within:
            inside.begin_transaction()
        for _ in range(rng.randint(1, 40)):
            value = b"%08d " % sent + rng.randbytes(rng.randint(0, 3000))
            (inside if within else plain).produce(topic, value, partition=sent % PARTITIONS)
            sent += 1
        if within:
            inside.flush(60)
            (inside.abort_transaction if turn % 16 else inside.commit_transaction)(60)
        plain.poll(0)
        stop.wait(max(0.0, begun + sent / rate - time.monotonic()))
    assert plain.flush(60) == 0


def killed(args: tuple[str, ...], rng: random.Random) -> None:
    """Start a process and kill it after a while."""
    command = [sys.executable, str(Path(__file__).with_name("_chaos_follow.py")), *args, "-1"]
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said)
        seconds = rng.random() * BEFORE
        assert process.stdout is not None
        if rng.random() < 0.75:
            process.stdout.readline()
            seconds = rng.random() * AFTER
        ends = threading.Timer(seconds, process.kill)
        ends.start()
        process.communicate()
        ends.cancel()
        if process.returncode >= 0:
            said.seek(0)
            msg = f"it ended by itself: {said.read().decode()[-2000:]}"
            raise RuntimeError(msg)


def logged(folder: Path) -> list[tuple[int, int, str]]:
    """Partition, offset and digest of each record that counts, in the order in which they came."""
    lines = (folder / "log").read_text().splitlines()
    return [(partition, offset, digest) for line in lines for partition, offset, digest in json.loads(line)]


def compared(log: list[tuple[int, int, str]], placed: Placed) -> dict[str, int]:
    """What is wrong with a log of the records of a topic."""
    places = [(partition, offset) for partition, offset, _ in log]
    ordered = [[offset for p, offset in places if p == partition] for partition in range(PARTITIONS)]
    return {
        "lost": len(placed.keys() - set(places)),
        "repeated": len(places) - len(set(places)),
        "wrong": sum(placed.get((partition, offset)) != digest for partition, offset, digest in log),
        "disordered": sum(offsets != sorted(offsets) for offsets in ordered),
    }


def main() -> None:
    """Run the ways, print the table, and add its rows to results/chaos_stream.csv."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="of each way (default %(default)s)")
    parser.add_argument("--rate", type=float, default=2000, help="records a second (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (default %(default)s)")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    if (missing := kafka_missing()) is not None:
        print(f"chaos: NOT RUN: {missing}")
        return
    rng = random.Random(args.seed)
    rows: list[dict[str, object]] = []
    with ExitStack() as stack:
        real, given = broker_module(), os.environ.get("KAFKA_BOOTSTRAP")
        broker = real.Cluster(given) if given else stack.enter_context(real.RealBroker())
        work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for way in args.ways:
            topic, begun = f"chaos-{uuid.uuid4().hex[:8]}", time.monotonic()
            broker.create(topic, PARTITIONS)
            folder = work / topic
            folder.mkdir()
            told = (broker.servers, topic, str(folder), way)
            stop = threading.Event()
            writing = threading.Thread(target=produce, args=(broker.servers, topic, args.rate, stop))
            writing.start()
            try:
                for _ in range(args.kills):
                    killed(told, rng)
            finally:
                stop.set()
                writing.join()
            held = {(p, o): v for p, part in enumerate(committed(broker.servers, topic, PARTITIONS)) for o, v in part}
            placed = {place: hashlib.sha256(value).hexdigest()[:16] for place, value in held.items()}
            last = [sys.executable, str(Path(__file__).with_name("_chaos_follow.py")), *told, str(len(placed))]
            subprocess.run(last, check=True, stdout=subprocess.DEVNULL)
            found = compared(logged(folder), placed)
            seconds = round(time.monotonic() - begun)
            rows.append({"way": way, "kills": args.kills, "records": len(placed)} | found | {"seconds": seconds})
            print(table(rows[-1:], list(rows[-1])), flush=True)
    known = facts() | {"seed": args.seed}
    print(f"\nadded {len(rows)} rows to {append('chaos_stream', [known | row for row in rows], args.results)}")
    sys.exit(int(any(row[name] for row in rows for name in ("lost", "repeated", "wrong", "disordered"))))


if __name__ == "__main__":
    main()
