"""Apache Kafka itself, for tests and benchmarks: one broker, jars from Maven Central, up in three seconds.

`PYTHONPATH=tests python -m kit.broker.real` runs one in the foreground and prints its address. It has three
listeners: PLAINTEXT, whose clients may do everything, SASL_PLAINTEXT, where the user `alice` may do what an ACL grants
her, and LINK, the first one again behind a `Proxy`.
Needs Java 17 and, the first time, Maven.
"""

from __future__ import annotations

import atexit
import base64
import fcntl
import functools
import hashlib
import json
import os
import random
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    TopicMetadata,
)

POM = Path(__file__).with_name("pom.xml")
ALICE = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "alice"}
PASSWORD = "alice-secret"
START_SECONDS = 600.0  # on a busy machine; it ends with an error as soon as the process does

_CLASSES, _STORAGE = "classes.jsa", "data"
_QUIET = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")  # that it does not fit costs seconds, not a line in each log
# A shell beside each server waits for its end of a pipe to close, which the system does for a process that is gone.
_SHELL = 'read -r _; kill -9 -- "-$1"; rm -rf -- "$2"'
_NAMED: set[int] = set()  # ports, by this process
_KEEPERS: list[subprocess.Popen[bytes]] = []  # of brokers that outlive this process
_BRIEF = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
# Each thread wakes three times a second to find nothing: of 105 these are 20, and a sixth of what an idle broker takes.
_FEW_THREADS = "num.network.threads=1\nnum.io.threads=2\n"
# Of a broker that nobody kills: that it lives is most of what an idle one has to say, and its controller to hear.
_SELDOM_HEARD = "broker.heartbeat.interval.ms=3000\nbroker.session.timeout.ms=18000\n"

# A killed broker cannot register again before its old session has ended: 9 seconds by default. Members of a group that
# are killed are missed after 45, and a change is heard of with the next heartbeat. A controller would write an empty
# record twice a second: half of what an idle broker computes. Retention would take records that say they are old, half
# a minute after the broker's start and every five from there on.
_PROPERTIES = """\
process.roles={roles}
node.id={node}
{quorum}
listeners=PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{sasl},LINK://127.0.0.1:{behind}{others}{controls}
advertised.listeners=PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{sasl},LINK://127.0.0.1:{link}{others}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,LINK:PLAINTEXT{protocols}
inter.broker.listener.name=PLAINTEXT
sasl.enabled.mechanisms=PLAIN
listener.name.sasl_plaintext.plain.sasl.jaas.config=\
org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="{password}";
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
log.dirs={data}
log.retention.ms=-1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
group.consumer.session.timeout.ms=3000
group.consumer.min.session.timeout.ms=1000
group.consumer.heartbeat.interval.ms=200
group.consumer.min.heartbeat.interval.ms=100
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
message.max.bytes=67108864
metadata.max.idle.interval.ms=0
{more}
"""


def kafka_version() -> str:
    """The version that pom.xml names."""
    found = re.search(r"<artifactId>kafka_2\.13</artifactId>\s*<version>([^<]+)</version>", POM.read_text())
    assert found, POM
    return found.group(1)


def missing() -> str | None:
    """Why no broker can run on this machine, or None."""
    if shutil.which("java") is None:
        return "no `java` on the PATH; Apache Kafka 4 needs Java 17 or newer"
    if not _ready(_jars_dir()) and shutil.which("mvn") is None:
        return f"no `mvn` on the PATH to bring Kafka's jars into {_jars_dir()}"
    return None


def jars() -> Path:
    """The folder of Kafka's jars, filled by Maven where it is not there yet (DALI_FEED_KAFKA_DIR moves it)."""
    folder = _jars_dir()
    return folder if _ready(folder) else brought(POM, folder)


def brought(pom: Path, folder: Path) -> Path:
    """The jars that a pom.xml names, brought into a folder by Maven."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as work:
        shutil.copy(pom, work)  # Maven writes beside its pom
        command = ["mvn", "-B", "-q", "-f", f"{work}/pom.xml", "dependency:copy-dependencies"]
        command += ["-DincludeScope=runtime", f"-DoutputDirectory={work}/jars"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            msg = f"Maven could not bring the jars of {folder.name}:\n{done.stdout}{done.stderr}"
            raise RuntimeError(msg)
        shutil.rmtree(folder, ignore_errors=True)
        Path(work, "jars").rename(folder)  # whole or not at all
    return folder


def cache() -> Path:
    """The folder of what is brought or made once on a machine."""
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "dali_feed")


def _jars_dir() -> Path:
    return Path(os.environ.get("DALI_FEED_KAFKA_DIR", cache() / f"kafka-{kafka_version()}"))


def _ready(folder: Path) -> bool:
    return any(folder.glob(f"kafka_2.13-{kafka_version()}.jar"))


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens on, below those that the system gives to whoever asks for any.

    Between this look and the broker's own bind nobody is given them, then: not by this function either, which names
    no port twice. Of several workers of one run of the tests each looks at ports that are no other's; two runs that
    look here at once find the same ones seldom enough.
    """
    worker, workers = os.environ.get("PYTEST_XDIST_WORKER", "gw0"), os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")
    own = range(15_000 + int(worker.removeprefix("gw")), 32_000, int(workers))
    held: dict[int, socket.socket] = {}
    while len(held) < count:
        port = random.choice(own)
        if port in _NAMED:
            continue
        tried = socket.socket()
        try:
            tried.bind(("127.0.0.1", port))
        except OSError:
            tried.close()
            continue
        held[port] = tried
    for each in held.values():
        each.close()
    _NAMED.update(held)
    return list(held)


class Beside:
    """Of a process that leads a group of its own: when we have ended, that is killed and `folder` removed."""

    def __init__(self, process: subprocess.Popen[Any], folder: Path) -> None:
        words = ["sh", "-c", _SHELL, "sh", str(process.pid), str(folder)]
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._shell = subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True, **quiet)

    def let_go(self) -> None:
        """Of a process that has ended."""
        self._shell.kill()
        self._shell.communicate()


# What brokers begin with is made once on a machine: formatted storage, and Java's archive of the classes they load. A
# broker starts with half of the CPU seconds then, and without a process of Java that formats its storage. Java itself
# goes on without an archive that does not fit its version, its class path or the jars' times.


@functools.cache
def java_version() -> str:
    """What this machine's Java says of itself."""
    return subprocess.run(["java", "-version"], capture_output=True, text=True, check=True).stderr


def _begun() -> Path:
    """The folder of what is kept, for these jars, this Java and properties; who comes first makes it, others wait."""
    place, found = cache(), jars()
    key = [str(found.resolve()), str(found.stat().st_mtime_ns), java_version(), _PROPERTIES]
    folder = place / f"{found.name}-begun-{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}"
    if folder.is_dir():
        return folder
    place.mkdir(parents=True, exist_ok=True)
    with (place / f"{found.name}-begun.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # left when its holder ends, however it does
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=place) as work:
                made = Path(work, "made")
                made.mkdir()
                with RealBroker("256m", brief=True, first=made) as broker:
                    broker.create("first")
                    broker._end(signal.SIGTERM, START_SECONDS)  # it writes the archive now
                made.rename(folder)  # whole or not at all
    return folder


def archived() -> list[str]:
    """Options of Java's for a class path that begins with Kafka's jars: classes as they were archived."""
    classes = _begun() / _CLASSES
    return [f"-XX:SharedArchiveFile={classes}", *_QUIET] if classes.is_file() else []  # where it could be made


class Cluster:
    """A Kafka that runs already, with what a test does to it."""

    def __init__(self, servers: str) -> None:
        self.servers = servers
        self._client: AdminClient | None = None

    @property
    def admin(self) -> AdminClient:
        """An admin client."""
        if self._client is None:
            options: dict[str, str | int | float] = {"log_level": 0, "reconnect.backoff.max.ms": 200}
            self._client = AdminClient({"bootstrap.servers": self.servers, **options})
        return self._client

    def create(self, topic: str, partitions: int = 1, config: dict[str, str] | None = None, replicas: int = 1) -> None:
        """Make a topic and wait until it is there with all its partitions."""
        self.admin.create_topics([NewTopic(topic, partitions, replicas, config=config or {})])[topic].result(60)
        self._until(lambda found: len(found[topic].partitions) == partitions, topic)

    def delete(self, topic: str) -> None:
        """Delete a topic and wait until it is gone."""
        self.admin.delete_topics([topic])[topic].result(60)
        self._until(lambda found: topic not in found)

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Drop the records below offset `before`."""
        for each in self.admin.delete_records([TopicPartition(topic, partition, before)]).values():
            each.result(60)

    def allow(self, topic: str, operation: AclOperation, user: str = "alice") -> None:
        """Give a user a right on a topic."""
        pattern, permission = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
        rule = AclBinding(ResourceType.TOPIC, topic, pattern, f"User:{user}", "*", operation, permission)
        for made in self.admin.create_acls([rule]).values():
            made.result(30)

    def _until(self, wanted: Callable[[dict[str, TopicMetadata]], bool], of: str | None = None) -> None:
        deadline = time.monotonic() + 60
        while not wanted(self.admin.list_topics(of, timeout=60).topics):
            if time.monotonic() > deadline:
                msg = f"{self.servers}: its list of topics did not follow within 60 s"
                raise TimeoutError(msg)


@dataclass(frozen=True, slots=True)
class Seat:
    """A broker's place in a cluster whose brokers are all controllers.

    ports  of their controllers, by node from 1 on
    """

    node: int
    ports: tuple[int, ...]
    cluster_id: str


class RealBroker(Cluster):
    """One Apache Kafka broker in a process group of its own; killed at exit. A context manager.

    joins      a broker, of whose cluster it is the second node; the first stays its controller
    seat       or its place among equals: see test_kafka_cluster.py
    brief      not worth what Java's second compiler costs: it takes five seconds of CPU less to start, and gives less
               of what is measured
    listeners  further ones: name -> (port of 127.0.0.1, protocol)
    more       further lines of its properties
    first      the first on a machine: it leaves here what later ones begin with
    """

    def __init__(
        self,
        heap: str = "512m",
        joins: RealBroker | None = None,
        *,
        seat: Seat | None = None,
        brief: bool = False,
        listeners: Mapping[str, tuple[int, str]] | None = None,
        more: str = "",
        first: Path | None = None,
    ) -> None:
        self._plain, self._sasl, self._behind, self._link, own = free_ports(5)
        self._control: int = own if joins is None else joins._control
        self._cluster_id: str = cluster_id() if joins is None else joins._cluster_id
        quorum, node = f"controller.quorum.voters=1@127.0.0.1:{self._control}", 1 if joins is None else 2
        if seat is not None:
            self._control, self._cluster_id, node = seat.ports[seat.node - 1], seat.cluster_id, seat.node
            own = self._control
            voters = ",".join(f"{n}@127.0.0.1:{port}" for n, port in enumerate(seat.ports, 1))
            quorum = f"controller.quorum.voters={voters}"
        super().__init__(f"127.0.0.1:{self._plain}")
        self.sasl_servers = f"127.0.0.1:{self._sasl}"
        self.link_servers = f"127.0.0.1:{self._link}"
        self._options = [f"-Xmx{heap}", *(_BRIEF if brief else ("-Xms256m", "-XX:+UseG1GC"))]
        self.home = Path(tempfile.mkdtemp(prefix="dali_feed-kafka-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._properties = self.home / "server.properties"
        self._properties.write_text(
            _PROPERTIES.format(
                roles="broker,controller" if joins is None else "broker",
                node=node,
                quorum=quorum,
                plain=self._plain,
                sasl=self._sasl,
                behind=self._behind,
                link=self._link,
                controls=f",CONTROLLER://127.0.0.1:{own}" if joins is None else "",
                others="".join(f",{name}://127.0.0.1:{port}" for name, (port, _) in (listeners or {}).items()),
                protocols="".join(f",{name}:{protocol}" for name, (_, protocol) in (listeners or {}).items()),
                data=self.home / "data",
                password=PASSWORD,
                more=(_FEW_THREADS if brief else "") + more,
            )
        )
        atexit.register(self.close)
        begun = None if first is not None else _begun()
        if begun is None:
            self._format()
        else:
            self._options += archived()
            self._copy_storage(begun / _STORAGE, node)
        if first is not None:
            shutil.copytree(self.home / "data", first / _STORAGE)
            self._options += [f"-XX:ArchiveClassesAtExit={first / _CLASSES}", *_QUIET]  # written when it is stopped

    def _copy_storage(self, kept: Path, node: int) -> None:
        """The kept storage as ours: the node, the cluster's id, and an id of the folder's own."""
        shutil.copytree(kept, self.home / "data")
        meta = self.home / "data" / "meta.properties"
        text = meta.read_text()
        for name, value in {"node.id": node, "cluster.id": self._cluster_id, "directory.id": cluster_id()}.items():
            text, found = re.subn(rf"(?m)^{re.escape(name)}=.*$", f"{name}={value}", text)
            assert found == 1, (name, text)
        meta.write_text(text)

    def _format(self) -> None:
        command = self._java("kafka.tools.StorageTool", "format", "-t", self._cluster_id, "-c")
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            msg = f"Kafka's storage could not be formatted:\n{done.stdout}{done.stderr}"
            raise RuntimeError(msg)

    def _java(self, *main: str) -> list[str]:
        return ["java", *self._options, "-Djava.awt.headless=true", "-cp", f"{jars()}/*", *main, str(self._properties)]

    @property
    def link_ports(self) -> tuple[int, int, Path]:
        """For a `Proxy`: where the clients of `link_servers` connect to, where that must lead, and whose turn it is."""
        return self._link, self._behind, self.home / "link.turn"

    @property
    def pid(self) -> int | None:
        """Process id of the running broker."""
        return self._process.pid if self._process else None

    def start(self) -> Self:
        """Start it and wait until it answers."""
        with (self.home / "log").open("ab") as log:
            self._process = subprocess.Popen(self._java("kafka.Kafka"), stdout=log, stderr=log, start_new_session=True)
        self._beside = Beside(self._process, self.home)
        deadline = time.monotonic() + START_SECONDS
        while True:
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                msg = f"Kafka did not come up in {START_SECONDS:.0f} s:\n{(self.home / 'log').read_text()[-4000:]}"
                raise RuntimeError(msg)
            try:
                if self.admin.list_topics(timeout=1).brokers:
                    return self
            except KafkaException:
                continue  # list_topics itself waited its second

    def kill(self) -> None:
        """End it with SIGKILL, as a power cut would."""
        self._end(signal.SIGKILL, 10)

    def _end(self, how: signal.Signals, seconds: float) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        try:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, how)
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)
        finally:
            self._beside.let_go()

    def close(self) -> None:
        """Kill it and remove its data. Safe to call twice."""
        self.kill()
        self._client = None
        shutil.rmtree(self.home, ignore_errors=True)
        atexit.unregister(self.close)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class SharedBroker(RealBroker):
    """The one of a run of tests, whoever of its processes comes first: it ends when the process `run` has ended.

    folder  of that run; later ones find there where it is
    """

    def __init__(self, folder: Path, run: int) -> None:
        place, log = folder / "broker.json", folder / "broker.log"
        with (folder / "broker.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not place.exists():
                with log.open("wb") as said:
                    words = [sys.executable, "-m", "kit.broker.real", str(place), str(run)]
                    keeper = subprocess.Popen(words, stdout=said, stderr=said, start_new_session=True)
                while not place.exists():
                    if keeper.poll() is not None:
                        raise RuntimeError(log.read_text())
                    time.sleep(0.05)
                _KEEPERS.append(keeper)  # Python warns of one that runs when nobody holds it
        at = json.loads(place.read_text())
        super(RealBroker, self).__init__(at["servers"])
        self.home = Path(at["home"])
        self.sasl_servers, self.link_servers = at["sasl"], at["link"]
        self._link, self._behind = at["ports"]
        _NAMED.add(self._link)


def _keep(place: Path, run: int) -> None:
    """Begin one, say where it is, and wait for the end of a process."""
    with RealBroker(brief=True, more=_SELDOM_HEARD) as broker:
        at = {"servers": broker.servers, "sasl": broker.sasl_servers, "link": broker.link_servers}
        begun = place.with_suffix(".begun")
        begun.write_text(
            json.dumps({**at, "home": str(broker.home), "pid": broker.pid, "ports": broker.link_ports[:2]})
        )
        begun.rename(place)  # whole or not at all
        select.select([os.pidfd_open(run)], [], [])


def cluster_id() -> str:
    """An id for a new cluster."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A", 1)


if sys.argv[1:] and __name__ == "__main__":
    _keep(Path(sys.argv[1]), int(sys.argv[2]))
elif __name__ == "__main__":
    with RealBroker() as running:
        print(f"Apache Kafka {kafka_version()} at {running.servers} (SASL: {running.sasl_servers})", flush=True)
        try:
            signal.pause()
        except KeyboardInterrupt:
            print("stopping")
