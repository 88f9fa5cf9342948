"""DALI pipelines as their users write them, for tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nvidia.dali import fn, pipeline_def, types

CPU = {"batch_size": 4, "num_threads": 2, "device_id": None}


def image(**options: Any) -> Any:
    """Decoded images of one size."""
    return fn.resize(fn.decoders.image(fn.external_source(name="image", **options)), size=[8, 8])


def graph(define: Callable[[], Any], **options: Any) -> Any:
    """A pipeline of that graph."""

    @pipeline_def(**{**CPU, **options})  # type: ignore[untyped-decorator, unused-ignore]
    def mine() -> Any:
        return define()

    return mine


@pipeline_def(**CPU)  # type: ignore[untyped-decorator, unused-ignore]
def plain() -> Any:
    """Images of 16x16 and labels; nothing random."""
    payloads, labels = fn.external_source(name="image"), fn.external_source(name="label")
    images = fn.decoders.image(payloads, adjust_orientation=False, jpeg_fancy_upsampling=True)
    return fn.resize(images, size=[16, 16]), labels


@pipeline_def(**CPU)  # type: ignore[untyped-decorator, unused-ignore]
def augmented() -> Any:
    """The usual augmentation, all of it by DALI's own random operators."""
    payloads, labels = fn.external_source(name="image"), fn.external_source(name="label")
    images = fn.decoders.image_random_crop(payloads, random_area=[0.3, 1.0])
    images = fn.resize(images, size=[16, 16])
    images = fn.brightness(images, brightness=fn.random.uniform(range=[0.7, 1.3]))
    images = fn.noise.gaussian(images, stddev=2.0)
    return fn.crop_mirror_normalize(images, mirror=fn.random.coin_flip(), dtype=types.FLOAT), labels
