"""The demo's records: scikit-learn's handwritten digits as JPEGs, and two that are broken on purpose."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from dali_feed.external_sources import KafkaTopic, ShardSet
from dali_feed.records.source import Source
from dali_feed.testing import publish
from dali_feed.testing.shards import write_shard

__all__ = ["BAD", "HELD_OUT", "SIDE", "TRAIN", "open_source", "place", "records"]

SIDE = 32
PARTITIONS = 4
TRAIN, HELD_OUT = "digits", "digits-held-out"
BAD = 2

Labelled = list[tuple[bytes, int]]


def records(quick: bool = False) -> tuple[Labelled, Labelled]:
    """(JPEG, label) pairs to learn from, and every fifth digit to be judged by. `quick` takes a quarter of them.

    Of the first, one is cut off in its header and one is a web server's error page.
    """
    from sklearn.datasets import load_digits  # only the process that publishes pays for it

    found = load_digits()
    shown = [(_jpeg(image), int(label)) for image, label in zip(found.images, found.target, strict=True)]
    if quick:
        shown = shown[: len(shown) // 4]
    train = [record for n, record in enumerate(shown) if n % 5]
    held_out = [record for n, record in enumerate(shown) if n % 5 == 0]
    train.insert(69, (train[0][0][:300], train[0][1]))  # digits[1]@17
    train.insert(207, (b"<html><body>404 Not Found</body></html>\n", 0))  # digits[3]@51
    return train, held_out


def _jpeg(digit: np.ndarray) -> bytes:
    """An 8x8 digit of 0..16 as a JPEG of 32x32."""
    from PIL import Image

    small = Image.fromarray(np.round(digit * (255 / 16)).astype(np.uint8))
    file = io.BytesIO()
    small.resize((SIDE, SIDE), Image.Resampling.BICUBIC).convert("RGB").save(file, "JPEG", quality=95)
    return file.getvalue()


def place(kind: str, at: str, name: str, labelled: Labelled) -> None:
    """Put records into a new topic of the broker at `at`, or into shards in the folder `at`; in turns over four."""
    if kind == "kafka":
        publish(at, name, labelled, partitions=PARTITIONS)
        return
    for n in range(PARTITIONS):
        write_shard(Path(at, f"{name}-{n}.tar"), labelled[n::PARTITIONS])


def open_source(kind: str, at: str, name: str) -> Source:
    """The source that `place` filled."""
    if kind == "kafka":
        return KafkaTopic(name, at)
    return ShardSet([Path(at, f"{name}-{n}.tar") for n in range(PARTITIONS)])
