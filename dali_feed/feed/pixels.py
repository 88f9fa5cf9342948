"""Pixels: images as an engine gave them, with the finish step that is left. They support DLPack."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dali_feed.engines.engine import Tail

__all__ = ["Pixels"]


@dataclass(slots=True)
class Pixels:
    """Images of a batch: `from_dlpack(pixels)` gives them finished.

    images  dense; with `tail`, uint8 NHWC on the device, for the finish step; without, an array with `__dlpack__`
    """

    images: Any
    tail: Tail | None

    def __dlpack_device__(self) -> tuple[int, int]:
        """(type, number) of the device, as DLPack counts them: (1, 0) is the CPU, (2, n) a CUDA device."""
        kind, number = self.images.__dlpack_device__()
        return int(kind), int(number)

    def __dlpack__(self, *, stream: int | None = None, **options: Any) -> Any:
        """The finished images; without a copy where nothing is left to finish. On a GPU they are ready on `stream`.

        (n, 3, height, width), or (n, height, width, 3) with `Feed(layout="NHWC")`. `stream`: as DLPack says. Each call
        that has to finish makes a new array. So does each for what a user's graph left in DALI's memory on a GPU:
        DALI would wait for the device to release it.
        """
        from dali_feed.engines.gpu.handover import is_foreign  # torch: there since an engine made them

        if self.tail is None and not is_foreign(self.images):
            return self.images.__dlpack__(**({} if stream is None else {"stream": stream}), **options)
        from dali_feed.engines.gpu.finish import exported  # CuPy: on a GPU only

        return exported(self.images, self.tail, self.__dlpack_device__()[1], stream, options)
