"""Kill a training process, and its broker, at random moments, and look whether anyone can tell.

    python bench/chaos.py [--kills 20] [--broker-kills 3] [--engine host] [--seed 0]

A topic on Apache Kafka: images of many sizes, 3 % bad records (text, cut files, some that only a decoder refuses), and
offset holes from aborted transactions. A process trains over it for two epochs, shuffled and augmented, and saves its
state after each batch (`_chaos_run.py`). One chain of processes is never disturbed. In the others a process is killed
with SIGKILL after a random number of batches and a random moment more, and a new one goes on from the saved state; or
the broker is killed in the same way and started again under a running process. What all chains delivered is compared,
batch by batch: ids, ok, labels and the digest of the pixels.

The table has a row per kind of fault. `recovered` counts faults of chains that came to their end without an error.
`lost` and `repeated` count records of the undisturbed chain that another one did not deliver, or delivered more often;
`different` counts batches of which anything differs. Rows go to results/chaos.csv; it ends with 1 where a fault was not
recovered or anything was lost, repeated or different.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import subprocess
import sys
import tempfile
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from _kafka import broker_module, kafka_missing
from _mutations import late
from _results import RESULTS
from confluent_kafka import Producer
from PIL import Image

from dali_feed.bench.facts import facts
from dali_feed.bench.rows import append, table

RUN = Path(__file__).with_name("_chaos_run.py")
PARTITIONS = 3
TRANSACTION = 25  # records; every fourth transaction is aborted
PATIENCE = 180  # seconds without a batch are a hang


def payloads(count: int, rng: random.Random) -> Iterator[bytes]:
    """JPEGs, PNGs and WebPs of many sizes; of a hundred records three are bad."""
    for n in range(count):
        height, width = rng.randint(40, 120), rng.randint(40, 120)
        grid = np.indices((height, width, 3)).sum(axis=0) * (1 + n % 7) + n
        out, kind = io.BytesIO(), ("JPEG", "JPEG", "PNG", "WEBP")[n % 4]
        Image.fromarray((grid % 256).astype(np.uint8)).save(out, kind)
        whole = out.getvalue()
        if n % 100 == 13:
            yield b"<html>no image</html>"
        elif n % 100 == 47:
            yield whole[: len(whole) // 2]
        elif n % 100 == 71:
            yield late(height, width)
        else:
            yield whole


@contextmanager
def filled(count: int, rng: random.Random) -> Iterator[tuple[Any, str]]:
    """A broker of our own and a topic with holes."""
    with broker_module().RealBroker(brief=True) as broker:
        topic = f"chaos-{uuid.uuid4().hex[:8]}"
        broker.create(topic, PARTITIONS)
        producer = Producer({"bootstrap.servers": broker.servers, "transactional.id": topic})
        producer.init_transactions(60)
        records = list(payloads(count, rng))
        for k, first in enumerate(range(0, count, TRANSACTION)):
            producer.begin_transaction()
            for n in range(first, min(first + TRANSACTION, count)):
                headers: Any = [("label", b"%d" % n)]
                producer.produce(topic, records[n], partition=n % PARTITIONS, headers=headers)
            producer.flush(60)
            (producer.abort_transaction if k % 4 == 3 else producer.commit_transaction)(60)
        del producer  # or it complains of every broker that is killed
        yield broker, topic


@dataclass(slots=True)
class Chain:
    """Processes one after the other, each going on where the last one's state stood."""

    servers: str
    topic: str
    engine: str
    folder: Path
    faults: int = 0
    errors: list[str] = field(default_factory=list)

    def start(self) -> subprocess.Popen[str]:
        """A process."""
        command = [sys.executable, str(RUN), self.servers, self.topic, str(self.folder), self.engine]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def batches(self, process: subprocess.Popen[str], most: int | None = None) -> int:
        """Wait for so many batches, or for its end; how many there were. A process that hangs is killed and told."""
        seen = 0
        assert process.stdout is not None
        watch = threading.Timer(PATIENCE, process.kill)
        watch.start()
        for _ in process.stdout:
            watch.cancel()
            seen += 1
            if most is not None and seen >= most:
                return seen
            watch = threading.Timer(PATIENCE, process.kill)
            watch.start()
        watch.cancel()
        return seen

    def ended(self, process: subprocess.Popen[str]) -> bool:
        """Whether it came to its end by itself and well."""
        _, said = process.communicate()
        if process.returncode:
            self.errors.append(f"exit {process.returncode}: {said.strip()[-300:]}")
        return process.returncode == 0

    def delivered(self) -> list[Any]:
        """What the chain delivered, a line per batch."""
        return [json.loads(line) for line in (self.folder / "log").read_text().splitlines()]


def undisturbed(chain: Chain) -> Chain:
    """One process from the beginning to the end."""
    process = chain.start()
    chain.batches(process)
    chain.ended(process)
    return chain


def killed(chain: Chain, most: int, rng: random.Random) -> Chain:
    """Processes that are killed, up to `most` of them, then one that comes to the end."""
    while chain.faults < most:
        process = chain.start()
        wanted = rng.randint(0, 12)
        seen = chain.batches(process, wanted) if wanted else 0
        if wanted and seen < wanted:  # it came to the end before its turn
            chain.ended(process)
            return chain
        try:
            process.wait(rng.random() * (0.02 if wanted else 3.0))
        except subprocess.TimeoutExpired:
            process.kill()
            chain.faults += 1
        process.communicate()
    return undisturbed(chain)


def without_broker(chain: Chain, broker: Any, most: int, rng: random.Random) -> Chain:
    """One process whose broker is killed under it and started again."""
    process = chain.start()
    while chain.faults < most:
        wanted = rng.randint(2, 20)
        if chain.batches(process, wanted) < wanted:
            break
        broker.restart()
        chain.faults += 1
    chain.batches(process)
    chain.ended(process)
    return chain


def row_of(kind: str, chains: list[Chain], reference: list[Any]) -> dict[str, object]:
    """What is told of a kind of fault."""
    lost = repeated = different = 0
    want = Counter((line[0], sample) for line in reference for sample in line[1])
    for chain in chains:
        lines = chain.delivered()
        have = Counter((line[0], sample) for line in lines for sample in line[1])
        lost, repeated = lost + (want - have).total(), repeated + (have - want).total()
        different += sum(a != b for a, b in zip(lines, reference, strict=False)) + abs(len(lines) - len(reference))
    return {
        "fault": kind,
        "chains": len(chains),
        "faults": sum(c.faults for c in chains),
        "recovered": sum(c.faults for c in chains if not c.errors),
        "lost": lost,
        "repeated": repeated,
        "different": different,
    }


def main() -> None:
    """Run the chains, print the table, and add its rows to results/chaos.csv."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="of the training process (default %(default)s)")
    parser.add_argument("--broker-kills", type=int, default=3, help="of the broker (default %(default)s)")
    parser.add_argument("--engine", choices=("host", "dali"), default="host")
    parser.add_argument("--records", type=int, default=1200)
    parser.add_argument("--seed", type=int, default=0, help="of the moments (default %(default)s)")
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    missing = kafka_missing()
    if missing is not None:
        print(f"chaos: NOT RUN: {missing}")
        return
    rng = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as work, filled(args.records, rng) as (broker, topic):
        made: list[Chain] = []

        def chain() -> Chain:
            folder = Path(work, str(len(made)))
            folder.mkdir()
            made.append(Chain(broker.servers, topic, args.engine, folder))
            return made[-1]

        first = undisturbed(chain())
        reference = first.delivered()
        bad = sum(not ok for line in reference for ok in line[2])
        print(f"undisturbed: {len(reference)} batches of two epochs, {bad} slots replaced", flush=True)
        process_chains: list[Chain] = []
        while (left := args.kills - sum(c.faults for c in process_chains)) > 0:
            process_chains.append(killed(chain(), left, rng))
        broker_chains: list[Chain] = []
        while (left := args.broker_kills - sum(c.faults for c in broker_chains)) > 0:
            broker_chains.append(without_broker(chain(), broker, left, rng))
        rows = [row_of("none", [first], reference)]
        rows += [row_of("kill -9 of the process", process_chains, reference)] if process_chains else []
        rows += [row_of("kill -9 of the broker", broker_chains, reference)] if broker_chains else []
        for each in made:
            print("".join(f"chain {each.folder.name}: {error}\n" for error in each.errors), end="")
        wrong = any(row[name] for row in rows for name in ("lost", "repeated", "different"))
        wrong |= any(each.errors for each in made) or not reference
    print(table(rows, list(rows[0])))
    known = facts() | {"engine": args.engine, "records": args.records, "seed": args.seed}
    print(f"\nadded {len(rows)} rows to {append('chaos', [known | row for row in rows], args.results)}")
    sys.exit(int(wrong))


if __name__ == "__main__":
    main()
