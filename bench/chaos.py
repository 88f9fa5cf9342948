"""Kill processes, and a broker, at random moments, let others go on, and look whether anyone can tell.

    python bench/chaos.py [train broker stream group produce transactions pack] [--kills 20] [--seed 0]

train         trains two epochs over a topic with 3 % bad records and offset holes, saves its state after each batch;
              compared with a chain that nobody disturbed: ids, ok, labels and the digest of the pixels
broker        the same, but the broker is killed under the running process and started again
stream        follows a topic that is written all the time, some of it in transactions that are aborted
group         the same by two workers of a group, one of which is killed: what it had not committed comes `again`
produce, transactions   produces a tar shard, with a journal or with transactions
pack          packs a tar shard with two threads; every file is compared with those of an undisturbed run

A scene is a process (`worker`) that is killed with SIGKILL after some lines of output and a random moment more, until
the last one comes to its end, and an `audit`. `lost`, `repeated`, `different`, `disordered`: above 0 is exit 1. (Only a
run with a journal may repeat what it sent last.) Rows go to results/chaos.jsonl.

The log of a worker is only appended to, and cut where the state says: were it rewritten, a process killed at its start
would take along what those before it had delivered.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import math
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from _common import HERE, broker, new_topic
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from kit.broker.real import RealBroker
from kit.mutations import late
from PIL import Image

from dali_feed.bench.runner import about_machine
from dali_feed.external_sources import ConsumerGroup, KafkaStream, KafkaTopic, ShardSet
from dali_feed.external_sources import Producer as OurProducer
from dali_feed.packing.sinks import write_shard

PARTITIONS, BATCH, EPOCHS = 3, 16, 2
TRANSACTION = 25  # records; every fourth transaction is aborted
PATIENCE = 180  # seconds without a line are a hang
MORE_SECONDS = 0.5  # that a follower goes on for after the last record, so that what came twice is logged too
Counts = dict[str, int]


@dataclass(frozen=True, slots=True)
class Scene:
    """What is disturbed.

    Attributes:
        arguments: of the worker, `WORKERS` names it; a folder of its own is added.
        audit: what the chain of that folder did wrong.
        lines: the most lines of output before a kill; 0: it is killed at any moment of `seconds`.
        seconds: within which it is killed once its lines came.
        finish: further arguments of the last process.
        strike: kills what the process depends on, which goes on; None: the process itself is killed.
    """

    arguments: Sequence[str]
    audit: Callable[[Path], Counts]
    lines: int = 0
    seconds: float = 0.5
    finish: Callable[[], Sequence[str]] = tuple
    strike: Callable[[], None] | None = None


@dataclass(slots=True)
class Outcome:
    """What came of a scene."""

    faults: int = 0
    chains: int = 0
    errors: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


def start(arguments: Sequence[str]) -> subprocess.Popen[str]:
    """A worker."""
    command = [sys.executable, __file__, "--worker", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def lines_of(process: subprocess.Popen[str], most: int | None) -> int:
    """Wait for so many lines, or for its end; how many there were. A process that hangs is killed, and so told."""
    seen = 0
    assert process.stdout is not None
    while most is None or seen < most:
        watch = threading.Timer(PATIENCE, process.kill)
        watch.start()
        line = process.stdout.readline()
        watch.cancel()
        if not line:
            break
        seen += 1
    return seen


def chain(scene: Scene, folder: Path, kills: int, rng: random.Random) -> Outcome:
    """Start, wait for lines or a while, kill, start again; the last one ends by itself."""
    outcome = Outcome(chains=1)
    process = start([*scene.arguments, str(folder)])
    while outcome.faults < kills:
        wanted = rng.randint(1, scene.lines) if scene.lines and (scene.strike or rng.random() < 0.8) else 0
        if lines_of(process, wanted) < wanted:
            break  # it came to its end before its turn
        if scene.strike is not None:
            scene.strike()
            outcome.faults += 1
            continue
        try:
            process.wait(rng.random() * (scene.seconds if wanted or not scene.lines else 3.0))
            break
        except subprocess.TimeoutExpired:
            process.kill()
        process.communicate()
        outcome.faults += 1
        process = start([*scene.arguments, str(folder), *(scene.finish() if outcome.faults == kills else ())])
    _, errors = process.communicate() if lines_of(process, None) >= 0 else ("", "")
    if process.returncode:
        outcome.errors.append(f"exit {process.returncode}: {errors.strip()[-600:]}")
    else:
        outcome.counts.update(scene.audit(folder))
    return outcome


def append(folder: Path, kept: int, lines: Iterator[tuple[Any, Any, bool]]) -> None:
    """Log lines behind the first `kept` bytes, each with the state behind it; those that count are printed too."""
    with (folder / "log").open("ab") as log:
        log.truncate(kept)
        for line, state, counts in lines:
            kept += log.write((json.dumps(line) + "\n").encode())
            log.flush()
            new = folder / "state.new"
            new.write_text(json.dumps({"bytes": kept, "state": state}))
            new.replace(folder / "state")
            if counts:
                print(kept, flush=True)


def saved(folder: Path) -> tuple[int, Any]:
    """Bytes of the log that count, and the state behind them."""
    path = folder / "state"
    if not path.exists():
        return 0, None
    known = json.loads(path.read_text())
    return known["bytes"], known["state"]


def logged(folder: Path) -> list[Any]:
    """The lines of a chain."""
    return [json.loads(line) for line in (folder / "log").read_text().splitlines()]


def train(servers: str, topic: str, folder: str) -> None:
    """Worker: a line per batch, of epoch, ids, ok, labels and a digest of the pixels."""
    import torch
    from torchvision.transforms import v2

    from dali_feed import BadRecords, Shuffle, Tuning
    from dali_feed.bench.ours import loader

    augment = [v2.RandomResizedCrop(48), v2.RandomHorizontalFlip(), v2.ColorJitter(0.4, 0.4)]
    options: dict[str, Any] = {"shuffle": Shuffle(extent=16, window=4), "seed": 11, "lanes": 2, "info": True}
    options |= {"transform": v2.Compose([*augment, v2.ToDtype(torch.float32, scale=True)]), "drop_last": False}
    options |= {"tuning": Tuning(threads=2, memory=4 << 20)}  # far less than the topic: the broker is asked all along
    kept, state = saved(Path(folder))
    source = KafkaTopic(topic, servers, timeout=PATIENCE)  # a broker that starts again on a busy machine takes its time
    with loader(source, BATCH, engine="host", bad=BadRecords(limit=None), **options) as feeding:
        if state is not None:
            feeding.load_state_dict(state)

        def batches() -> Iterator[tuple[Any, Any, bool]]:
            while (epoch := feeding.epoch) < EPOCHS:
                for images, labels, info in feeding:
                    digest = hashlib.sha256(images.contiguous().numpy()).hexdigest()
                    line = [epoch, info.ids.tolist(), info.ok.tolist(), labels.tolist(), digest]
                    yield line, feeding.state_dict(), True

        append(Path(folder), kept, batches())


def payloads(count: int, rng: random.Random) -> Iterator[bytes]:
    """JPEGs, PNGs and WebPs of many sizes; of a hundred records three are bad."""
    for n in range(count):
        height, width = rng.randint(40, 120), rng.randint(40, 120)
        grid, out = np.indices((height, width, 3)).sum(axis=0) * (1 + n % 7) + n, io.BytesIO()
        Image.fromarray((grid % 256).astype(np.uint8)).save(out, ("JPEG", "JPEG", "PNG", "WEBP")[n % 4])
        whole = out.getvalue()
        bad = {13: b"<html>no image</html>", 47: whole[: len(whole) // 2], 71: late(height, width)}
        yield bad.get(n % 100, whole)


def training(
    options: argparse.Namespace, rng: random.Random, stack: ExitStack, work: Path, *, strikes: bool = False
) -> Scene:
    """A topic with bad records and holes, and an undisturbed chain over it; `strikes`: its broker is killed."""
    cluster = stack.enter_context(broker(brief=True))
    topic = stack.enter_context(new_topic(cluster, PARTITIONS))
    producer = Producer({"bootstrap.servers": cluster.servers, "transactional.id": topic})
    producer.init_transactions(60)
    records = list(payloads(options.records or 1200, rng))
    for k, first in enumerate(range(0, len(records), TRANSACTION)):
        producer.begin_transaction()
        for n in range(first, min(first + TRANSACTION, len(records))):
            headers: Any = [("label", b"%d" % n)]
            producer.produce(topic, records[n], partition=n % PARTITIONS, headers=headers)
        producer.flush(60)
        (producer.abort_transaction if k % 4 == 3 else producer.commit_transaction)(60)
    del producer  # or it complains of every broker that is killed
    (work / "reference").mkdir()
    arguments = ["train", cluster.servers, topic]
    first_chain = chain(Scene(arguments, lambda _: {}), work / "reference", 0, rng)
    assert not first_chain.errors, first_chain.errors
    reference = logged(work / "reference")
    want = Counter((line[0], sample) for line in reference for sample in line[1])

    def audit(folder: Path) -> Counts:
        lines = logged(folder)
        have = Counter((line[0], sample) for line in lines for sample in line[1])
        different = sum(a != b for a, b in zip(lines, reference, strict=False)) + abs(len(lines) - len(reference))
        return {"lost": (want - have).total(), "repeated": (have - want).total(), "different": different}

    def restart() -> None:
        if not isinstance(cluster, RealBroker):
            raise SystemExit("NOT RUN: the scene `broker` kills a broker of its own; leave KAFKA_BOOTSTRAP out")
        cluster.kill()
        cluster.start()

    return Scene(arguments, audit, lines=12, seconds=0.02, strike=restart if strikes else None)


def follow(servers: str, topic: str, folder: str, until: str = "-1") -> None:
    """Worker: a line per batch, [partition, offset, digest] of each record; ends behind record `until`, -1: never."""
    from dali_feed import DataLoader
    from dali_feed.columns import Bytes

    stream = KafkaStream(topic, servers, start="earliest", batch_timeout=0.02, idle_timeout=0.1, label=None)
    kept, state = saved(Path(folder))
    records = sum(map(len, logged(Path(folder)))) if kept else 0
    with DataLoader(stream, BATCH, columns={"value": Bytes("value")}, info=True, device="cpu") as feeding:
        if state is not None:
            feeding.load_state_dict(state)

        def batches() -> Iterator[tuple[Any, Any, bool]]:
            nonlocal records
            ends = 0.0
            for batch, info in feeding:
                if 0 <= int(until) <= records:
                    ends = ends or time.monotonic() + MORE_SECONDS
                    if time.monotonic() > ends:
                        return
                line = placed_digests(batch, info)
                records += len(line)
                yield line, feeding.state_dict(), bool(line)

        append(Path(folder), kept, batches())


def placed_digests(batch: Any, info: Any) -> list[list[Any]]:
    """[partition, offset, digest] of each record of a batch."""
    from dali_feed.records.extents import unpack_id

    values = zip(info.ids.tolist(), batch["value"], strict=True)
    return [[*unpack_id(each), hashlib.sha256(value).hexdigest()[:16]] for each, value in values]


def share(servers: str, topic: str, fellow: str, folder: str, until: str = "-1") -> None:
    """Worker: a member of a group; ends when it and its fellow, of that folder, have `until` records, -1: never."""
    from dali_feed import DataLoader
    from dali_feed.columns import Bytes

    group, pace = ConsumerGroup(topic, session=2.0), {"batch_timeout": 0.02, "idle_timeout": 0.1, "label": None}
    stream = KafkaStream(topic, servers, start="earliest", group=group, **pace)  # type: ignore[arg-type]
    with (
        DataLoader(stream, BATCH, columns={"value": Bytes("value")}, info=True, device="cpu") as feeding,
        Path(folder, "log").open("a") as log,
    ):
        look, most = time.monotonic() if int(until) >= 0 else math.inf, 0
        for batch, info in feeding:
            if line := placed_digests(batch, info):
                print(json.dumps(line), file=log, flush=True)
                feeding.commit()
                print(len(line), flush=True)
            if time.monotonic() >= look:  # a look reads both logs whole
                lines = logged(Path(folder)) + logged(Path(fellow))
                if (count := len({(p, offset) for line in lines for p, offset, _ in line})) >= int(until):
                    return
                if count > most:
                    print(count, flush=True)  # its fellow may be the one that gets on
                look, most = time.monotonic() + 2, count


def write_on(servers: str, topic: str, rate: float, stop: threading.Event) -> None:
    """Write until told to stop: one turn in eight is a transaction, and every second of those is aborted."""
    rng = random.Random(0)
    known: dict[str, Any] = {"bootstrap.servers": servers, "log_level": 0}
    plain = Producer(known | {"enable.idempotence": True, "linger.ms": 2})
    inside = Producer(known | {"transactional.id": topic})
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


def committed(servers: str, topic: str) -> list[list[tuple[int, bytes]]]:
    """The (offset, value) of each record of each partition."""
    options: dict[str, Any] = {"bootstrap.servers": servers, "group.id": "chaos", "enable.partition.eof": True}
    consumer = Consumer(options | {"isolation.level": "read_committed"})
    consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in range(PARTITIONS)])
    records: list[list[tuple[int, bytes]]] = [[] for _ in range(PARTITIONS)]
    ended: set[int] = set()
    while len(ended) < PARTITIONS:
        message = consumer.poll(60)
        assert message is not None, "nothing came for a minute"
        partition: Any = message.partition()
        if message.error() is None:
            records[partition].append((message.offset() or 0, message.value() or b""))
        else:
            ended.add(partition)
    consumer.close()
    return records


def streaming(
    options: argparse.Namespace, _: random.Random, stack: ExitStack, work: Path, *, shared: bool = False
) -> Scene:
    """A topic that is written until the last process begins; what it holds is what must have come."""
    cluster = stack.enter_context(broker())
    topic, stop = stack.enter_context(new_topic(cluster, PARTITIONS)), threading.Event()
    thread = threading.Thread(target=write_on, args=(cluster.servers, topic, options.records or 2000, stop))
    thread.start()
    stack.callback(thread.join)
    stack.callback(stop.set)
    placed: dict[tuple[int, int], str] = {}

    def finish() -> Sequence[str]:
        stop.set()
        thread.join()
        for p, part in enumerate(committed(cluster.servers, topic)):
            placed.update({(p, offset): hashlib.sha256(value).hexdigest()[:16] for offset, value in part})
        return (str(len(placed)),)

    (fellow := work / "fellow").mkdir()
    arguments = ["share" if shared else "follow", cluster.servers, topic]
    if shared:
        (fellow / "log").touch()
        command = [sys.executable, __file__, "--worker", *arguments, str(fellow), str(fellow)]
        stack.callback(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).kill)
        arguments.append(str(fellow))

    def audit(folder: Path) -> Counts:
        log = [tuple(record) for each in [folder, fellow][: 1 + shared] for line in logged(each) for record in line]
        places = [(p, offset) for p, offset, _ in log]
        ordered = [[offset for p, offset in places if p == partition] for partition in range(PARTITIONS)]
        return {
            "lost": len(placed.keys() - set(places)),
            "again" if shared else "repeated": len(places) - len(set(places)),
            "different": sum(placed.get((p, offset)) != digest for p, offset, digest in log),
            "disordered": 0 if shared else sum(offsets != sorted(offsets) for offsets in ordered),
        }

    return Scene(arguments, audit, lines=1, finish=finish)


def produce(shard: str, servers: str, topic: str, transactional: str, folder: str) -> None:
    """Worker: says when the first records count."""
    journal, started = Path(folder, "journal"), False
    transactional_id = "auto" if transactional == "True" else None

    def tell(so_far: Any) -> None:
        nonlocal started
        if not started and so_far.position > so_far.begun:
            print("it sends", flush=True)
            started = True

    source = ShardSet(shard, image=("bin",))
    producer = OurProducer(
        topic, servers, transactional_id=transactional_id, queue_bytes=256 << 10, config={"linger.ms": 5}
    )
    producer.run(source, journal=journal, every=0.1, tell=tell)


def producing(
    options: argparse.Namespace, rng: random.Random, stack: ExitStack, work: Path, *, transactional: bool
) -> Scene:
    """A shard of images and texts, and an empty topic."""
    cluster = stack.enter_context(broker())
    topic, shard = stack.enter_context(new_topic(cluster, PARTITIONS)), work / "s.tar"
    texts = [b"text %06d " % n + rng.randbytes(rng.randint(0, 3000)) for n in range(options.records or 20_000)]
    values = [b"\xff\xd8\xff" + text if n % 3 else text for n, text in enumerate(texts)]
    place = {value: n for n, value in enumerate(values)}
    write_shard(shard, ({"bin": value, "cls": b"%d" % n} for n, value in enumerate(values)))

    def ordered(part: list[bytes]) -> bool:
        places = [place[value] for value in dict.fromkeys(part)]
        return places == sorted(places)

    def audit(_: Path) -> Counts:
        parts = [[value for _, value in part] for part in committed(cluster.servers, topic)]
        counts = Counter(value for part in parts for value in part)
        row = {"lost": sum(value not in counts for value in values)}
        row["repeated" if transactional else "sent again"] = sum(count - 1 for count in counts.values())
        return row | {"disordered": sum(not ordered(part) for part in parts)}

    arguments = ["produce", str(shard), cluster.servers, topic, str(transactional)]
    return Scene(arguments, audit, lines=1, seconds=0.4)


def packed(shard: str, folder: str) -> None:
    """Worker."""
    from dali_feed.packing import pack

    print("it packs", flush=True)
    pack(ShardSet(shard), Path(folder, "x.dfset"), shard_bytes=1_000_000, workers=2)


def packing(options: argparse.Namespace, rng: random.Random, _: ExitStack, work: Path) -> Scene:
    """A shard of random members, and a set that nobody disturbed."""
    shard = work / "s.tar"
    sizes = [rng.randint(0, 8000) for _ in range(options.records or 3000)]
    write_shard(shard, ({"bin": rng.randbytes(size), "cls": b"%d" % n} for n, size in enumerate(sizes)))

    def digests(folder: Path) -> dict[str, str]:
        files = (path for path in folder.rglob("*") if path.is_file())
        return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

    begun = time.monotonic()
    packed(str(shard), str(work / "reference"))
    seconds, whole = time.monotonic() - begun, digests(work / "reference")

    def audit(folder: Path) -> Counts:
        files = digests(folder)
        return {"different": sum(files.get(name) != whole.get(name) for name in files.keys() | whole.keys())}

    return Scene(["packed", str(shard)], audit, lines=1, seconds=seconds)


WORKERS: dict[str, Callable[..., None]] = {
    "train": train,
    "follow": follow,
    "share": share,
    "produce": produce,
    "packed": packed,
}
SCENES: dict[str, Callable[..., Scene]] = {
    "train": training,
    "broker": partial(training, strikes=True),
    "stream": streaming,
    "group": partial(streaming, shared=True),
    "produce": partial(producing, transactional=False),
    "transactions": partial(producing, transactional=True),
    "pack": packing,
}


def run(name: str, options: argparse.Namespace) -> Outcome:
    """Chains of a scene until there were kills enough; one that came to its end before has another behind it."""
    total, rng = Outcome(), random.Random(options.seed)
    while total.faults < options.kills and not total.errors:
        with ExitStack() as stack:
            work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            scene = SCENES[name](options, rng, stack, work)
            for number in range(options.kills if name in {"train", "broker"} else 1):
                if total.faults >= options.kills or total.errors:
                    break
                (folder := work / f"chain-{number}").mkdir()
                outcome = chain(scene, folder, options.kills - total.faults, rng)
                total.faults, total.chains = total.faults + outcome.faults, total.chains + 1
                total.errors += outcome.errors
                total.counts.update(outcome.counts)
    return total


def main() -> int:
    """Run the scenes, print a row of each, keep them; 1 where anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenes", nargs="*", choices=[[], *SCENES], help="default: all")
    parser.add_argument("--kills", type=int, default=20, help="of each scene (default %(default)s)")
    parser.add_argument("--records", type=int, default=0, help="of a topic or shard, or a second (default: by scene)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (default %(default)s)")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "chaos.jsonl")
    parser.add_argument("--worker", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        name, *arguments = options.worker
        WORKERS[name](*arguments)
        return 0
    wrong, about = False, about_machine() | {"seed": options.seed}
    for name in options.scenes or SCENES:
        outcome = run(name, options)
        counts = dict(outcome.counts)
        recovered = outcome.faults if not outcome.errors else 0
        row = {"scene": name, "faults": outcome.faults, "recovered": recovered, "chains": outcome.chains, **counts}
        print("  ".join(f"{key} {value}" for key, value in row.items()), *outcome.errors, sep="\n", flush=True)
        wrong |= bool(outcome.errors) or any(counts.get(key) for key in ("lost", "repeated", "different", "disordered"))
        with options.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(about | row) + "\n")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
