"""Named ranges on the timeline of Nsight Systems (`nsys profile --trace=cuda,nvtx`): what ran, and what waited.

A range costs almost nothing where no profiler runs, so they are always there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache


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
