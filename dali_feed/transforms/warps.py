"""Images turned, moved, sheared, seen from another place; and the matrix that says where each pixel comes from.

RandomAffine's turn, scale and shears follow torchvision: output = T C R(angle) S(scale) SHy(y) SHx(x) C^-1 input, with
T the translation, C the centre, angles clockwise as they are seen, SHx(s) = [1, -tan s; 0, 1] and
SHy(s) = [1, 0; -tan s, 1].
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dali_feed.transforms.crops import one_level
from dali_feed.transforms.op import INTERPOLATION, Apply, Effect, InGraph, Ints, OpRun, Place, SizedDraws
from dali_feed.transforms.settings import (
    READ,
    Fill,
    Masks,
    Range,
    Rule,
    Turning,
    as_list,
    fail,
    fill_behind,
    fill_of,
    masks_of,
    probability,
    refuse,
    span,
)

__all__ = ["RandomAffine", "RandomPerspective", "Rotation", "corners", "rotation"]


Doubles = NDArray[np.float64]


class Warp(Effect):
    """Moves pixels, and what follows an image, by one function of torchvision's; the canvas keeps its size."""

    __slots__ = ()
    moves: ClassVar[bool] = True
    interpolation: Turning
    fill: Fill
    masks: Masks

    def warped(self, kind: str, given: Any, row: Any, **settings: Any) -> Any:
        """Call torchvision's function: `kind` is "_image" of an image, and "" of what follows one."""
        raise NotImplementedError

    def image(self, image: Any, row: Any, more: Any) -> Any:
        from torchvision.transforms.v2 import InterpolationMode

        mode = InterpolationMode(self.interpolation)
        return self.warped("_image", image, row, interpolation=mode, fill=as_list(self.fill))

    def follow(self, given: Any, row: Any) -> Any:
        return self.warped("", given, row, fill=fill_behind(self.fill, self.masks))


@dataclass(frozen=True, slots=True)
class RandomAffine(Warp):
    """Turned by `degrees`, moved by up to `translate` (fractions of width and height), scaled, sheared.

    `shear` is (x low, x high, y low, y high) in degrees. All about `center` (x, y in pixels), or the middle.
    """

    degrees: Range
    translate: tuple[float, float] = (0.0, 0.0)
    scale: Range = (1.0, 1.0)
    shear: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    interpolation: Turning = "nearest"
    fill: Fill = 0.0
    center: tuple[float, float] | None = None
    masks: Masks = None

    streams: ClassVar[int] = 2
    array: ClassVar[str] = "move"
    rules: ClassVar[Mapping[str, Rule]] = {"degrees": span(-math.inf, math.inf), "scale": span(1e-6, math.inf)}

    def agree(self) -> None:
        if len(self.translate) != 2 or not all(0 <= part <= 1 for part in self.translate):
            refuse("RandomAffine", "translate must be two fractions in 0..1 (of width, of height)", self.translate)
        for pair in (self.shear[:2], self.shear[2:]):
            span(-90.0, 90.0)("RandomAffine", "shear", pair)

    @classmethod
    def of(cls, transform: Any) -> RandomAffine:
        t = transform
        pairs = {name: tuple(map(float, getattr(t, name) or ())) for name in ("degrees", "translate", "scale", "shear")}
        (low, high), shear = pairs["degrees"], pairs["shear"] + (0.0,) * (4 - len(pairs["shear"]))
        return cls(
            (low, high),
            pairs["translate"] or (0.0, 0.0),  # type: ignore[arg-type]
            pairs["scale"] or (1.0, 1.0),  # type: ignore[arg-type]
            shear,  # type: ignore[arg-type]
            READ["Turning"](t, "interpolation"),
            fill_of(t, "fill"),
            None if t.center is None else (float(t.center[0]), float(t.center[1])),
            masks_of(t, "fill"),
        )

    def rows(self, draws: SizedDraws, first: int) -> Doubles:
        """As `affine_draws`."""
        return affine_draws(self, draws.h, draws.w, np.concatenate([draws.draw(first), draws.draw(first + 1)]))

    def warped(self, kind: str, given: Any, row: Any, **settings: Any) -> Any:
        from torchvision.transforms.v2 import functional

        angle, *moved, scale, x, y = row.tolist()
        center = None if self.center is None else list(self.center)
        return getattr(functional, f"affine{kind}")(given, angle, moved, scale, [x, y], center=center, **settings)

    def graph(self, place: Place, k: int, first: int) -> InGraph:
        """Pixel (x, y) is taken from matrix{k} (float32: 2, 3) @ (x, y, 1); halves are pixel centres."""
        fill = one_level(self, self.fill, place)

        def build(image: Any, matrix: Any) -> Any:
            from nvidia.dali import fn, types

            mode = getattr(types, INTERPOLATION[self.interpolation])
            return fn.warp_affine(image, matrix=matrix, interp_type=mode, inverse_map=True, fill_value=fill)

        def matrices(run: OpRun) -> NDArray[np.float32]:
            mirror = run.mirror["x"], run.mirror["y"]
            found = source_matrices(self.rows(run, first), run.h, run.w, self.center, mirror)
            return np.where(run.on[:, None, None], found, np.eye(2, 3, dtype=np.float32))

        return Apply(k, "matrix", "FLOAT", 2, build), matrices


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

    `mirror` says which images are stored mirrored, left-right and upside down, relative to what the draws are for.
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


# RandomPerspective: the image as seen from another place, by torchvision's rules.


@dataclass(frozen=True, slots=True)
class RandomPerspective(Warp):
    """The image as seen from another place: each corner moves inwards, by up to `distortion` of half the edge."""

    distortion: float = 0.5
    p: float = 0.5
    interpolation: Turning = "bilinear"
    fill: Fill = 0.0
    masks: Masks = None

    streams: ClassVar[int] = 3  # one for whether to do it, two for eight coordinates
    rules: ClassVar[Mapping[str, Rule]] = {"distortion": probability, "p": probability}
    theirs: ClassVar[Mapping[str, str]] = {"distortion": "distortion_scale"}

    def rows(self, draws: SizedDraws, first: int) -> NDArray[np.int32]:
        """Corners: x and y, clockwise from the upper left; -1 leaves an image as it is."""
        drawn = np.concatenate([draws.draw(first + k) for k in range(self.streams)])
        return corners(self, drawn, draws.h, draws.w).astype(np.int32)

    def warped(self, kind: str, given: Any, row: Any, **settings: Any) -> Any:
        """Move the corners of the image to their new places."""
        from torchvision.transforms.v2 import functional

        ends = row.tolist()
        if ends[0] < 0:
            return given
        height, width = given.shape[-2:] if kind else functional.get_size(given)
        start = [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]]
        end = [ends[k : k + 2] for k in range(0, 8, 2)]
        return getattr(functional, f"perspective{kind}")(given, start, end, **settings)


def corners(op: RandomPerspective, drawn: NDArray[np.float32], h: Ints, w: Ints) -> Ints:
    """New corners, clockwise from the upper left: int64 (n, 8), x and y in turn; all -1 for images left as they are.

    `drawn` is uniforms, float32 (12, n). Left as they are, too, are images for which there is no perspective, as three
    corners would lie in a line: those one pixel high or wide, and some of few pixels. torchvision fails on them.
    """
    u = drawn[4:].astype(np.float64)
    bounds = [(op.distortion * (edge // 2)).astype(np.int64) + 1 for edge in (w, h)]
    far = ((0, 0), (1, 0), (1, 1), (0, 1))  # which end of x and of y each corner is at
    columns = []
    for k in range(8):
        edge, bound = (w, h)[k % 2], bounds[k % 2]
        columns.append(far[k // 2][k % 2] * (edge - bound) + (u[k] * bound).astype(np.int64))
    ends = np.stack(columns, axis=1)
    points = ends.reshape(-1, 4, 2)
    flat = (h == 1) | (w == 1)
    for a, b, c in combinations(range(4), 3):
        p, q = points[:, b] - points[:, a], points[:, c] - points[:, a]
        flat |= p[:, 0] * q[:, 1] == p[:, 1] * q[:, 0]
    return np.where(((drawn[0] < op.p) & ~flat)[:, None], ends, -1)


# RandomRotation: by a random angle about the middle.


@dataclass(frozen=True, slots=True)
class Rotation(Warp):
    """Counter-clockwise about the centre by a random angle in degrees."""

    degrees: Range
    interpolation: Turning = "nearest"
    fill: Fill = 0.0
    masks: Masks = None

    called: ClassVar[str] = "RandomRotation"
    array: ClassVar[str] = "angle"
    rules: ClassVar[Mapping[str, Rule]] = {"degrees": span(-math.inf, math.inf)}

    def rows(self, draws: SizedDraws, first: int) -> NDArray[np.float32]:
        """Angles, in degrees."""
        low, high = self.degrees
        angles: NDArray[np.float32] = (low + (high - low) * draws.draw(first)[0]).astype(np.float32)
        return angles

    def warped(self, kind: str, given: Any, row: Any, **settings: Any) -> Any:
        from torchvision.transforms.v2 import functional

        return getattr(functional, f"rotate{kind}")(given, float(row), **settings)

    def graph(self, place: Place, k: int, first: int) -> InGraph:
        """By angle{k} (float32, degrees, counter-clockwise) about the centre."""
        fill = one_level(self, self.fill, place)

        def build(image: Any, angle: Any) -> Any:
            from nvidia.dali import fn, types

            mode = getattr(types, INTERPOLATION[self.interpolation])
            return fn.rotate(image, angle=angle, interp_type=mode, keep_size=True, fill_value=fill)

        def angles(run: OpRun) -> NDArray[np.float32]:
            angle = self.rows(run, first)
            turned = np.where(run.mirror["x"] ^ run.mirror["y"], -angle, angle)
            return np.where(run.on, turned, 0).astype(np.float32)

        return Apply(k, "angle", "FLOAT", 0, build), angles


def rotation(transform: Any) -> Rotation:
    """From torchvision's RandomRotation, about the middle, whose canvas keeps its size."""
    if transform.expand:
        raise fail(transform, "expand must be False: all images of a batch have one size", transform.expand)
    if transform.center is not None:
        raise fail(transform, "center must be None, the middle of the image", transform.center)
    return Rotation.of(transform)
