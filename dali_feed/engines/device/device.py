"""What a GPU is asked for: the contract of a `Device`, memory that its work still reads, and ranges on a timeline.

The law: a batch that is handed over is complete, so the training loop waits for nothing. What the loop is given is new
memory of torch's on its current stream, filled by one copy or one kernel there; nothing that was sent, and nothing of
DALI's, leaves an item. What such work reads is held until the host has seen the event behind it, for neither torch's
nor DALI's allocator knows of the other's streams.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

__all__ = ["DECODE", "FINISH", "NEXT", "READ", "WAITS", "Device", "InUse", "Range"]


class Device(Protocol):
    """One GPU, for one loader. Every method makes it the thread's device by itself, so that nothing touches another.

    The feed thread sends, and waits once a batch; the loop's thread works within `hold`.
    """

    number: int

    def enter(self) -> None:
        """Make it this thread's device from here on. A thread begins with the first GPU."""
        ...

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Page-locked memory of the host, which can be sent without a wait."""
        ...

    def send(self, here: torch.Tensor) -> torch.Tensor:
        """Begin to copy page-locked memory, which may be let go at once. What arrives may be read after `wait`."""
        ...

    def sending(self) -> AbstractContextManager[Any]:
        """Work in here is enqueued behind what was sent, and `wait` waits for it as well."""
        ...

    def wait(self) -> None:
        """Wait until all that was sent by now has arrived; the thread sleeps meanwhile."""
        ...

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Memory of torch's, of its current stream there."""
        ...

    def copy(self, there: Any) -> torch.Tensor:
        """A copy of what lies there, torch's or DALI's, on the current stream."""
        ...

    def view(self, images: Any) -> torch.Tensor:
        """Images that lie there, torch's or DALI's, as they lie: whoever reads them holds them."""
        ...

    def launch(self, kernel: Callable[..., None], *arrays: Any, **settings: Any) -> None:
        """Launch a kernel of `dali_feed.kernels` on the current stream."""
        ...

    def hold(self, *objects: Any) -> AbstractContextManager[None]:
        """Keep `objects` until all that is enqueued in here on the current stream is done, also where that raises."""
        ...

    def stream(self, number: int | None) -> AbstractContextManager[Any]:
        """Within, the current stream is the one that a consumer names to `__dlpack__`; -1: it stays as it is."""
        ...

    def bound(self, most: int) -> None:
        """Let go of what is done with; wait until no more than `most` are held."""
        ...

    def drain(self) -> None:
        """Wait for all the work that reads what is held, and let that go."""
        ...

    def free_memory(self) -> None:
        """Give back the memory that torch keeps there and nobody uses."""
        ...


class InUse:
    """What work on a GPU, enqueued and not yet done, still reads, oldest first, with the event behind the work.

    One for each loader: to close it waits for no other's work. Used by its feed thread and by whoever takes batches.
    """

    def __init__(self) -> None:
        self._in_use: list[tuple[Any, Any]] = []
        self._lock = threading.RLock()  # guards the list; a destructor that runs in here may call it again

    def __len__(self) -> int:
        return len(self._in_use)

    def keep(self, what: Any, until: Any) -> None:
        """Hold `what` until that event has passed. Let go of what other work is done with, in any order."""
        with self._lock:
            before = self._in_use  # dropped outside the lock
            self._in_use = [*((each, done) for each, done in before if not done.query()), (what, until)]

    def bound(self, most: int) -> None:
        """Let go of what is done with; wait, oldest first, until no more than `most` are held."""
        with self._lock:
            before = self._in_use
            self._in_use = [(each, done) for each, done in before if not done.query()]
            over = self._in_use[: max(0, len(self._in_use) - most)]
        for _, done in over:
            done.synchronize()

    def drain(self) -> None:
        """Wait for all the work, and let go of what it reads."""
        with self._lock:
            before, self._in_use = self._in_use, []
        for _, done in before:
            with suppress(RuntimeError):  # a GPU that has failed for good has ended the work as well
                done.synchronize()


# Named ranges on the timeline of Nsight Systems (`nsys profile --trace=cuda,nvtx`): what ran, and what waited.
#
# A range costs almost nothing where no profiler runs, so they are always there.


class Range:
    """A context manager; used by many threads at once, for NVTX keeps a stack per thread."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = f"dali_feed: {name}"

    def __enter__(self) -> None:
        _push(self._name)

    def __exit__(self, *_: object) -> None:
        _pop()


@cache
def _torchs() -> tuple[Callable[[str], object], Callable[[], object]]:
    """Torch's functions, imported at the first range: an engine has imported torch by then; importing us must not."""
    import torch

    if torch.version.cuda is None:  # torch without CUDA: its functions raise
        return str, str
    return torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop


def _push(name: str) -> None:
    _torchs()[0](name)


def _pop() -> None:
    _torchs()[1]()


READ, DECODE, FINISH = Range("read"), Range("decode"), Range("finish")
NEXT = Range("next batch")  # waits of the training loop
WAITS = {  # waits of the feed thread, by what its clock calls them
    "source": Range("wait for the source"),
    "engine": Range("wait for the engine"),
    "repair": Range("wait for the engine"),
    "trainer": Range("wait for the trainer"),
    "dead letters": Range("wait for dead letters"),
}
