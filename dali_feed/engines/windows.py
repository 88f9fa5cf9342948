"""Windows cut out of a batch of images, each its own, on the device where they lie.

The law: a pixel is the image's own, or the colour outside it: as `transforms.edges.crop` cuts one image, bit for bit.
"""

from __future__ import annotations

import torch

__all__ = ["cut_out"]


def cut_out(images: torch.Tensor, corners: torch.Tensor, size: tuple[int, int], colour: torch.Tensor) -> torch.Tensor:
    """Of images (n, height, width, 3) the windows of `size` from `corners` (n, 2: y, x) on; `colour` outside them.

    All are on one device, corners int64, colour of the images' dtype; enqueued on the current stream there.
    """
    count, high, wide = images.shape[:3]
    y = corners[:, :1] + torch.arange(size[0], device=images.device)
    x = corners[:, 1:] + torch.arange(size[1], device=images.device)
    inside = ((y >= 0) & (y < high))[:, :, None] & ((x >= 0) & (x < wide))[:, None, :]
    which = torch.arange(count, device=images.device)[:, None, None]
    taken = images[which, y.clamp(0, high - 1)[:, :, None], x.clamp(0, wide - 1)[:, None, :]]
    return torch.where(inside[..., None], taken, colour)
