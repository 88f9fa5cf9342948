"""A Kafka broker inside this process: librdkafka's own mock cluster, up in milliseconds.

It speaks the real protocol over TCP on 127.0.0.1, so other processes can read from it too. What it does not do:
it keeps 5 MiB per partition and drops the oldest records beyond that (`publish` notices), it delivers the records
of aborted transactions, has no rights and no passwords, and loses everything when it is closed.

The library is the one that confluent_kafka brings; its mock API is reached with ctypes, and a build of it that
does not export that API is a ConfigError.
"""

from __future__ import annotations

import ctypes
import functools
import signal
import threading
import time
from types import TracebackType
from typing import Any, Self

from confluent_kafka import cimpl

from dali_feed.errors import ClosedError, ConfigError, SourceError

PARTITION_BYTES = 5 << 20  # what librdkafka's mock keeps of a partition, message overhead included

_PTR, _STR, _INT = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
_SYMBOLS: dict[str, tuple[Any, list[Any]]] = {
    "rd_kafka_conf_new": (_PTR, []),
    "rd_kafka_conf_set_log_cb": (None, [_PTR, _PTR]),
    "rd_kafka_new": (_PTR, [_INT, _PTR, _STR, ctypes.c_size_t]),
    "rd_kafka_destroy": (None, [_PTR]),
    "rd_kafka_mock_cluster_new": (_PTR, [_PTR, _INT]),
    "rd_kafka_mock_cluster_destroy": (None, [_PTR]),
    "rd_kafka_mock_cluster_bootstraps": (_STR, [_PTR]),
    "rd_kafka_mock_topic_create": (_INT, [_PTR, _STR, _INT, _INT]),
    "rd_kafka_mock_partition_delete_records": (_INT, [_PTR, _STR, ctypes.c_int32, ctypes.c_int64]),
    "rd_kafka_mock_partition_set_leader": (_INT, [_PTR, _STR, ctypes.c_int32, ctypes.c_int32]),
    "rd_kafka_mock_broker_set_down": (_INT, [_PTR, ctypes.c_int32]),
    "rd_kafka_mock_broker_set_up": (_INT, [_PTR, ctypes.c_int32]),
    "rd_kafka_mock_push_request_errors_array": (_INT, [_PTR, ctypes.c_int16, ctypes.c_size_t, _PTR]),
    "rd_kafka_err2str": (_STR, [_INT]),
}
_PRODUCER = 0
_AWAKE = 0.005  # seconds; while the cluster's thread is awake from a wish it may miss the next one, for a second

_running: dict[str, Broker] = {}


@functools.cache
def _library() -> ctypes.CDLL:
    # Symbols of the extension's dependencies resolve through the extension itself, so this finds the bundled
    # librdkafka of a wheel and the system's alike.
    library = ctypes.CDLL(cimpl.__file__)
    missing = [name for name in _SYMBOLS if not hasattr(library, name)]
    if missing:
        raise ConfigError(
            "embedded broker: it needs a librdkafka that exports its mock API; this build of confluent_kafka "
            f"({cimpl.libversion()[0]}, {cimpl.__file__}) lacks {', '.join(missing)}; "
            "install the wheel from PyPI, or use a real broker"
        )
    for name, (result, arguments) in _SYMBOLS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def running_at(servers: str) -> Broker | None:
    """The broker of this process that answers at `servers`, or None."""
    return _running.get(servers)


class Broker:
    """A running embedded cluster; a context manager. Thread-safe.

    servers   bootstrap address, "127.0.0.1:PORT" (several, comma-separated, for several brokers)

    At most 5 MiB are kept per partition (about 45 JPEGs of 110 KB): spread a larger set over more partitions.
    """

    def __init__(self, brokers: int = 1) -> None:
        if brokers < 1:
            raise ConfigError(f"brokers: must be 1 or more; found {brokers}")
        self._library = _library()
        conf = self._library.rd_kafka_conf_new()
        self._library.rd_kafka_conf_set_log_cb(conf, None)
        error = ctypes.create_string_buffer(512)
        self._handle: int | None = self._library.rd_kafka_new(_PRODUCER, conf, error, len(error))
        if not self._handle:
            raise SourceError(f"embedded broker: librdkafka did not start: {error.value.decode()}")
        # Its thread ends for good if a signal interrupts its poll, so it is started with all of them blocked.
        unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self._cluster: int | None = self._library.rd_kafka_mock_cluster_new(self._handle, brokers)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        if not self._cluster:
            self._library.rd_kafka_destroy(self._handle)
            raise SourceError(f"embedded broker: librdkafka could not listen on {brokers} ports of 127.0.0.1")
        self._lock = threading.Lock()
        self.brokers = brokers
        self.servers: str = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()
        _running[self.servers] = self

    def create(self, topic: str, partitions: int = 1) -> None:
        """Make a topic. Raises SourceError where it is there already."""
        self._call("topic_create", f"topic {topic!r}", topic.encode(), partitions, 1)

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Drop the records below offset `before`, as retention would."""
        self._call("partition_delete_records", f"{topic}[{partition}]", topic.encode(), partition, before)

    def down(self, broker: int = 1) -> None:
        """Cut a broker's connections and refuse new ones; brokers count from 1."""
        self._call("broker_set_down", f"broker {broker}", broker)

    def up(self, broker: int = 1) -> None:
        """Let a broker answer again."""
        self._call("broker_set_up", f"broker {broker}", broker)

    def lead(self, topic: str, partition: int, broker: int) -> None:
        """Have a broker lead a partition from now on, as after an election: all brokers hold all records."""
        self._call("partition_set_leader", f"{topic}[{partition}]", topic.encode(), partition, broker)

    def fail_next(self, api: int, errors: list[int]) -> None:
        """Answer the next requests of an API key (1: Fetch, 2: ListOffsets, 3: Metadata) with these error codes."""
        codes = (ctypes.c_int * len(errors))(*errors)
        self._call("push_request_errors_array", f"API {api}", api, len(errors), codes)

    def close(self) -> None:
        """Stop it; all records are gone. Safe to call twice."""
        with self._lock:
            if self._handle is None:
                return
            _running.pop(self.servers, None)
            # Connections end first, in the cluster's own thread: its destructor frees topics before connections, and
            # with clients still connected it crashed once.
            for number in range(1, self.brokers + 1):
                self._library.rd_kafka_mock_broker_set_down(self._cluster, number)
            time.sleep(_AWAKE)
            self._library.rd_kafka_mock_cluster_destroy(self._cluster)
            self._library.rd_kafka_destroy(self._handle)
            self._handle = self._cluster = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<embedded Kafka broker {'closed' if self._handle is None else self.servers}>"

    def _call(self, function: str, subject: str, *arguments: Any) -> None:
        with self._lock:
            if self._cluster is None:
                raise ClosedError(
                    f"embedded broker: {subject}: the broker must be open; it is closed; make another one with broker()"
                )
            code = getattr(self._library, f"rd_kafka_mock_{function}")(self._cluster, *arguments)
        if code:
            msg = f"embedded broker: {subject}: librdkafka refuses: {self._library.rd_kafka_err2str(code).decode()}"
            raise SourceError(msg)


def broker(brokers: int = 1) -> Broker:
    """Start a Kafka cluster in this process and return it; close it, or use it in a `with`.

    It holds at most 5 MiB per partition and drops the oldest beyond; create a topic with enough partitions for
    the set. `Broker` says what else it does not do.

    Raises:
        ConfigError: `brokers` below 1, or a build of librdkafka without its mock API.
    """
    return Broker(brokers)
