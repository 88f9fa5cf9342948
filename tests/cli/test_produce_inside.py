"""Insides that contract/cli/test_produce.py needs not: they go with what they test."""

from __future__ import annotations

import io

from kit.images import jpeg
from PIL import Image

from dali_feed.packing.changes import Pictures


def test_images_are_made_smaller() -> None:
    """The shorter side is as long as asked for, the kind and the orientation stay; what is small is not enlarged."""
    made = Pictures(16, 90)
    for kind in ("JPEG", "PNG", "WEBP"):
        out, exif = io.BytesIO(), Image.Exif()
        exif[0x0112] = 6
        Image.new("RGB", (60, 40), (200, 10, 10)).save(out, kind, exif=exif)
        with Image.open(io.BytesIO(made(out.getvalue()))) as image:
            assert (image.format, image.size, image.getexif()[0x0112]) == (kind, (24, 16), 6)
    out = io.BytesIO()
    Image.new("P", (10, 10)).save(out, "PNG")
    assert made(out.getvalue()) == out.getvalue()
    with Image.open(io.BytesIO(Pictures(None, 5)(jpeg(3)))) as image, Image.open(io.BytesIO(jpeg(3))) as before:
        assert image.size == before.size
    assert len(Pictures(None, 5)(jpeg(3))) < len(Pictures(None, 95)(jpeg(3)))
