"""Finds the payloads that a decoder refuses, one verdict per payload, without ending the process.

nvImageCodec is DALI's own decoder; asked for a list, it gives None for each item that fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from dali_feed.engines.codec import nvimgcodec

__all__ = ["refused"]


@cache
def _decoder(threads: int) -> Any:
    return nvimgcodec.Decoder(
        device_id=nvimgcodec.NVIMGCODEC_DEVICE_CPU_ONLY,
        max_num_cpu_threads=threads,
        backends=[nvimgcodec.Backend(nvimgcodec.CPU_ONLY)],
    )


def refused(payloads: Sequence[Any], threads: int = 1, check: Callable[[], None] = lambda: None) -> dict[int, str]:
    """Index -> reason for every payload (bytes, uint8) that cannot be decoded on the CPU, by so many threads.

    `check` is called now and then; an exception of it ends the search.
    """
    bad: dict[int, str] = {}
    streams: list[Any] = []
    rows: list[int] = []
    for n, payload in enumerate(payloads):
        try:
            streams.append(nvimgcodec.CodeStream(np.asarray(payload)))
            rows.append(n)
        except RuntimeError:
            bad[n] = "decoder: nvImageCodec cannot parse it"
    some = 4 * threads  # images held at a time: a batch of large ones fills gigabytes
    for first in range(0, len(streams), some):
        check()
        images = _decoder(threads).decode(streams[first : first + some])
        for n, image in zip(rows[first : first + some], images, strict=True):
            if image is None:
                bad[n] = "decoder: nvImageCodec cannot decode it"
    return bad
