"""kafka.c from Python: a partition's own queue, whose records go into rows without Python per record.

Here is what C is told, with its layout, and nothing of what it is used for. Every pointer that is given to C belongs to
an object that its caller keeps.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from typing import Any

from numpy.typing import NDArray

from dali_feed.native.library import library

__all__ = [
    "EMPTY",
    "LOOK",
    "MOST_HEADERS",
    "NO_HEADER",
    "ROOM",
    "Functions",
    "MemoryInC",
    "Queue",
    "RowsInC",
    "RunInC",
    "address",
    "functions",
    "newest_client",
    "plugin",
]

DONE, EMPTY, LOOK, ROOM, THINK = range(5)  # why `Queue.take` came back, see dali_feed_kafka_take
NO_HEADER, NO_BYTES = -1, -2  # in the place of a memory: none of that name, one that holds null
MOST_HEADERS = 16

_FUNCTIONS = (
    "rd_kafka_conf_interceptor_add_on_new",
    "rd_kafka_queue_get_partition",
    "rd_kafka_queue_forward",
    "rd_kafka_queue_destroy",
    "rd_kafka_queue_poll",
    "rd_kafka_event_type",
    "rd_kafka_event_message_next",
    "rd_kafka_event_destroy",
    "rd_kafka_message_headers",
    "rd_kafka_header_get_all",
    "rd_kafka_message_timestamp",
)
_Pointer, _Int64 = ctypes.c_void_p, ctypes.c_int64


class _Message(ctypes.Structure):
    """rd_kafka_message_t."""

    _fields_ = (
        ("error", ctypes.c_int32),
        ("topic", _Pointer),
        ("partition", ctypes.c_int32),
        ("payload", _Pointer),
        ("len", ctypes.c_size_t),
        ("key", _Pointer),
        ("key_len", ctypes.c_size_t),
        ("offset", _Int64),
        ("private", _Pointer),
    )


class _Partition(ctypes.Structure):
    """rd_kafka_topic_partition_t, as far as it is looked at."""

    _fields_ = (("topic", ctypes.c_char_p), ("partition", ctypes.c_int32), ("offset", _Int64))


class _Source(ctypes.Structure):
    _fields_ = (("queue", _Pointer), ("event", _Pointer), ("message", ctypes.POINTER(_Message)))


class MemoryInC(ctypes.Structure):
    """memory_t; see kafka.c."""

    _fields_ = (("at", _Pointer), ("room", _Int64), ("number", _Int64))


class RowsInC(ctypes.Structure):
    """rows_t; see kafka.c."""

    _fields_ = (
        *((name, _Pointer if name == "memory" else _Int64) for name in ("memory", "room", "filled", "number")),
        ("next", ctypes.POINTER(MemoryInC)),
        *((name, _Int64) for name in ("spare", "rows", "shift")),
        *((name, _Pointer) for name in ("of", "at", "size")),
        *((name, _Int64) for name in ("wants_value", "wants_key", "headers")),
        *((name, _Pointer) for name in ("names", "label", "labels", "times", "taken")),
    )


class RunInC(ctypes.Structure):
    """run_t; see kafka.c."""

    _fields_ = tuple((name, _Int64) for name in ("want", "stop", "bytes", "need"))


class QueueHead:
    """What waits at the head of a queue: a record, of which it says what rows ask a `Message` for, or an error.

    Attributes:
        error: its code; 0 of a record.
        said, fatal: of an error.
        partition, offset: where.
    """

    def __init__(self, partition: int, offset: int, error: int = 0, said: str = "", *, fatal: bool = False) -> None:
        self.partition, self.offset = partition, offset
        self.error, self.said, self.fatal = error, said, fatal
        self._value: bytes | None = None
        self._key: bytes | None = None
        self._headers: list[tuple[str, bytes | None]] = []
        self._time = 0, -1

    @classmethod
    def of(cls, message: Any, librdkafka: ctypes.CDLL) -> QueueHead:
        """A record, whose bytes are copied."""
        it, kind = message.contents, ctypes.c_int()
        found = cls(it.partition, it.offset)
        time = librdkafka.rd_kafka_message_timestamp(message, kind)
        found._value, found._key = _bytes(it.payload, it.len), _bytes(it.key, it.key_len)
        found._time = kind.value, time
        headers, name, value, size = _Pointer(), ctypes.c_char_p(), _Pointer(), ctypes.c_size_t()
        if not librdkafka.rd_kafka_message_headers(message, headers):
            while not librdkafka.rd_kafka_header_get_all(headers, len(found._headers), name, value, size):
                text = (name.value or b"").decode(errors="replace")
                found._headers.append((text, _bytes(value.value, size.value)))
        return found

    def value(self) -> bytes | None:
        """Its value."""
        return self._value

    def key(self) -> bytes | None:
        """Its key."""
        return self._key

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        """Its headers, in order."""
        return self._headers or None

    def timestamp(self) -> tuple[int, int]:
        """Its kind, and milliseconds since 1970."""
        return self._time

    def __len__(self) -> int:
        return len(self._value or b"")


class Functions:
    """The library, told where librdkafka's functions are, and librdkafka itself."""

    def __init__(self, own: ctypes.CDLL, librdkafka: ctypes.CDLL) -> None:
        self.own, self.librdkafka = own, librdkafka
        found = [ctypes.cast(getattr(librdkafka, name), _Pointer).value for name in _FUNCTIONS]
        own.dali_feed_kafka_newest.restype = own.dali_feed_kafka_open.restype = _Pointer
        own.dali_feed_kafka_open.argtypes = (_Pointer, ctypes.c_char_p, ctypes.c_int32)
        own.dali_feed_kafka_functions.argtypes = (ctypes.POINTER(_Pointer),)
        source = ctypes.POINTER(_Source)
        own.dali_feed_kafka_take.argtypes = (source, ctypes.POINTER(RunInC), ctypes.POINTER(RowsInC), ctypes.c_int)
        for each in (own.dali_feed_kafka_skip, own.dali_feed_kafka_close):
            each.argtypes, each.restype = (source,), None
        message = ctypes.POINTER(_Message)
        for name in ("error", "error_string", "error_is_fatal", "topic_partition"):
            getattr(librdkafka, f"rd_kafka_event_{name}").argtypes = (_Pointer,)
        librdkafka.rd_kafka_event_error_string.restype = ctypes.c_char_p
        librdkafka.rd_kafka_event_topic_partition.restype = ctypes.POINTER(_Partition)
        librdkafka.rd_kafka_topic_partition_destroy.argtypes = (ctypes.POINTER(_Partition),)
        librdkafka.rd_kafka_message_timestamp.argtypes = (message, ctypes.POINTER(ctypes.c_int))
        librdkafka.rd_kafka_message_timestamp.restype = _Int64
        librdkafka.rd_kafka_message_headers.argtypes = (message, ctypes.POINTER(_Pointer))
        pointers = (ctypes.POINTER(ctypes.c_char_p), ctypes.POINTER(_Pointer), ctypes.POINTER(ctypes.c_size_t))
        librdkafka.rd_kafka_header_get_all.argtypes = (_Pointer, ctypes.c_size_t, *pointers)
        own.dali_feed_kafka_functions((_Pointer * len(found))(*found))


@cache
def functions(librdkafka: str) -> Functions | None:
    """kafka.c bound to the librdkafka of this path; None where either cannot be had."""
    own = library()
    if own is None:
        return None
    try:
        return Functions(own, ctypes.CDLL(librdkafka))
    except (OSError, AttributeError):  # not there, or another librdkafka that lacks a function
        return None


def plugin(own: Functions) -> str:
    """The path for `plugin.library.paths` of a client whose handle `newest_client` is to give."""
    return os.fspath(own.own._name)


def newest_client(own: Functions) -> int | None:
    """The handle of the client that this thread made last, given once."""
    found: int | None = own.own.dali_feed_kafka_newest()
    return found


class Queue:
    """A partition's own queue. To be closed before its client is; used by one thread, in one process.

    keeps  the object that ends the client: one that nobody closes is not collected before its queue
    """

    def __init__(self, own: Functions, client: int, topic: str, partition: int, *, keeps: object = None) -> None:
        self._own, self._source, self._pid, self._keeps = own, _Source(), os.getpid(), keeps
        self._at = ctypes.byref(self._source)
        self._source.queue = own.own.dali_feed_kafka_open(client, topic.encode(), partition)

    def __bool__(self) -> bool:
        """Whether there is one."""
        return bool(self._source.queue)

    def take(self, run: RunInC, rows: RowsInC, milliseconds: int) -> int:
        """Fill rows; see dali_feed_kafka_take."""
        found: int = self._own.own.dali_feed_kafka_take(self._at, run, rows, milliseconds)
        return found

    @property
    def waits(self) -> bool:
        """Whether a record or an error is at the head."""
        return bool(self._source.event)

    @property
    def offset(self) -> int | None:
        """Of the record that waits at the head; None of an error."""
        message = self._source.message
        return message.contents.offset if message else None

    def head(self) -> QueueHead:
        """What waits at the head."""
        event, lib = self._source.event, self._own.librdkafka
        if self._source.message:
            return QueueHead.of(self._source.message, lib)
        code, fatal = lib.rd_kafka_event_error(event), bool(lib.rd_kafka_event_error_is_fatal(event))
        said = (lib.rd_kafka_event_error_string(event) or b"").decode(errors="replace")
        about, where = lib.rd_kafka_event_topic_partition(event), (-1, -1)
        if about:
            where = about.contents.partition, about.contents.offset
            lib.rd_kafka_topic_partition_destroy(about)
        return QueueHead(*where, code, said, fatal=fatal)

    def skip(self) -> None:
        """The head, where there is one, has been dealt with, or is not wanted."""
        if self._source.event:
            self._own.own.dali_feed_kafka_skip(self._at)

    def close(self) -> None:
        """Give it back. Safe to call twice; nothing is done in a child of the process that made it."""
        if self._source.queue and self._pid == os.getpid():
            self._own.own.dali_feed_kafka_close(self._at)

    __del__ = close


def _bytes(at: int | None, size: int) -> bytes | None:
    return None if at is None else ctypes.string_at(at, size)


def address(memory: NDArray[Any] | memoryview) -> int:
    """Where an array begins, or memory that can be written, of one byte or more."""
    if isinstance(memory, memoryview):
        return ctypes.addressof(ctypes.c_char.from_buffer(memory))
    found: int = memory.ctypes.data
    return found
