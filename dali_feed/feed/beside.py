"""Arrays that go with the images of a batch: made, and sent to a GPU, by the feed thread.

The law: when the training loop takes a batch, no random number is left to draw, and nothing is copied from memory that
would make its thread wait for the GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from dali_feed.columns.arrays import Room
from dali_feed.feed.batch import Batch
from dali_feed.records.reused import Reused

if TYPE_CHECKING:
    from dali_feed.engines.gpu.parcels import Parcels

__all__ = ["Beside", "Companions", "none"]

Companions = Callable[[Batch, int], Mapping[str, NDArray[Any]]]


def none(batch: Batch, epoch: int) -> Mapping[str, NDArray[Any]]:
    """The default: nothing goes with a batch."""
    del batch, epoch
    return {}


class Beside:
    """Adds to each batch what goes with it: `companions` of (batch, epoch). Used by one thread at a time."""

    def __init__(self, companions: Companions, parcels: Parcels | None, device: int | None = None) -> None:
        self._companions, self._parcels, self._device = companions, parcels, device
        self.room: Room = Reused() if parcels is None else parcels.room  # memory for a batch's arrays

    @classmethod
    def on(cls, device: int | None, companions: Companions) -> Beside:
        """For the batches of a CUDA device, or of the CPU."""
        if device is None:
            return cls(companions, None)
        from dali_feed.engines.gpu.parcels import Parcels
        from dali_feed.engines.gpu.uploads import Uploads

        return cls(companions, Parcels(Uploads(device)), device)

    def __call__(self, batch: Batch, epoch: int) -> None:
        """Call it before `batch` is handed over. Errors of a companion go on; EngineError where it cannot be sent."""
        batch.beside = dict(self._companions(batch, epoch))
        if self._parcels is not None:
            shown = (batch, *batch.more)
            try:
                tails, batch.sent = self._parcels.with_tails([each.tail for each in shown], batch.beside)
            except RuntimeError as error:
                from dali_feed.engines.failures import engine_error

                subject, what = "feed", "what goes with a batch cannot be sent to the GPU"
                raise engine_error(subject, what, error, self._device) from error
            for each, tail in zip(shown, tails, strict=True):
                each.tail = tail
