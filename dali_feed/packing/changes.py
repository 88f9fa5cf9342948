"""What is done to a sample's files before they are written: smaller images, pixels without a code, tokens of a text.

The law: a change depends on the sample's own bytes alone. What it raises costs that sample.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from dali_feed.checks import name_of
from dali_feed.columns.tokens import tokenizing
from dali_feed.errors import ConfigError, FormatError
from dali_feed.packages import needed
from dali_feed.packing.rows import IMAGES, ending_of

File = tuple[str, bytes | memoryview]


class OnImages:
    """A function of an encoded image that gives another, on each image of a sample.

    Its files keep their suffixes, but where the function gives another kind.
    """

    def __init__(self, change: Callable[[bytes], bytes]) -> None:
        self._change = change
        self.facts: Any = name_of(change)

    def __call__(self, files: list[File]) -> list[File]:
        """The files, changed."""
        return [self._one(suffix, data) if _is_image(suffix) else (suffix, data) for suffix, data in files]

    def _one(self, suffix: str, data: bytes | memoryview) -> File:
        before = ending_of(data)
        new_data = self._change(bytes(data))
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
            image: Any = opened.convert("RGB")
            pixels: bytes = image.tobytes()
            return b"P6\n%d %d\n255\n" % image.size + pixels


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


_LOSSY = ("JPEG", "WEBP")


class Reencode:
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
        self.facts = {"resize": shorter, "quality": quality}  # what a journal keeps

    def __call__(self, payload: bytes) -> bytes:
        """The image, encoded."""
        with self._open(io.BytesIO(payload)) as opened:
            image: Any = opened
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
