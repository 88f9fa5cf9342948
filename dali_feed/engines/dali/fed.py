"""The inputs of a DALI graph: payloads as they are, or pixels decoded by Pillow where nvImageCodec gets none.

Such a payload becomes a PPM, which the graph's decoder reads as it is, whole or a window, on every device; one that is
such a file already is given as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from nvidia.dali.tensors import TensorCPU

from dali_feed.screen import pillow
from dali_feed.screen.header import UnusableError

__all__ = ["Feeder", "prepared"]

_GRAPHS = (0xFF, 0x89)  # first bytes of JPEG and PNG; a decoder of a graph gets no other format but a plain PPM


@dataclass(frozen=True, slots=True, eq=False)
class _Aside:
    """A payload to be decoded before the graph."""

    payload: memoryview


def prepared(payloads: Sequence[memoryview]) -> list[Any]:
    """DALI's view of each payload, none of them empty, or a mark that it must be decoded first."""
    return [TensorCPU(view) if view[0] in _GRAPHS or pillow.is_usual(view) else _Aside(view) for view in payloads]


class Feeder:
    """Decodes marked payloads for the graph, on threads of its own that are started by the first such image."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None

    def __call__(self, some: Sequence[Any]) -> tuple[list[Any], dict[int, str]]:
        """The graph's input, and the slots that cannot be decoded, each with the reason: then feed nothing."""
        out, bad = list(some), dict[int, str]()
        rows = [n for n, one in enumerate(some) if type(one) is _Aside]
        if not rows:
            return out, bad
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, "dali_feed-pillow")
        for n, made in zip(rows, self._pool.map(_decoded, [some[n].payload for n in rows]), strict=True):
            if isinstance(made, str):
                bad[n] = made
            else:
                out[n] = TensorCPU(made)
        return out, bad

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


def _decoded(payload: memoryview) -> bytes | str:
    try:
        return pillow.pnm(pillow.decode(payload))
    except UnusableError as error:
        return str(error)
