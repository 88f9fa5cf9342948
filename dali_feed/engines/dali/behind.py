"""Steps that DALI has no operators for, run after its graph: the host engine's steps, on the batch's device.

On a GPU they are enqueued by the engine's thread on a stream of their own; the consumer's stream waits for them.
"""

from __future__ import annotations

from typing import Any

import torch

from dali_feed.compiler.host import HostProgram
from dali_feed.engines.dtypes import DTYPES
from dali_feed.engines.engine import Tail
from dali_feed.engines.gpu.parcels import Parcels
from dali_feed.engines.gpu.uploads import Uploaded, Uploads
from dali_feed.engines.host.image import ImageSteps
from dali_feed.errors import EngineError, TransformError
from dali_feed.transforms.keys import Arrays, of_behind

__all__ = ["Behind"]


class Behind:
    """Runs `program` on the batches of a graph. Used by one thread."""

    def __init__(self, program: HostProgram, device: int | None) -> None:
        self._program, self._steps = program, ImageSteps(program)
        self._device = torch.device("cpu") if device is None else torch.device("cuda", device)
        self._stream = None if device is None else torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        self._parcels = None if device is None else Parcels(Uploads(device))

    def __call__(self, images: Any, tail: Tail | None, arrays: Arrays) -> tuple[Any, Tail | None]:
        """The graph's `images` after the steps, and the tail that is left; `tail`: the one the graph left, on a GPU."""
        rows = of_behind(arrays)
        try:
            return self._here(images, rows) if tail is None else self._there(images, tail, rows)
        except TransformError:  # an error of a user's function, which it names
            raise
        except (RuntimeError, TypeError, ValueError) as error:
            msg = f"dali engine: a step after the graph failed; {type(error).__name__}: {error}"
            raise EngineError(msg) from error

    def _here(self, images: Any, arrays: Arrays) -> tuple[Any, None]:
        return self._run(torch.utils.dlpack.from_dlpack(images), arrays), None

    def _there(self, images: Any, tail: Tail, arrays: Arrays) -> tuple[Any, Tail | None]:
        from dali_feed.engines.gpu.finish import finished  # CuPy: on a GPU only

        sent = None if self._parcels is None else self._parcels.with_tails([tail], {})[0][0]
        with torch.cuda.stream(self._stream):
            out = self._run(finished(images, sent or tail, self._device), arrays)
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record()
        return Uploaded(out, done), Tail.of(self._program.finish, arrays)

    def _run(self, images: torch.Tensor, arrays: Arrays) -> torch.Tensor:
        """Run the steps on uint8 (n, height, width, 3)."""
        count, (height, width) = len(images), self._program.size or images.shape[1:3]
        shape = (count, 3, height, width) if self._program.layout == "NCHW" else (count, height, width, 3)
        out = torch.empty(shape, dtype=DTYPES[self._program.dtype], device=images.device)
        for slot in range(count):
            self._steps.run_on(images[slot].permute(2, 0, 1), arrays, slot, out[slot])
        return out
