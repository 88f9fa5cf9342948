"""Finds the payloads that a decoder refuses, one verdict per payload, without ending the process.

nvImageCodec is DALI's own decoder; asked for a list, it gives None for each item that fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from nvidia import nvimgcodec

__all__ = ["refused"]


@cache
def _decoder() -> Any:
    return nvimgcodec.Decoder(
        device_id=nvimgcodec.NVIMGCODEC_DEVICE_CPU_ONLY,
        max_num_cpu_threads=1,
        backends=[nvimgcodec.Backend(nvimgcodec.CPU_ONLY)],
    )


def refused(payloads: Sequence[Any]) -> dict[int, str]:
    """Index -> reason for every payload (bytes, uint8) that cannot be decoded on the CPU."""
    bad: dict[int, str] = {}
    streams: list[Any] = []
    rows: list[int] = []
    for n, payload in enumerate(payloads):
        try:
            streams.append(nvimgcodec.CodeStream(np.asarray(payload)))
            rows.append(n)
        except RuntimeError:
            bad[n] = "decoder: nvImageCodec cannot parse it"
    images = _decoder().decode(streams) if streams else []
    for n, image in zip(rows, images, strict=True):
        if image is None:
            bad[n] = "decoder: nvImageCodec cannot decode it"
    return bad
