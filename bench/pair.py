"""Races two checkouts, each in its own environment: is the new one as fast as the old, and as small in memory?

    python bench/pair.py OLD NEW [--turns 9] [--seconds 3] [--workloads files ...] [--servers HOST:PORT] [--out FILE]

OLD and NEW are folders of checkouts with `.venv/bin/python` in them. In each turn both start a process afresh; then
each workload is run by one and at once by the other, and which begins changes from turn to turn. Compared is a ratio:
rate of the new by that of the old, and for times the old by the new, so that above 1 is always better. Its 95 %
interval is a bootstrap over the turns; with fewer than 9 nothing is judged. A fault is an interval that lies below
0.98 (0.9 for the p99 of a live stream); one fault makes the exit code 1. Every run is listed, none is left out.

    files, tar, topic   JPEGs of 500x375, RandomResizedCrop(224), flip, floats, Normalize; images/s
    small               JPEGs of 32x32 in tar shards, cropped and flipped; images/s
    arrays              rows of 1 KB of .npy files, shuffled; rows/s
    records             a topic of 100 bytes a record, as the side has them: bytes once, memoryviews now; records/s
    bytes               the same, as bytes from both
    c                   the same topic by librdkafka's consumer alone: no code of ours, so its ratio is the noise
    first               seconds from making a loader over the shards of `small` to its first batch
    live                p99 of seconds from sending a record until it is in a batch, at 400 records/s

The broker is the embedded one, in each process, unless --servers names a real one. Peak and held memory (MB resident,
after the loader is closed) stand beside each ratio; they are shown, not judged.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import io
import itertools
import json
import re
import statistics
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

RATES = ("files", "tar", "topic", "small", "arrays", "records", "bytes", "c")
TIMES = {"first": 0.98, "live": 0.9}  # workload -> below this it is a fault
WORKLOADS = (*RATES, *TIMES)
PHOTOS, SMALL, ROWS, RECORDS = 256, 12_000, 60_000, 200_000
PARTITIONS, LEAST = 16, 9  # with fewer turns nothing is judged
SIDES, MEMORY = ("old", "new"), ("peak", "held")


def main() -> None:
    """Race, print, and exit with 1 for a fault."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for side in SIDES:
        parser.add_argument(side, type=Path)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=WORKLOADS)
    parser.add_argument("--servers", help="of a real broker; topics named pair-* are made there and stay")
    parser.add_argument("--out", type=Path, help="to which a line of JSON is added for each run and each ratio")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder)
        make_data(data)
        runs = race(args, data)
    faults = [name for name in args.workloads if report(name, runs, args)]
    judged = f"faults: {', '.join(faults) or 'none'}" if args.turns >= LEAST else "nothing is judged"
    print(f"{judged}, after {args.turns} turns")
    sys.exit(bool(faults))


def race(args: argparse.Namespace, data: Path) -> list[dict[str, Any]]:
    """All runs, in the order in which they were made."""
    runs: list[dict[str, Any]] = []
    commits = {side: commit_of(getattr(args, side)) for side in SIDES}
    for turn in range(args.turns):
        with Worker(args.old, data, args) as old, Worker(args.new, data, args) as new:
            workers = {"old": old, "new": new}
            for name in args.workloads:
                for side in SIDES if turn % 2 == 0 else reversed(SIDES):
                    run = {"turn": turn, "side": side, "commit": commits[side], "workload": name}
                    runs.append(run | workers[side].run(name))
                    print(" ".join(f"{key}={value}" for key, value in runs[-1].items()), flush=True)
                    keep(args.out, runs[-1])
    return runs


def commit_of(checkout: Path) -> str:
    """Its name, and whether files differ from it."""
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def keep(out: Path | None, line: dict[str, Any]) -> None:
    """Add a line to the file."""
    if out is not None:
        with out.open("a") as file:
            file.write(json.dumps(line) + "\n")


def report(name: str, runs: list[dict[str, Any]], args: argparse.Namespace) -> bool:
    """Print a workload's ratio; whether it is a fault."""
    of = {side: [r for r in runs if r["workload"] == name and r["side"] == side] for side in SIDES}
    values = {side: np.array([run["value"] for run in each]) for side, each in of.items()}
    logs = np.log(values["old"] / values["new"] if name in TIMES else values["new"] / values["old"])
    low, high = interval(logs)
    bound = TIMES.get(name, 0.98)
    fault = high < bound and name != "c" and args.turns >= LEAST
    memory = {part: [round(statistics.median(run[part] for run in each)) for each in of.values()] for part in MEMORY}
    ratio = float(np.exp(logs.mean()))
    medians = " -> ".join(f"{np.median(each):.4g}" for each in values.values())
    shown = "".join(f"  {part} {old} -> {new} MB" for part, (old, new) in memory.items())
    print(f"{name:8} ratio {ratio:.3f} [{low:.3f}, {high:.3f}]  {medians}{shown}{'  FAULT' if fault else ''}")
    line = {"workload": name, "ratio": ratio, "low": low, "high": high, "bound": bound, "fault": fault}
    keep(args.out, line | memory)
    return fault


def interval(logs: Any) -> tuple[float, float]:
    """95 % of the mean of logarithms, by 10,000 draws of as many turns."""
    draws = np.random.default_rng(0).integers(0, len(logs), (10_000, len(logs)))
    low, high = np.exp(np.quantile(logs[draws].mean(1), (0.025, 0.975)))
    return float(low), float(high)


class Worker(contextlib.ExitStack):
    """A process of one side; it waits for the name of a workload, and answers with what it measured."""

    def __init__(self, checkout: Path, data: Path, args: argparse.Namespace) -> None:
        super().__init__()
        python = str(checkout.absolute() / ".venv" / "bin" / "python")
        command = [
            python,
            "-I",
            str(Path(__file__).resolve()),
            "--worker",
            str(data),
            str(args.seconds),
            args.servers or "",
        ]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        process: Any = subprocess.Popen(command, cwd=checkout, text=True, **pipes)
        self._process = self.enter_context(process)
        self.callback(process.stdin.close)
        self._line()

    def run(self, name: str) -> dict[str, Any]:
        """What it measured."""
        self._process.stdin.write(name + "\n")
        self._process.stdin.flush()
        return dict(self._line())

    def _line(self) -> Any:
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"pair: a worker ended; run it by hand: {' '.join(self._process.args)}")
        return json.loads(line)


def make_data(data: Path) -> None:
    """What all runs read: photographs as files and shards, small pictures, rows."""
    from PIL import Image

    rng = np.random.default_rng(0)

    def jpeg(high: int, wide: int) -> bytes:
        coarse = Image.fromarray(rng.integers(0, 256, (high // 8, wide // 8, 3), np.uint8))
        out = io.BytesIO()
        coarse.resize((wide, high), Image.Resampling.BICUBIC).save(out, "JPEG", quality=90)
        return out.getvalue()

    photos = [jpeg(375, 500) for _ in range(PHOTOS)]
    small = [jpeg(32, 32) for _ in range(500)]
    for n, photo in enumerate(photos):
        (data / "files" / str(n % 4)).mkdir(parents=True, exist_ok=True)
        (data / "files" / str(n % 4) / f"{n:05d}.jpg").write_bytes(photo)
    for name, images in (("tar", photos), ("small", [small[n % 500] for n in range(SMALL)])):
        with tarfile.open(data / f"{name}.tar", "w") as tar:
            for n, image in enumerate(images):
                for suffix, content in (("jpg", image), ("cls", b"%d" % (n % 1000))):
                    info = tarfile.TarInfo(f"{n:06d}.{suffix}")
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))
    np.save(data / "rows.npy", rng.random((ROWS, 256), np.float32))


# From here on: what a side's process does, by public names of either side.


def work(data: Path, seconds: float, servers: str) -> None:
    """Measure what is asked for, line by line."""
    answers, sys.stdout = sys.stdout, sys.stderr
    side = Side(data, seconds, servers)
    print(json.dumps({}), file=answers, flush=True)
    for line in sys.stdin:
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # the peak is that of this run
        value = side.run[line.strip()]()
        gc.collect()
        status = dict(re.findall(r"^(VmHWM|VmRSS):\s+(\d+)", Path("/proc/self/status").read_text(), re.MULTILINE))
        answer = {"value": value, "peak": int(status["VmHWM"]) // 1024, "held": int(status["VmRSS"]) // 1024}
        print(json.dumps(answer), file=answers, flush=True)


class Side:
    """The workloads of one side; each gives a rate, or seconds."""

    def __init__(self, data: Path, seconds: float, servers: str) -> None:
        import torch
        from torchvision.transforms import v2

        self.data, self.seconds, self.given, self.filled = data, seconds, servers, set[str]()
        end = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.25] * 3)]
        crop = v2.Compose([v2.RandomResizedCrop(224), v2.RandomHorizontalFlip(), *end])
        self.shift = v2.Compose([v2.RandomCrop(32, padding=4), v2.RandomHorizontalFlip(), *end])
        files, shards = str(data / "files"), self.named("ShardSet")
        self.run: dict[str, Callable[[], float]] = {
            "files": lambda: self.rate(self.named("FileList").from_folder(files), 64, crop, shuffle=True),
            "tar": lambda: self.rate(shards(str(data / "tar.tar")), 64, crop, shuffle=True),
            "topic": lambda: self.rate(self.topic("pair-photos"), 64, crop, shuffle=True),
            "small": lambda: self.rate(shards(str(data / "small.tar")), 256, self.shift, shuffle=True),
            "arrays": lambda: self.rate(
                self.named("Arrays", "ArrayShards")(str(data / "rows.npy")), 1024, shuffle=True
            ),
            "records": self.records,
            "bytes": lambda: self.records(as_bytes=True),
            "c": self.consumer,
            "first": self.first,
            "live": self.live,
        }

    def records(self, *, as_bytes: bool = False) -> float:
        """Records of a topic, in order, as `Bytes` has them; or as bytes, by a call for each where the side must."""
        from dali_feed.columns import Bytes

        column = Bytes("value", decode=bytes) if as_bytes and not self.plain_bytes else Bytes("value")
        return self.rate(self.topic("pair-records"), 1024, columns={"value": column})

    @functools.cached_property
    def plain_bytes(self) -> bool:
        """Whether this side's `Bytes` gives bytes where nothing is decoded; a look at the first batch tells."""
        from dali_feed.columns import Bytes

        with self.loader(self.topic("pair-records"), 1024, None, columns={"value": Bytes("value")}) as loader:
            return isinstance(next(iter(loader))["value"][0], bytes)

    def consumer(self) -> float:
        """The same records by librdkafka's consumer alone."""
        from confluent_kafka import Consumer, TopicPartition

        self.topic("pair-records")
        begin, count = time.perf_counter(), 0
        while time.perf_counter() - begin < self.seconds:
            consumer = Consumer({"bootstrap.servers": self.servers, "group.id": "pair"})
            consumer.assign([TopicPartition("pair-records", p, 0) for p in range(PARTITIONS)])
            ends = count + RECORDS
            while count < ends:
                count += len(consumer.consume(min(1024, ends - count), 5))
            consumer.close()
        return count / (time.perf_counter() - begin)

    def first(self) -> float:
        """Seconds until the first batch, the middle of five."""
        times = []
        for _ in range(5):
            begin = time.perf_counter()
            with self.loader(self.named("ShardSet")(str(self.data / "small.tar")), 64, self.shift) as loader:
                next(iter(loader))
                times.append(time.perf_counter() - begin)
        return statistics.median(times)

    def live(self) -> float:
        """The p99 of seconds from sending a record until it is in a batch; labels are the times of sending."""
        from confluent_kafka import Producer
        from torchvision.transforms import v2

        self.topic("pair-live")
        with tarfile.open(self.data / "small.tar") as tar:
            image = tar.extractfile("000000.jpg").read()  # type: ignore[union-attr]
        stop, waits = threading.Event(), list[float]()

        def send() -> None:
            producer = Producer({"bootstrap.servers": self.servers, "linger.ms": 0})
            for n in itertools.count():
                if stop.wait(0.0025):
                    break
                now = b"%d" % time.perf_counter_ns()
                producer.produce("pair-live", image, headers=[("label", now)], partition=n % PARTITIONS)
                producer.poll(0)
            producer.flush(10)

        stream = self.named("KafkaStream")("pair-live", self.servers, batch_timeout=0.01)
        with self.loader(stream, 8, v2.Resize((64, 64))) as loader:
            thread, batches = threading.Thread(target=send), iter(loader)
            thread.start()
            ends = time.perf_counter() + self.seconds + 1
            while time.perf_counter() < ends:
                sent = next(batches)[1].numpy()
                waits += ((time.perf_counter_ns() - sent) / 1e9).tolist()
            stop.set()
            thread.join()
        return float(np.quantile(waits[len(waits) // 5 :], 0.99))  # without the first, while the stream begins

    def rate(self, source: Any, batch: int, transform: Any = None, **options: Any) -> float:
        """Samples a second, from the third batch on, over as many epochs as fit."""
        with self.loader(source, batch, transform, **options) as loader:
            count, begin = 0, 0.0
            for number, items in enumerate(itertools.chain.from_iterable(itertools.repeat(loader))):
                if number == 2:
                    begin = time.perf_counter()
                elif number > 2:
                    count += len(next(iter(items.values())) if isinstance(items, dict) else items[0])
                    if time.perf_counter() - begin > self.seconds:
                        break
            return count / (time.perf_counter() - begin)

    def loader(self, source: Any, batch: int, transform: Any, **options: Any) -> Any:
        """A loader of this side on the CPU."""
        from dali_feed import DataLoader

        return DataLoader(source, batch, transform=transform, device="cpu", seed=1, **options)

    def named(self, *names: str) -> Any:
        """A class of sources, by the first of its names that this side has."""
        from dali_feed import external_sources

        return next(getattr(external_sources, name) for name in names if hasattr(external_sources, name))

    @functools.cached_property
    def servers(self) -> str:
        """The broker's address; the embedded one begins when it is first asked for, and ends with the process."""
        from dali_feed.testing import broker

        return self.given or str(broker().servers)

    def topic(self, name: str) -> Any:
        """A topic, filled where it is not there."""
        from confluent_kafka.admin import AdminClient

        from dali_feed.testing import publish

        there = AdminClient({"bootstrap.servers": self.servers}).list_topics(timeout=10).topics
        if name not in there:
            values: Any = [b"nothing"]
            if name == "pair-photos":
                values = (path.read_bytes() for path in sorted((self.data / "files").rglob("*.jpg")))
            elif name == "pair-records":
                values = (b"%0100d" % n for n in range(RECORDS))
            publish(self.servers, name, ((value, n) for n, value in enumerate(values)), partitions=PARTITIONS)
        return self.named("KafkaTopic")(name, self.servers)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(Path(sys.argv[2]), float(sys.argv[3]), sys.argv[4])
    else:
        main()
