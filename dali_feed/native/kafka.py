"""kafka.c from Python: a partition's own queue, whose records go into rows without Python per record.

Here is what C is told, with its layout, and nothing of what it is used for. Every pointer that is given to C belongs to
an object that its caller keeps.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from typing import Any, NamedTuple

from numpy.typing import NDArray

from dali_feed.native.library import library

DONE, EMPTY, LOOK, ROOM, EVENT = range(5)  # why `Queue.take` came back, see dali_feed_kafka_take
MOST_HEADERS = 19

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


class _Partition(ctypes.Structure):
    """rd_kafka_topic_partition_t, as far as it is looked at."""

    _fields_ = (("topic", ctypes.c_char_p), ("partition", ctypes.c_int32), ("offset", _Int64))


class _Source(ctypes.Structure):
    _fields_ = (("queue", _Pointer), ("event", _Pointer), ("message", _Pointer))


class RowsInC(ctypes.Structure):
    """rows_t; see kafka.c."""

    _fields_ = (
        *((name, _Pointer if name == "memory" else _Int64) for name in ("memory", "room", "filled", "number")),
        *((name, _Int64) for name in ("rows", "shift")),
        *((name, _Pointer) for name in ("of", "at", "size")),
        *((name, _Int64) for name in ("value", "key", "headers", "claims")),
        *((name, _Pointer) for name in ("names", "times", "taken")),
    )


class RunInC(ctypes.Structure):
    """run_t; see kafka.c."""

    _fields_ = tuple((name, _Int64) for name in ("want", "stop", "bytes", "need"))


class Head(NamedTuple):
    """What stands at the head of a queue and is no record: its code, its words, whether it is fatal, and where."""

    code: int
    text: str
    fatal: bool
    partition: int
    offset: int


class Functions:
    """The library, told where librdkafka's functions are, and librdkafka itself."""

    def __init__(self, own: ctypes.CDLL, librdkafka: ctypes.CDLL) -> None:
        self.own, self.librdkafka = own, librdkafka
        result = [ctypes.cast(getattr(librdkafka, name), _Pointer).value for name in _FUNCTIONS]
        own.dali_feed_kafka_newest.restype = own.dali_feed_kafka_open.restype = _Pointer
        own.dali_feed_kafka_open.argtypes = (_Pointer, ctypes.c_char_p, ctypes.c_int32)
        own.dali_feed_kafka_functions.argtypes = (ctypes.POINTER(_Pointer),)
        source = ctypes.POINTER(_Source)
        own.dali_feed_kafka_take.argtypes = (source, ctypes.POINTER(RunInC), ctypes.POINTER(RowsInC), ctypes.c_int)
        for each in (own.dali_feed_kafka_skip, own.dali_feed_kafka_close):
            each.argtypes, each.restype = (source,), None
        for name in ("error", "error_string", "error_is_fatal", "topic_partition"):
            getattr(librdkafka, f"rd_kafka_event_{name}").argtypes = (_Pointer,)
        librdkafka.rd_kafka_event_error_string.restype = ctypes.c_char_p
        librdkafka.rd_kafka_event_topic_partition.restype = ctypes.POINTER(_Partition)
        librdkafka.rd_kafka_topic_partition_destroy.argtypes = (ctypes.POINTER(_Partition),)
        own.dali_feed_kafka_functions((_Pointer * len(result))(*result))


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
    result: int | None = own.own.dali_feed_kafka_newest()
    return result


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
        result: int = self._own.own.dali_feed_kafka_take(self._at, run, rows, milliseconds)
        return result

    @property
    def waits(self) -> bool:
        """Whether a record or an error is at the head."""
        return bool(self._source.event)

    def head(self) -> Head:
        """What stands at the head, where that is no record; code 0 where it is no error either."""
        event, lib = self._source.event, self._own.librdkafka
        code, fatal = lib.rd_kafka_event_error(event), bool(lib.rd_kafka_event_error_is_fatal(event))
        text = (lib.rd_kafka_event_error_string(event) or b"").decode(errors="replace")
        about, where = lib.rd_kafka_event_topic_partition(event), (-1, -1)
        if about:
            where = about.contents.partition, about.contents.offset
            lib.rd_kafka_topic_partition_destroy(about)
        return Head(code, text, fatal, *where)

    def skip(self) -> None:
        """The head, where there is one, has been dealt with, or is not wanted."""
        if self._source.event:
            self._own.own.dali_feed_kafka_skip(self._at)

    def close(self) -> None:
        """Give it back. Safe to call twice; nothing is done in a child of the process that made it."""
        if self._source.queue and self._pid == os.getpid():
            self._own.own.dali_feed_kafka_close(self._at)

    __del__ = close


def address(memory: NDArray[Any] | memoryview) -> int:
    """Where an array begins, or memory that can be written, of one byte or more."""
    if isinstance(memory, memoryview):
        return ctypes.addressof(ctypes.c_char.from_buffer(memory))
    result: int = memory.ctypes.data
    return result
