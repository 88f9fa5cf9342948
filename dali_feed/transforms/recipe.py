"""Recipe: what is done to each image, as a short list of frozen ops in torchvision's meaning.

A recipe says what to do; `dali_feed.compiler` turns it into the steps an engine runs and the per-sample numbers those
steps take. Ops are checked when they are made, so a wrong value never reaches an engine.
"""

from __future__ import annotations

from dataclasses import dataclass

from dali_feed.transforms.base import Op
from dali_feed.transforms.rules import Layout

__all__ = ["Recipe"]


@dataclass(frozen=True, slots=True)
class Recipe:
    """Ops in the order in which they apply. The empty recipe gives uint8 pixels as decoded.

    layout   of the batch that comes out: "NCHW" (n, 3, height, width) or "NHWC" (n, height, width, 3)
    hardware share of a batch's JPEGs that a GPU's JPEG engine decodes, 0..1. Its pixels are not those of the CUDA
             decoder, and which JPEGs go there depends on the batch: above 0 a sample's pixels do too
    exif     images are turned as their EXIF orientation says, before the first op
    """

    ops: tuple[Op, ...] = ()
    layout: Layout = "NCHW"
    hardware: float = 0.0
    exif: bool = False

    @property
    def channels(self) -> int:
        """Channels of each image: 1 where an op makes it gray so; a batch then has three that are equal."""
        known = (op.channels_behind() for op in reversed(self.ops))
        return next((channels for channels in known if channels is not None), 3)
