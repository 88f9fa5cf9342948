"""Whether the windows that a decoder decodes equal those of its whole images: tested with a few JPEGs made for it.

The pictures are steep in brightness, so that a window one pixel off is 7 levels off on average, and slow in colour,
so that what a decoder may do at a window's edge, where it upsamples colour without the neighbours beyond, stays small.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["LARGEST", "MEAN", "Decode", "Probe", "Window", "disagreement", "probes"]

MEAN, LARGEST = 1.0, 24  # levels of 255 that a window and the same part of the whole image may be apart

Window = tuple[int, int, int, int]  # y, x, height, width
Decode = Callable[[Sequence[bytes], Sequence[Window] | None], Sequence[NDArray[np.uint8]]]

# Height, width, and how Pillow saves it: colour at half and at full resolution, both odd and even sizes, ...
_KINDS: dict[str, tuple[int, int, dict[str, Any]]] = {
    "4:2:0": (480, 640, {"subsampling": 2}),
    "4:2:0 of odd size": (251, 333, {"subsampling": 2}),
    "4:2:2": (300, 400, {"subsampling": 1}),
    "4:4:4": (375, 500, {"subsampling": 0}),
    "gray": (301, 403, {}),
    "4:2:0 with restart markers": (384, 512, {"subsampling": 2, "restart_marker_rows": 1}),
    "progressive 4:2:0": (337, 450, {"subsampling": 2, "progressive": True}),
}


@dataclass(frozen=True, slots=True)
class Probe:
    """A JPEG and a window that lies in it."""

    kind: str
    payload: bytes
    window: Window


def _picture(height: int, width: int, kind: str, options: dict[str, Any]) -> bytes:
    from PIL import Image  # Pillow is there wherever torchvision is, and only its transforms give windows

    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    light = 60 * np.sin(x / 2.9) * np.cos(y / 3.7) + 20 * np.sin((x + 2 * y) / 40)
    colour = 25 * np.stack([np.sin(x / 70), np.sin(y / 90), np.cos((x - y) / 80)], axis=-1)
    picture = Image.fromarray((128 + light[..., None] + colour).clip(0, 255).astype(np.uint8))
    out = io.BytesIO()
    (picture.convert("L") if kind == "gray" else picture).save(out, "JPEG", quality=90, **options)
    return out.getvalue()


def probes() -> Iterator[Probe]:
    """Of each kind of JPEG the upper left, a middle that no block of it borders on, the lower right, and a stripe."""
    for kind, (height, width, options) in _KINDS.items():
        payload = _picture(height, width, kind, options)
        for window in (
            (0, 0, height // 2, width // 2),
            (height // 3 + 1, width // 4 + 3, height // 2, width // 3),
            (height - 101, width - 97, 101, 97),
            (height // 2 - 5, 0, 33, width),
        ):
            yield Probe(kind, payload, window)


def disagreement(decode: Decode) -> str | None:
    """What is wrong with the windows that `decode` gives, each alone and all as one batch; None: nothing.

    `decode(payloads, windows)` gives uint8 (height, width, 3) for each; where `windows` is None, of the whole images.
    """
    some = list(probes())
    payloads, windows = [probe.payload for probe in some], [probe.window for probe in some]
    whole = decode(payloads, None)
    alone = [decode([probe.payload], [probe.window])[0] for probe in some]
    for how, found in (("alone", alone), ("in a batch", decode(payloads, windows))):
        for probe, image, part in zip(some, whole, found, strict=True):
            y, x, height, width = probe.window
            expected = image[y : y + height, x : x + width]
            what = f"{height}x{width} at ({y}, {x}) of a {probe.kind} JPEG, decoded {how}"
            if part.shape != expected.shape:
                return f"{what}, has the shape {part.shape}"
            apart = np.abs(part.astype(np.int16) - expected)
            mean, most = float(apart.mean()), int(apart.max())
            if mean > MEAN or most > LARGEST:
                return f"{what}, differs from the whole image by {mean:.1f} levels on average, {most} at most"
    return None
