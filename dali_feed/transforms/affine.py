"""RandomAffine's draws, and the matrix that says where each pixel comes from. Pure arithmetic on arrays.

Turn, scale and shears follow torchvision: output = T C R(angle) S(scale) SHy(y) SHx(x) C^-1 input, with
T the translation, C the centre, angles clockwise as they are seen, SHx(s) = [1, -tan s; 0, 1] and
SHy(s) = [1, 0; -tan s, 1].
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dali_feed.transforms.recipe import RandomAffine

__all__ = ["affine_draws", "source_matrices"]

Ints = NDArray[np.int64]
Doubles = NDArray[np.float64]


def affine_draws(op: RandomAffine, h: Ints, w: Ints, drawn: NDArray[np.float32]) -> Doubles:
    """Angle, x and y translation (whole pixels), scale, x and y shear: float64 (n, 6), from uniforms (8, n)."""
    u = drawn.astype(np.float64)

    def between(pair: tuple[float, float], row: int) -> Doubles:
        values: Doubles = pair[0] + (pair[1] - pair[0]) * u[row]
        return values

    moved = [np.rint((2 * u[1 + k] - 1) * (op.translate[k] * edge)) for k, edge in enumerate((w, h))]
    shears = between((op.shear[0], op.shear[1]), 4), between((op.shear[2], op.shear[3]), 5)
    return np.stack([between(op.degrees, 0), *moved, between(op.scale, 3), *shears], axis=1)


def source_matrices(
    draws: Doubles, h: Ints, w: Ints, center: tuple[float, float] | None, mirror: tuple[NDArray[np.bool_], ...]
) -> NDArray[np.float32]:
    """Where output pixels come from: float32 (n, 2, 3) on (x, y, 1), whose halves are pixel centres.

    `mirror` says which images are stored left-right and upside down of what the draws were made for.
    """
    angle, tx, ty, scale, sx, sy = draws.T
    angle, sx, sy = np.radians(angle), np.radians(sx), np.radians(sy)
    a, c = np.cos(angle - sy) / np.cos(sy), np.sin(angle - sy) / np.cos(sy)
    b, d = -(a * np.tan(sx) + np.sin(angle)), np.cos(angle) - c * np.tan(sx)
    inverse = np.array([[d, -b], [-c, a]]).transpose(2, 0, 1) / scale[:, None, None]  # the determinant is scale**2
    middle = np.stack([w, h], axis=1) / 2
    about = middle if center is None else np.broadcast_to(np.asarray(center, np.float64), middle.shape)
    moved = about + np.stack([tx, ty], axis=1)
    shift = about - np.einsum("nij,nj->ni", inverse, moved)
    # Mirrored images: x -> width - x on both sides of the matrix.
    sign = np.where(np.stack(mirror, axis=1), -1.0, 1.0)
    edge = np.where(sign < 0, 2 * middle, 0.0)
    turned = sign[:, :, None] * inverse * sign[:, None, :]
    shift = edge + sign * (shift + np.einsum("nij,nj->ni", inverse, edge))
    return np.concatenate([turned, shift[:, :, None]], axis=2).astype(np.float32)
