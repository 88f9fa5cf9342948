"""Images made smaller, or encoded again, by Pillow: before they go into a topic or a shard."""

from __future__ import annotations

import io
from typing import Any

from dali_feed.packages import needed

__all__ = ["Pictures"]

_LOSSY = ("JPEG", "WEBP")


class Pictures:
    """A function of an encoded image that gives another, of the same kind. Threads share it.

    shorter  pixels of the shorter side; what is smaller already keeps its size. None: sizes stay
    quality  1..100, of JPEG and WebP

    The orientation of EXIF and the colour profile go along. It raises what Pillow does for bytes that are no image.
    """

    def __init__(self, shorter: int | None, quality: int) -> None:
        with needed():
            from PIL import Image
        self._open, self._lanczos = Image.open, Image.Resampling.LANCZOS
        self._shorter, self._quality = shorter, quality
        self.told = {"resize": shorter, "quality": quality}  # what a journal keeps

    def __call__(self, payload: bytes) -> bytes:
        """The image, encoded."""
        with self._open(io.BytesIO(payload)) as found:
            image: Any = found
            kind, kept = (
                image.format,
                {name: image.info[name] for name in ("exif", "icc_profile") if name in image.info},
            )
            shorter = min(image.size)
            if self._shorter is not None and shorter > self._shorter:
                width, height = (max(1, round(side * self._shorter / shorter)) for side in image.size)
                if kind == "JPEG":
                    image.draft(None, (width, height))  # decodes at an eighth, a quarter or half where that is enough
                if image.mode == "P":
                    image = image.convert("RGBA" if "transparency" in image.info else "RGB")
                image = image.resize((width, height), self._lanczos)
            elif kind not in _LOSSY:
                return payload
            out = io.BytesIO()
            image.save(out, kind, **kept, **({"quality": self._quality} if kind in _LOSSY else {}))
            return out.getvalue()
