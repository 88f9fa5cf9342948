"""The same records by Kafka clients of others, and what those clients read: Java, kafka-python, kcat."""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kit.broker.real import archived, cache, jars, java_version
from kit.limits import LONG

RECORDS = 40
FIRST = 1_700_000_000_000  # milliseconds since 1970
ABORTED = frozenset(n for n in range(RECORDS) if n // 5 % 2)  # of transactions of five
SOURCE = Path(__file__).with_name("OtherClient.java")
_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dfile.encoding=UTF-8")


@dataclass(frozen=True, slots=True)
class Other:
    """A record as another client has it."""

    partition: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def record(n: int) -> tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]:
    """Key, value and headers of the n-th, as OtherClient.java writes them too."""
    key = None if n % 11 == 10 else b"text %d" % (n % 7)
    value = None if n % 10 == 9 else b"value %06d " % n * (1 + n % 37)
    return key, value, [("n", b"%d" % n), ("colour", "grün".encode()), ("nothing", None)]


@functools.cache
def java_missing() -> str | None:
    """Why OtherClient.java cannot be run, or None: Java alone has no compiler."""
    modules = subprocess.run(["java", "--list-modules"], capture_output=True, text=True, check=False).stdout
    return None if "jdk.compiler" in modules else "this Java has no compiler (a JRE): OtherClient.java needs a JDK"


def _compiled() -> Path:
    """The folder of its classes, for this source and these jars: made once on a machine, as that takes longest."""
    key = hashlib.sha256(SOURCE.read_bytes() + jars().name.encode() + java_version().encode())
    folder = cache() / f"other-client-{key.hexdigest()[:16]}"
    if not folder.is_dir():
        cache().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache()) as work:
            compiler = ["java", *_OPTIONS, "-m", "jdk.compiler/com.sun.tools.javac.Main", "-encoding", "UTF-8"]
            command = [*compiler, "-d", f"{work}/made", "-cp", ":".join(map(str, jars().glob("*.jar"))), str(SOURCE)]
            subprocess.run(command, check=True, timeout=LONG)
            with contextlib.suppress(OSError):  # another was quicker
                Path(work, "made").rename(folder)  # whole or not at all
    return folder


def java(servers: str, *orders: str) -> list[Other]:
    """Have OtherClient.java do it; what it read."""
    options = [*_OPTIONS, *archived(), "-Xmx128m", "-cp", f"{jars()}/*:{_compiled()}"]
    command = ["java", *options, SOURCE.stem, servers, *orders]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LONG)
    assert done.returncode == 0, done.stderr
    return [_parsed(line.split()[1:]) for line in done.stdout.splitlines() if line.startswith("read ")]


def _parsed(words: Sequence[str]) -> Other:
    partition, key, value, *headers = words
    named = []
    for each in headers:
        name, there, text = each.partition("=")
        named.append((name, base64.b64decode(text)) if there else (name.removesuffix("-"), None))
    return Other(int(partition), _bytes(key), _bytes(value), tuple(named))


def _bytes(shown: str) -> bytes | None:
    return None if shown == "-" else base64.b64decode(shown[1:])


def written_by_python(servers: str, topic: str, codec: str) -> None:
    """The records, by kafka-python."""
    from kafka import KafkaProducer  # it warns when it is imported

    producer = KafkaProducer(bootstrap_servers=servers, compression_type=codec)
    for n in range(RECORDS):
        key, value, headers = record(n)
        some = [each for each in headers if each[1] is not None]  # it writes no others
        producer.send(topic, value, key, some, timestamp_ms=FIRST + n)
    producer.flush()
    producer.close()


def read_by_python(servers: str, topic: str) -> Iterator[Other]:
    """All of a topic, by kafka-python."""
    from kafka import KafkaConsumer
    from kafka import TopicPartition as Partition

    consumer = KafkaConsumer(bootstrap_servers=servers, isolation_level="read_committed")
    try:
        all_ = [Partition(topic, p) for p in sorted(consumer.partitions_for_topic(topic))]
        consumer.assign(all_)
        consumer.seek_to_beginning(*all_)
        ends = consumer.end_offsets(all_)
        while any(consumer.position(each) < ends[each] for each in all_):
            for found in consumer.poll(100).values():
                for each in found:
                    yield Other(each.partition, each.key, each.value, tuple(each.headers))
    finally:
        consumer.close()


def kcat_missing() -> str | None:
    """Why kcat cannot be run, or None."""
    return None if shutil.which("kcat") else "no `kcat` on the PATH (Debian: apt-get install kcat)"


def by_kcat(servers: str, *arguments: str, told: bytes = b"") -> bytes:
    """Run kcat; what it printed."""
    command = ["kcat", "-b", servers, "-q", *arguments]
    done = subprocess.run(command, input=told, capture_output=True, check=False, timeout=LONG)
    assert done.returncode == 0, done.stderr
    return done.stdout
