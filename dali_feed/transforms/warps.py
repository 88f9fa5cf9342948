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

from dali_feed.transforms.filters import generator_of, seeds_of
from dali_feed.transforms.op import Draws, Effect, Floats, Graph, Ints, Op, Place, Sizes, fn, torch, types, v2
from dali_feed.transforms.settings import (
    READ,
    Fill,
    Masks,
    Probability,
    Range,
    Rule,
    Turning,
    as_list,
    at_least_zero,
    fill_of,
    mask_fill,
    masks_of,
    numbers,
    refuse,
    span,
)

_DALI = {"nearest": "INTERP_NN", "bilinear": "INTERP_LINEAR"}  # of `nvidia.dali.types`


def one_level(op: Op, fill: Fill, place: Place) -> float:
    """One fill in 0..255, as DALI takes it where images are turned. TransformError where channels differ."""
    if not isinstance(fill, int | float) and len(set(fill)) != 1:
        op.refuse("takes one fill for all channels", fill)
    return place.levels(fill)[0]


class Warp(Effect):
    """Moves pixels, and what follows an image, by one function of torchvision's; the canvas keeps its size."""

    __slots__ = ()
    moves: ClassVar[bool | None] = True
    interpolation: Turning
    fill: Fill
    masks: Masks

    def warped(self, kind: str, value: Any, row: Any, **settings: Any) -> Any:
        """Call torchvision's function: `kind` is "_image" of an image, and "" of what follows one."""
        raise NotImplementedError

    def image(self, image: Any, row: Any) -> Any:
        mode = v2.InterpolationMode(self.interpolation)
        return self.warped("_image", image, row, interpolation=mode, fill=as_list(self.fill))

    def follow(self, value: Any, row: Any) -> Any:
        return self.warped("", value, row, fill=mask_fill(self.fill, self.masks))

    def add_to(self, graph: Graph, name: str, ndim: int, call: Any, fold: Any) -> None:
        """Add what `call` makes of an image, its array, and how to fill and interpolate."""
        fill = one_level(self, self.fill, graph.place)

        def build(image: Any, values: Any) -> Any:
            mode = getattr(types, _DALI[self.interpolation])
            return call(image, values, interp_type=mode, fill_value=fill)

        graph.step(name, "FLOAT", ndim, build, fold)


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
    names: ClassVar[tuple[str, ...]] = ("move",)
    rules: ClassVar[Mapping[str, Rule]] = {"degrees": span(-math.inf, math.inf), "scale": span(1e-6, math.inf)}

    def agree(self) -> None:
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

    def draw(self, d: Draws) -> Mapping[str, NDArray[Any]]:
        """Angle, x and y translation (whole pixels), scale, x and y shear: float64 (n, 6)."""
        u = np.concatenate([d.u(), d.u(1)]).astype(np.float64)

        def between(pair: tuple[float, float], row: int) -> Floats:
            values: Floats = pair[0] + (pair[1] - pair[0]) * u[row]
            return values

        moved = [np.rint((2 * u[1 + k] - 1) * (self.translate[k] * edge)) for k, edge in enumerate((d.w, d.h))]
        shears = between((self.shear[0], self.shear[1]), 4), between((self.shear[2], self.shear[3]), 5)
        return {"move": np.stack([between(self.degrees, 0), *moved, between(self.scale, 3), *shears], axis=1)}

    def warped(self, kind: str, value: Any, row: Any, **settings: Any) -> Any:
        angle, *moved, scale, x, y = row.tolist()
        center = None if self.center is None else list(self.center)
        return getattr(v2.functional, f"affine{kind}")(value, angle, moved, scale, [x, y], center=center, **settings)

    def dali(self, graph: Graph) -> None:
        """Pixel (x, y) is taken from matrix (float32: 2, 3) @ (x, y, 1); halves are pixel centres."""

        def matrices(fold: Any, move: Floats) -> NDArray[np.float32]:
            inverse = source_matrices(move, fold.h, fold.w, self.center, (fold.mirror["x"], fold.mirror["y"]))
            return np.where(fold.on[:, None, None], inverse, np.eye(2, 3, dtype=np.float32))

        def warp(image: Any, matrix: Any, **how: Any) -> Any:
            return fn.warp_affine(image, matrix=matrix, inverse_map=True, **how)

        self.add_to(graph, "matrix", 2, warp, matrices)


def source_matrices(
    draws: Floats, h: Ints, w: Ints, center: tuple[float, float] | None, mirror: tuple[NDArray[np.bool_], ...]
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

    distortion: Probability = 0.5
    p: Probability = 0.5
    interpolation: Turning = "bilinear"
    fill: Fill = 0.0
    masks: Masks = None

    streams: ClassVar[int] = 3  # one for whether to do it, two for eight coordinates
    theirs: ClassVar[Mapping[str, str]] = {"distortion": "distortion_scale"}

    def draw(self, d: Draws) -> Mapping[str, NDArray[Any]]:
        """Corners: x and y, clockwise from the upper left; -1 leaves an image as it is."""
        u = np.concatenate([d.u(k) for k in range(self.streams)])
        return {"effect": corners(self, u, d.h, d.w).astype(np.int32)}

    def warped(self, kind: str, value: Any, row: Any, **settings: Any) -> Any:
        """Move the corners of the image to their new places."""
        ends = row.tolist()
        if ends[0] < 0:
            return value
        height, width = value.shape[-2:] if kind else v2.functional.get_size(value)
        start = [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]]
        end = [ends[k : k + 2] for k in range(0, 8, 2)]
        return getattr(v2.functional, f"perspective{kind}")(value, start, end, **settings)


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
    """Counter-clockwise about the centre by a random angle in degrees; `expand`: onto a canvas that all of it fits."""

    degrees: Range
    interpolation: Turning = "nearest"
    fill: Fill = 0.0
    masks: Masks = None
    expand: bool = False

    called: ClassVar[str] = "RandomRotation"
    names: ClassVar[tuple[str, ...]] = ("angle",)
    rules: ClassVar[Mapping[str, Rule]] = {"degrees": span(-math.inf, math.inf)}

    @property
    def in_nest(self) -> bool:  # type: ignore[override]
        return not self.expand

    def output_size(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        return None if self.expand else size

    def bounds(self, least: Sizes, most: Sizes) -> tuple[Sizes, Sizes]:
        """Turned it is at least its shorter edge, and at most its diagonal, high and wide."""
        if not self.expand:
            return least, most
        short, long = np.minimum(*least), np.ceil(np.hypot(*most)).astype(np.int64) + 1
        return (short, short), (long, long)

    def draw(self, d: Draws) -> Mapping[str, NDArray[Any]]:
        """Angles, in degrees."""
        low, high = self.degrees
        angles = (low + (high - low) * d.u()[0]).astype(np.float32)
        if self.expand and len(angles):
            d.h, d.w = np.array(list(map(_turned_size, angles.tolist(), d.h.tolist(), d.w.tolist())), np.int64).T
        return {"angle": angles}

    def warped(self, kind: str, value: Any, row: Any, **settings: Any) -> Any:
        return getattr(v2.functional, f"rotate{kind}")(value, float(row), expand=self.expand, **settings)

    def dali(self, graph: Graph) -> None:
        """In a mirrored image the other way; twice mirrored it is turned as a whole."""
        if self.expand:
            self.refuse("keeps the size of what it turns", "expand=True")

        def angles(fold: Any, angle: Any) -> NDArray[np.float32]:
            turned = np.where(fold.mirror["x"] ^ fold.mirror["y"], -angle, angle)
            return np.where(fold.on, turned, 0).astype(np.float32)

        def turn(image: Any, angle: Any, **how: Any) -> Any:
            return fn.rotate(image, angle=angle, keep_size=True, **how)

        self.add_to(graph, "angle", 0, turn, angles)


def _turned_size(angle: float, height: int, width: int) -> tuple[int, int]:
    """Height and width of a canvas that all of an image fits, by torchvision's own rounding."""
    if angle % 180 == 0:
        return height, width
    if angle % 90 == 0:
        return width, height
    from torchvision.transforms.v2.functional import _geometry

    matrix = _geometry._get_inverse_affine_matrix([0.0, 0.0], -(angle % 360), [0.0, 0.0], 1.0, [0.0, 0.0])
    wide, high = _geometry._compute_affine_output_size(matrix, width, height)
    return high, wide


def rotation(transform: Any) -> Rotation:
    """From torchvision's RandomRotation, about the middle."""
    if transform.center is not None:
        refuse(transform, "center must be None, the middle of the image", transform.center)
    return Rotation.of(transform)


# ElasticTransform: every pixel moves a little, its neighbours about as far.


@dataclass(frozen=True, slots=True)
class ElasticTransform(Warp):
    """Pixels moved at random by up to `alpha`, in x and y, smoothed by a blur of `sigma`."""

    alpha: tuple[float, float] = (50.0, 50.0)
    sigma: tuple[float, float] = (5.0, 5.0)
    interpolation: Turning = "bilinear"
    fill: Fill = 0.0
    masks: Masks = None

    names: ClassVar[tuple[str, ...]] = ("effect_seed",)

    def agree(self) -> None:
        for name in ("alpha", "sigma"):
            for number in getattr(self, name):
                at_least_zero(self.title, name, number)
        if min(self.sigma) == 0 < max(self.sigma):
            refuse(self.title, "sigma must be two numbers above 0, or none", self.sigma)

    @classmethod
    def of(cls, transform: Any) -> ElasticTransform:
        t = transform
        (ax, ay), (sx, sy) = (np.resize(numbers(each), 2).tolist() for each in (t.alpha, t.sigma))
        return cls((ax, ay), (sx, sy), READ["Turning"](t, "interpolation"), fill_of(t, "fill"), masks_of(t, "fill"))

    def unfit(self, h: Ints, w: Ints) -> list[tuple[int, str]]:
        """The blur mirrors the border."""
        half = max(int(8 * sigma + 1) // 2 if sigma else 0 for sigma in self.sigma)
        need = f"ElasticTransform: sigma={self.sigma} needs an image of {half + 1}x{half + 1} at least"
        return [(k, f"{need}; found {w[k]}x{h[k]}") for k in np.flatnonzero(np.minimum(h, w) <= half).tolist()]

    def draw(self, d: Draws) -> Mapping[str, NDArray[Any]]:
        """Seeds of the moves."""
        return {"effect_seed": seeds_of(d)}

    def warped(self, kind: str, value: Any, row: Any, **settings: Any) -> Any:
        """The moves are made again for each of what follows an image: they take more memory than it does."""
        height, width = value.shape[-2:] if kind else v2.functional.get_size(value)
        generator, moves = generator_of(row), []
        for alpha, sigma, edge in zip(self.alpha, self.sigma, (width, height), strict=True):
            move = torch.rand(1, 1, height, width, generator=generator) * 2 - 1
            if sigma:
                kernel = int(8 * sigma + 1) // 2 * 2 + 1
                move = v2.functional.gaussian_blur(move, [kernel, kernel], list(self.sigma))
            moves.append(move * alpha / edge)
        displacement = torch.concat(moves, 1).permute(0, 2, 3, 1)
        return getattr(v2.functional, f"elastic{kind}")(value, displacement=displacement, **settings)
