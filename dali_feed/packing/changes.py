"""What is done to a sample's files before they are written: smaller images, pixels without a code, tokens of a text.

The law: a change depends on the sample's own bytes alone. What it raises costs that sample.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.checks import name_of, whole
from dali_feed.columns.tokens import tokenizing
from dali_feed.errors import ConfigError, FormatError
from dali_feed.packages import needed
from dali_feed.packing.rows import IMAGES, ending_of
from dali_feed.screen.header import UnusableError
from dali_feed.screen.pillow import decode, levels_of

File = tuple[str, bytes | memoryview]


class OnImages:
    """A function of an encoded image that gives another, on each image of a sample.

    Its files keep their suffixes, but where the function gives another kind.
    """

    def __init__(self, change: Callable[..., bytes]) -> None:
        self._change = change
        self._masks = change.masks if isinstance(change, Reencode) else None
        self.facts: Any = name_of(change)

    def __call__(self, files: list[File]) -> list[File]:
        """The files, changed."""
        images = [data for suffix, data in files if _is_image(suffix)]
        masks = iter(self._masks(images) if self._masks and len(images) > 1 else [False] * len(images))
        return [self._one(suffix, data, next(masks)) if _is_image(suffix) else (suffix, data) for suffix, data in files]

    def _one(self, suffix: str, data: bytes | memoryview, mask: bool) -> File:
        before = ending_of(data)
        new_data = self._change(bytes(data), mask=True) if mask else self._change(bytes(data))
        after = ending_of(new_data)
        if after is None or after == before:
            return suffix, new_data
        return f"{suffix[: suffix.rfind('.') + 1]}{after}", new_data


class Decoded:
    """Images as their pixels: binary PPM, RGB of 8 bits, which is read without a decoder.

    Pillow decodes, and turns nothing: the pixels are as they are stored, like those that a loader starts from.
    """

    facts = "decoded"

    def __init__(self) -> None:
        with needed():
            from PIL import Image
        self._open = Image.open

    def __call__(self, payload: bytes) -> bytes:
        """The image as PPM."""
        with self._open(io.BytesIO(payload)) as opened:
            image: Any = opened
            pixels = (_eight_bits(payload, image) if image.mode[0] in "IF" else image.convert("RGB")).tobytes()
            return b"P6\n%d %d\n255\n" % image.size + pixels


def _eight_bits(payload: bytes, image: Any) -> NDArray[np.uint8]:
    """An image of more than 8 bits a sample as a loader reads it: Pillow would cut it off at 255."""
    if image.format == "PNG":
        return np.repeat(levels_of(image, 16)[..., None], 3, 2)
    try:
        return decode(memoryview(payload))
    except UnusableError as error:
        raise FormatError(str(error)) from error


class Tokenized:
    """Adds `tokens.npy`, int64 (n,): the ids of a text member, by a file of the `tokenizers` library.

    tokenizer  its file
    member     suffix of the text
    """

    def __init__(self, tokenizer: str | os.PathLike[str], member: str = "txt") -> None:
        self._tokenize = tokenizing("tokens", tokenizer, special=True)
        self._member = member
        with open(tokenizer, "rb") as file:  # noqa: PTH123
            digest = hashlib.sha256(file.read()).hexdigest()
        self.facts = {"tokens": member, "tokenizer": digest}

    def __call__(self, files: list[File]) -> list[File]:
        """The files, and one more."""
        text = next((data for suffix, data in files if suffix == self._member), None)
        if text is None:
            raise FormatError(f"no member .{self._member} to tokenize")
        ids = np.asarray(self._tokenize([bytes(text).decode("utf-8")])[0], np.int64)
        if ids.ndim != 1:
            raise ConfigError(f"tokens: a tokenizer must give a row of ids; found shape {ids.shape}")
        out = io.BytesIO()
        np.save(out, ids, allow_pickle=False)
        return [*files, ("tokens.npy", out.getvalue())]


def _is_image(suffix: str) -> bool:
    return suffix.lower().rpartition(".")[2] in IMAGES


_LOSSY = ("JPEG", "WEBP", "MPO")


class Reencode:
    """A function of an encoded image that gives another, of the same kind. Threads share it.

    shorter  pixels of the shorter side; what is smaller already keeps its size. None: sizes stay
    quality  1..100, of JPEG and WebP

    The orientation of EXIF and the colour profile go along. Of a mask, which holds numbers of classes, each pixel is
    the nearest one as it is. It raises what Pillow does for bytes that are no image, and ConfigError for numbers that
    cannot be.
    """

    def __init__(self, shorter: int | None, quality: int) -> None:
        if shorter is not None:
            whole("resize", shorter, 1)
        if whole("quality", quality, 1) > 100:
            raise ConfigError(f"quality: must be 1 to 100; found {quality!r}")
        with needed():
            from PIL import Image
        self._open, self._filters = Image.open, (Image.Resampling.LANCZOS, Image.Resampling.NEAREST)
        self._shorter, self._quality = shorter, quality
        self.facts = {"resize": shorter, "quality": quality}  # what a journal keeps

    def masks(self, images: Sequence[bytes | memoryview]) -> list[bool]:
        """Which of a sample's images are masks: those of one channel, without loss, beside one of colour."""
        lone = list[bool]()
        for payload in images:
            with self._open(io.BytesIO(payload)) as image:
                lone.append(len(image.getbands()) == 1 and image.format not in _LOSSY)
        return [each and not all(lone) for each in lone]

    def __call__(self, payload: bytes, mask: bool = False) -> bytes:
        """The image, encoded."""
        with self._open(io.BytesIO(payload)) as opened:
            image: Any = opened
            kind = "JPEG" if image.format == "MPO" else image.format  # its first image, as decoders read it
            kept = {name: image.info[name] for name in ("exif", "icc_profile") if name in image.info}
            shorter = min(image.size)
            if self._shorter is not None and shorter > self._shorter:
                width, height = (max(1, round(side * self._shorter / shorter)) for side in image.size)
                if kind == "JPEG":
                    image.draft(None, (width, height))  # decodes at an eighth, a quarter or half where that is enough
                if image.mode == "P" and not mask:
                    image = image.convert("RGBA" if "transparency" in image.info else "RGB")
                image = image.resize((width, height), self._filters[mask])
            elif kind not in _LOSSY:
                return payload
            out = io.BytesIO()
            image.save(out, kind, **kept, **({"quality": self._quality} if kind in _LOSSY else {}))
            return out.getvalue()
