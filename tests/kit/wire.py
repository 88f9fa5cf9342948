"""A GPU's side of an upload, on the CPU."""

from __future__ import annotations

from typing import Any

import torch


class Wire:
    """Takes blocks as `Uploads` does: each into other memory, asked for by the stream that is to use it."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, block: torch.Tensor) -> Any:
        """Send one; its own memory is written to at once, as page-locked memory is that is used again."""
        self.count += 1
        there = _There(block.clone())
        block.fill_(0xEE)
        return there


class _There:
    def __init__(self, block: torch.Tensor) -> None:
        self._block = block

    def on(self, stream: Any) -> torch.Tensor:
        """The block."""
        del stream
        return self._block
