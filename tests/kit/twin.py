"""GPUs on the CPU that do not forgive: streams whose work is done late, memory that is poisoned, order that is checked.

The law: what real GPUs do now and then, these do always. Work on a stream is done when somebody waits for it, or, with
a seed, in an order that the events allow. Memory is poisoned when it is taken and when it is let go, and used again at
once in the order of its stream. To read, write or let go of memory that other work on another stream has written or
still reads, without an event or a wait between, is an error that names both places, whether it did harm or not.

Here is the machine: streams, events, memory, faults. `twin_torch` puts it in the place of `torch.cuda`, and
`twin_dali` in that of DALI's GPU backend and of CuPy, so that the product's own side of the seam runs on it.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import os
import random
import sys
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

__all__ = ["CAPTURED", "FREED", "ILLEGAL", "TAKEN", "Block", "Event", "Lease", "Machine", "Stream"]

TAKEN, FREED = 0xA5, 0xDD  # what memory is full of
UNIT = 512  # bytes of which an allocation is a multiple
PINNED = "page-locked memory"
STREAMS = 32  # of a priority on a device, before torch gives the first one again

ILLEGAL = (
    "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be asynchronously reported at some"
    " other API call, so the stacktrace below might be incorrect."
)
CAPTURED = "CUDA error: operation not permitted when stream is capturing"
INVALIDATED = "CUDA error: operation failed due to a previous error during capture"

_OURS = tuple(os.path.join(os.path.dirname(__file__), name) for name in ("twin.py", "twin_torch.py", "twin_dali.py"))
_SITE = os.sep + "site-packages" + os.sep
_PLAIN = (os.sep + "contextlib.py", os.sep + "threading.py", os.sep + "weakref.py")

Recorded = tuple[Callable[[], object] | None, Sequence["Block"], Sequence["Block"]]  # work, what it reads and writes
Clock = dict[int, int]  # by stream: up to which of its work something comes behind


def place() -> str:
    """The line of the product or the test that asked for it."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        name = _shown(frame.f_code.co_filename)
        if name:
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return "nowhere"


@functools.cache
def _shown(file: str) -> str:
    """The end of a path of the product's or a test's; "" of any other."""
    if file in _OURS or _SITE in file or file.endswith(_PLAIN) or file[0] == "<":
        return ""
    return os.sep.join(file.split(os.sep)[-2:])


def join(clock: Clock, other: Clock) -> None:
    """Come behind both."""
    for stream, number in other.items():
        if clock.get(stream, 0) < number:
            clock[stream] = number


@dataclass(slots=True)
class _Work:
    number: int
    run: Callable[[], object] | None
    behind: tuple[Stream, int] | None = None  # work of another stream that is done first
    long: bool = False  # done only when somebody waits for it


class Stream:
    """A queue of work. Its handle is what C calls it by."""

    def __init__(self, machine: Machine, device: int, number: int, name: str) -> None:
        self.machine, self.device, self.number, self.name = machine, device, number, name
        self.clock: Clock = {}
        self.last = self.done = 0
        self.queue: deque[_Work] = deque()
        self.graph: list[Recorded] | None = None  # what a capture has of it so far

    def __repr__(self) -> str:
        return f"{self.name} of cuda:{self.device}"


@dataclass(slots=True)
class Event:
    """What it stands behind, once it is recorded."""

    stream: Stream | None = None
    number: int = 0
    clock: Clock = field(default_factory=dict)

    @property
    def device(self) -> int | None:
        """Of its stream."""
        return None if self.stream is None else self.stream.device


@dataclass(slots=True)
class _Access:
    number: int
    place: str


class Block:
    """Some memory of a device, of the pool of one stream. `address` can be read by no host code."""

    __slots__ = ("address", "bytes", "device", "freed", "owner", "reads", "recorded", "size", "stream", "writes")

    def __init__(self, address: int, size: int, stream: Stream, owner: str) -> None:
        self.address, self.size, self.stream, self.owner = address, size, stream, owner
        self.device = stream.device
        self.bytes = torch.empty(size, dtype=torch.uint8)
        self.reads: dict[Stream, _Access] = {}
        self.writes: dict[Stream, _Access] = {}
        self.recorded: list[Stream] = []
        self.freed = ""

    def elements(self, dtype: torch.dtype, size: Sequence[int], stride: Sequence[int], offset: int = 0) -> torch.Tensor:
        """Its bytes as an array, for work that is being done; `offset` in bytes."""
        first = offset // dtype.itemsize
        return torch.empty(0, dtype=dtype).set_(self.bytes.untyped_storage(), first, tuple(size), tuple(stride))


class Lease:
    """Whoever has it keeps the memory; the last one lets it go."""

    __slots__ = ("block", "machine")

    def __init__(self, machine: Machine, block: Block) -> None:
        self.machine, self.block = machine, block

    def __del__(self) -> None:
        try:
            self.machine.dropped.append((self.block, place()))  # not now: a destructor runs anywhere
        except TypeError:  # the interpreter ends
            return


@dataclass(slots=True)
class Capture:
    """A CUDA graph that is being captured: the mode, the thread, and whether something has broken it."""

    mode: str
    thread: int
    stream: Stream
    broken: str = ""
    leases: list[Lease] = field(default_factory=list)


class _Mine(threading.local):
    """What is a thread's own."""

    def __init__(self) -> None:
        self.device = 0
        self.streams: dict[int, Stream] = {}
        self.relaxed = False


class Machine:
    """Some GPUs.

    memory  bytes that each has
    seed    of the order of work; None: nothing is done before somebody waits

    errors   what was done wrong, in words
    calls    how often each kind of call was made, by kind
    waits    (kind, thread, place) of each time that the host waited for a device: "event", "stream", "device", "copy"
    touched  by device where a first call opened its context, and how many calls there were
    """

    def __init__(self, devices: int = 1, memory: int = 1 << 30, seed: int | None = None) -> None:
        self.devices, self.memory = devices, memory
        self.random = None if seed is None else random.Random(seed)
        self.lock = threading.RLock()
        self.errors: list[str] = []
        self.calls: Counter[str] = Counter()
        self.waits: list[tuple[str, str, str]] = []
        self.touched: defaultdict[int, Counter[str]] = defaultdict(Counter)
        self.dropped: deque[tuple[Block, str]] = deque()
        self.mine = _Mine()
        self.host: Clock = {}  # what somebody has waited for
        self.streams: list[Stream] = []
        self.default = [self.new_stream(device, "the default stream") for device in range(devices)]
        self._turns: dict[tuple[int, int], tuple[list[Stream], Iterator[int]]] = {}
        self.taken = dict.fromkeys(range(devices), 0)  # by somebody, and not let go
        self.cached = dict.fromkeys(range(devices), 0)
        self.peak = dict.fromkeys(range(devices), 0)
        self._free: defaultdict[tuple[str, Stream], list[Block]] = defaultdict(list)
        self._blocks: list[Block] = []  # by address
        self._next = [0x7000_0000_0000 + (device << 40) for device in range(devices)]
        self._faults: defaultdict[str, list[tuple[int, Callable[[], BaseException]]]] = defaultdict(list)
        self.broken: set[int] = set()
        self.captures: list[Capture] = []
        self.pinned: dict[int, int] = {}  # sizes by address
        self.sync_mode = "default"

    # Calls, and what can go wrong with them.

    def call(self, kind: str, device: int | None = None, *, captured: str = "") -> str:
        """Count a call of a kind; raise what a test has planned for it, or what CUDA would; the place of it.

        captured: "unsafe" where it breaks a capture in the global mode, "ours" where it breaks the thread's own.
        """
        at, device = place(), self.mine.device if device is None else device
        with self.lock:
            self.reap()
            self.calls[kind] += 1
            self.touched[device][at] += 1
            if device in self.broken:
                raise torch.AcceleratorError(ILLEGAL)
            for capture in self.captures:
                own = capture.thread == threading.get_ident()
                if captured and not self.mine.relaxed and (own or capture.mode == "global"):
                    capture.broken = f"{kind} at {at}"
                    raise torch.AcceleratorError(CAPTURED)
            for number, error in self._faults[kind]:
                if number == self.calls[kind]:
                    raise error()
        return at

    def fail(self, kind: str, error: Callable[[], BaseException], number: int = 1) -> None:
        """The `number`th call of that kind from now on raises what `error` makes."""
        self._faults[kind].append((self.calls[kind] + number, error))

    def break_down(self, device: int) -> None:
        """From here on every call raises the error that stays; work that was under way has ended."""
        with self.lock:
            self.broken.add(device)
            for stream in self.streams:
                if stream.device == device:
                    stream.queue.clear()
                    stream.done = stream.last
                    join(self.host, stream.clock)

    def error(self, text: str) -> None:
        """Something was done that no GPU promises to survive."""
        self.errors.append(text)

    # Streams and events.

    def new_stream(self, device: int, name: str) -> Stream:
        """One of its own."""
        with self.lock:
            made = Stream(self, device, len(self.streams) + 1, name)
            self.streams.append(made)
            return made

    def pooled_stream(self, device: int, priority: int) -> Stream:
        """As torch has them: 32 of a priority, and then the first one again."""
        with self.lock:
            key = device, min(priority, 0)
            every, turns = self._turns.setdefault(key, ([], itertools.count()))
            turn = next(turns)
            if turn < STREAMS:
                every.append(self.new_stream(device, f"stream {turn}{' at high priority' if priority else ''}"))
            return every[turn % STREAMS]

    def by_handle(self, handle: int) -> Stream:
        """The stream that C calls so; 0 and 1 are the device's default."""
        if handle in (0, 1, 2):
            return self.default[self.mine.device]
        return self.streams[(handle >> 8) - 1]

    def handle(self, stream: Stream) -> int:
        """What C calls it by."""
        return 0 if stream is self.default[stream.device] else stream.number << 8

    def current(self, device: int | None = None) -> Stream:
        """This thread's, on its device or on another."""
        device = self.mine.device if device is None else device
        stream: Stream = self.mine.streams.get(device, self.default[device])
        return stream

    def record(self, event: Event, stream: Stream) -> None:
        """Let the event stand behind all that is in the stream by now."""
        with self.lock:
            self.call("record", stream.device)
            event.stream, event.number = stream, stream.last
            event.clock = {**stream.clock}
            self._wander()

    def wait_event(self, stream: Stream, event: Event) -> None:
        """Let what comes into the stream be done behind the event."""
        with self.lock:
            self.call("wait event", stream.device)
            if event.stream is None:
                return
            join(stream.clock, event.clock)
            stream.last += 1
            stream.queue.append(_Work(stream.last, None, (event.stream, event.number)))
            stream.clock[stream.number] = stream.last

    def passed(self, event: Event) -> bool:
        """Whether all behind which it stands is done; the host has seen so then."""
        with self.lock:
            self.call("query", event.device, captured="unsafe")
            if event.stream is not None and event.stream.done < event.number:
                return False
            join(self.host, event.clock)
            return True

    def synchronize(self, event: Event, kind: str = "event") -> None:
        """Have all behind which it stands done."""
        with self.lock:
            at = self.call("synchronize", event.device, captured="unsafe")
            self._waited(kind, at)
            if event.stream is not None:
                self.run_to(event.stream, event.number)
            join(self.host, event.clock)

    def wait_for(self, streams: Sequence[Stream], kind: str) -> None:
        """Have all that is in these streams done."""
        with self.lock:
            at = self.call("synchronize", streams[0].device, captured="unsafe")
            self._waited(kind, at)
            for stream in streams:
                self.run_to(stream, stream.last)
                join(self.host, stream.clock)

    def _waited(self, kind: str, at: str) -> None:
        self.waits.append((kind, threading.current_thread().name, at))

    def enqueue(
        self,
        stream: Stream,
        run: Callable[[], object] | None,
        *,
        reads: Sequence[Block] = (),
        writes: Sequence[Block] = (),
        at: str = "",
        long: bool = False,
        peer: bool = False,
    ) -> None:
        """Put work into a stream, and check that it comes behind all that it must; `peer`: it is of two devices."""
        at = at or place()
        with self.lock:
            self.reap()
            if stream.device in self.broken:  # since the call was counted: another thread's call has broken it
                raise torch.AcceleratorError(ILLEGAL)
            if stream.graph is not None:
                stream.graph.append((run, reads, writes))
                return
            join(stream.clock, self.host)
            for block in {*reads, *writes}:
                self._check(stream, block, at, write=block in writes)
                if block.device != stream.device and not peer:
                    self.error(f"{at}: on cuda:{stream.device} with memory of cuda:{block.device}")
            stream.last += 1
            stream.clock[stream.number] = stream.last
            for block in writes:
                block.writes, block.reads = {stream: _Access(stream.last, at)}, {}
            for block in reads:
                block.reads[stream] = _Access(stream.last, at)
            stream.queue.append(_Work(stream.last, run, long=long))
            self._wander()

    def _check(self, stream: Stream, block: Block, at: str, *, write: bool) -> None:
        if block.freed:
            self.error(f"{at}: {'writes' if write else 'reads'} memory that was let go at {block.freed}")
        for verb, accesses in (("wrote", block.writes), *([("reads", block.reads)] if write else [])):
            for other, access in accesses.items():
                if stream.clock.get(other.number, 0) < access.number:
                    what = "writes" if write else "reads"
                    rule = "no event or wait is between"
                    self.error(f"{at}: {stream} {what} what {other} {verb} at {access.place}; {rule}")

    # Work is done.

    def run_to(self, stream: Stream, number: int) -> None:
        """Do what is in a stream up to there, and what must be done before it."""
        while stream.done < number:
            self._step(stream)

    def _step(self, stream: Stream) -> None:
        work = stream.queue.popleft()
        if work.behind is not None:
            self.run_to(*work.behind)
        if work.run is not None:
            try:
                work.run()
            except Exception as error:  # noqa: BLE001
                self.error(f"work on {stream} failed: {type(error).__name__}: {error}")
        stream.done = work.number

    def _wander(self) -> None:
        """Do some work somewhere, as a GPU does, where there is a seed."""
        if self.random is None:
            return
        for _ in range(self.random.choice((0, 0, 1, 3))):
            ready = [
                each
                for each in self.streams
                if each.queue and not (work := each.queue[0]).long and not (work.behind and self._waits(*work.behind))
            ]
            if not ready:
                return
            self._step(self.random.choice(ready))

    @staticmethod
    def _waits(stream: Stream, number: int) -> bool:
        return stream.done < number

    # Memory.

    def allocate(self, size: int, stream: Stream, owner: str = "torch") -> Lease:
        """Memory of a stream's pool: what was let go there last is used again, at once. Raises torch's error."""
        with self.lock:
            at = self.call("malloc" if owner == "torch" else f"{owner} malloc", stream.device)
            rounded = max(UNIT, -(-size // UNIT) * UNIT)
            pool = self._free[owner, stream]
            fits = [block for block in pool if rounded <= block.size <= 2 * rounded]
            if fits:
                block = fits[-1]
                pool.remove(block)
                self.cached[block.device] -= block.size
            else:
                block = self._new(rounded, stream, owner)
            block.freed, block.recorded = "", []
            self.taken[block.device] += block.size
            self.peak[block.device] = max(self.peak[block.device], self.taken[block.device])
            memory = block.bytes
            self.enqueue(stream, lambda: memory.fill_(TAKEN), writes=[block], at=at)
            lease = Lease(self, block)
            for capture in self.captures:
                if capture.stream is stream:
                    capture.leases.append(lease)
            return lease

    def _new(self, size: int, stream: Stream, owner: str) -> Block:
        device = stream.device
        if stream.graph is None:  # a graph has a pool of its own
            self.call("cudaMalloc", device, captured="unsafe")
        if self.free_bytes(device) < size:
            self.empty_cache(device, owner)
        if self.free_bytes(device) < size:
            raise self.no_memory(size, device, owner)
        block = Block(self._next[device], size, stream, owner)
        self._next[device] += size + UNIT
        bisect.insort(self._blocks, block, key=lambda each: each.address)
        return block

    def no_memory(self, size: int, device: int = 0, owner: str = "torch") -> BaseException:
        """The error of whoever has asked for that much and does not get it."""
        free, total = self.free_bytes(device), self.memory
        if owner != "torch":
            return MemoryError(f"CUDA allocation failed: Can't allocate {size} bytes on device {device}.")
        return torch.OutOfMemoryError(
            f"CUDA out of memory. Tried to allocate {size / 2**20:.2f} MiB. GPU {device} has a total capacity of"
            f" {total / 2**20:.2f} MiB of which {free / 2**20:.2f} MiB is free."
        )

    def free_bytes(self, device: int) -> int:
        """What nobody has taken or keeps."""
        return self.memory - self.taken[device] - self.cached[device]

    def empty_cache(self, device: int, owner: str = "torch") -> None:
        """Give back what an allocator keeps there and nobody uses; it waits for the work that uses it."""
        with self.lock:
            self.reap()
            for (whose, stream), pool in self._free.items():
                if whose == owner and stream.device == device and pool:
                    self.run_to(stream, stream.last)
                    self.cached[device] -= sum(block.size for block in pool)
                    gone = set(map(id, pool))
                    self._blocks = [block for block in self._blocks if id(block) not in gone]
                    pool.clear()

    def at(self, address: int) -> tuple[Block, int] | None:
        """The memory that lies there, and how far in it that is."""
        with self.lock:
            before = bisect.bisect_right(self._blocks, address, key=lambda each: each.address) - 1
            if before >= 0 and address < (block := self._blocks[before]).address + block.size:
                return block, address - block.address
            return None

    def reap(self) -> None:
        """Take back what was let go, and check that no other stream can still be at it."""
        while self.dropped:
            block, at = self.dropped.popleft()
            stream = block.stream
            clock = {**stream.clock}
            join(clock, self.host)
            for verb, accesses in (("write", block.writes), ("read", block.reads)):
                for other, access in accesses.items():
                    if other not in block.recorded and clock.get(other.number, 0) < access.number:
                        self.error(
                            f"{at}: memory of {stream} is let go and used again there, while {other} may still"
                            f" {verb} it, as asked at {access.place}; no event or wait is between"
                        )
            for other in block.recorded:
                join(stream.clock, other.clock)
                stream.last += 1
                stream.queue.append(_Work(stream.last, None, (other, other.last)))
            block.freed = at
            self.taken[block.device] -= block.size
            self.cached[block.device] += block.size
            memory = block.bytes
            stream.last += 1
            stream.clock[stream.number] = stream.last
            stream.queue.append(_Work(stream.last, lambda memory=memory: memory.fill_(FREED)))  # type: ignore[misc]
            block.writes, block.reads = {stream: _Access(stream.last, at)}, {}
            self._free[block.owner, stream].append(block)

    def finish(self) -> None:
        """Do all that is left."""
        with self.lock:
            self.reap()
            for stream in self.streams:
                self.run_to(stream, stream.last)
