"""RandomAffine: an image turned, moved, scaled and sheared; and the matrix that says where each pixel comes from.

Turn, scale and shears follow torchvision: output = T C R(angle) S(scale) SHy(y) SHx(x) C^-1 input, with
T the translation, C the centre, angles clockwise as they are seen, SHx(s) = [1, -tan s; 0, 1] and
SHy(s) = [1, 0; -tan s, 1].
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from dali_feed.draws import STREAMS_PER_OP
from dali_feed.transforms import follow
from dali_feed.transforms.crops import one_level
from dali_feed.transforms.keys import numbered
from dali_feed.transforms.op import (
    INTERPOLATION,
    Arrays,
    BatchDraws,
    Effect,
    Given,
    Graph,
    Ints,
    OnImage,
    Op,
    OpRun,
    SizedDraws,
    effect_key,
)
from dali_feed.transforms.settings import (
    Fill,
    Range,
    as_list,
    check_p,
    check_range,
    fail,
    fill_of,
    mask_fill_of,
    refuse,
    turning,
)

__all__ = ["RandomAffine", "RandomPerspective", "Rotate", "Rotation", "corners"]


Doubles = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RandomAffine(Op):
    """Turned by `degrees`, moved by up to `translate` (fractions of width and height), scaled, sheared.

    `shear` is (x low, x high, y low, y high) in degrees. All about `center` (x, y in pixels), or the
    middle. The canvas keeps its size.
    """

    degrees: Range
    translate: tuple[float, float] = (0.0, 0.0)
    scale: Range = (1.0, 1.0)
    shear: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    interpolation: Literal["nearest", "bilinear"] = "nearest"
    fill: Fill = 0.0
    center: tuple[float, float] | None = None
    masks: Fill | None = None  # what fills those that follow; None: as the image

    streams: ClassVar[int] = 2
    in_nest: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_range("RandomAffine", "degrees", self.degrees, -float("inf"), float("inf"))
        if len(self.translate) != 2 or not all(0 <= part <= 1 for part in self.translate):
            refuse("RandomAffine", "translate must be two fractions in 0..1 (of width, of height)", self.translate)
        check_range("RandomAffine", "scale", self.scale, 1e-6, float("inf"))
        for pair in (self.shear[:2], self.shear[2:]):
            check_range("RandomAffine", "shear", pair, -90.0, 90.0)

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
            turning(t),
            fill_of(t),
            None if t.center is None else (float(t.center[0]), float(t.center[1])),
            mask_fill_of(t),
        )

    def draws(self, draws: BatchDraws, first: int, h: Ints, w: Ints) -> Doubles:
        """As `affine_draws`."""
        return affine_draws(self, h, w, np.concatenate([draws.draw(first), draws.draw(first + 1)]))

    def host_rows(self, run: SizedDraws, n: int) -> None:
        run.arrays[numbered("move", n)] = self.draws(run, n * STREAMS_PER_OP, run.h, run.w)

    def host_steps(self, n: int, *, window: bool = False) -> list[OnImage]:
        key, fill = numbered("move", n), as_list(self.fill)
        center = None if self.center is None else list(self.center)

        def apply(image: Any, arrays: Arrays, slot: int) -> Any:
            from torchvision.transforms.v2 import InterpolationMode, functional

            angle, *moved, scale, x, y = arrays[key][slot].tolist()
            mode = InterpolationMode(self.interpolation)
            return functional.affine_image(
                image, angle, moved, scale, [x, y], interpolation=mode, fill=fill, center=center
            )

        return [apply]

    def follow_steps(self, n: int) -> list[OnImage]:
        key, fill = numbered("move", n), follow.fill_behind(self.fill, self.masks)
        center = None if self.center is None else list(self.center)

        def apply(given: Any, arrays: Arrays, slot: int) -> Any:
            from torchvision.transforms.v2 import functional

            angle, *moved, scale, x, y = arrays[key][slot].tolist()
            return functional.affine(given, angle, moved, scale, [x, y], fill=fill, center=center)

        return [apply]

    def in_graph(self, graph: Graph, first: int) -> None:
        def matrices(run: OpRun) -> NDArray[np.float32]:
            mirror = run.mirror["x"], run.mirror["y"]
            found = source_matrices(self.draws(run, first, run.h, run.w), run.h, run.w, self.center, mirror)
            return np.where(run.on[:, None, None], found, np.eye(2, 3, dtype=np.float32))

        graph.step(Warp(graph.k + 1, self.interpolation, one_level(self, self.fill, graph.place)), matrices)


@dataclass(frozen=True, slots=True)
class Warp:
    """Pixel (x, y) is taken from matrix{k} (float32: 2, 3) @ (x, y, 1); halves are pixel centres."""

    k: int
    interpolation: Literal["nearest", "bilinear"]
    fill: float

    name: ClassVar[str] = "matrix"

    def on(self, image: Any, given: Given, *, gpu: bool) -> Any:
        """Move the pixels; the canvas keeps its size."""
        del gpu
        from nvidia.dali import fn, types

        return fn.warp_affine(
            image,
            matrix=given(numbered("matrix", self.k), "FLOAT", 2),
            interp_type=getattr(types, INTERPOLATION[self.interpolation]),
            inverse_map=True,
            fill_value=self.fill,
        )


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
class RandomPerspective(Effect):
    """The image as seen from another place: each corner moves inwards, by up to `distortion` of half the edge."""

    distortion: float = 0.5
    p: float = 0.5
    interpolation: Literal["nearest", "bilinear"] = "bilinear"
    fill: Fill = 0.0
    masks: Fill | None = None  # what fills those that follow; None: as the image

    streams: ClassVar[int] = 3  # one for whether to do it, two for eight coordinates

    def __post_init__(self) -> None:
        if not 0.0 <= self.distortion <= 1.0:
            refuse("RandomPerspective", "distortion_scale must lie in 0..1", self.distortion)
        check_p("RandomPerspective", self.p)

    @classmethod
    def of(cls, transform: Any) -> Self:
        t = transform
        return cls(float(t.distortion_scale), float(t.p), turning(t), fill_of(t), mask_fill_of(t))

    def rows(self, draws: BatchDraws, first: int, h: Ints, w: Ints) -> NDArray[np.int32]:
        """Corners: x and y, clockwise from the upper left; -1 leaves an image as it is."""
        drawn = np.concatenate([draws.draw(first + k) for k in range(self.streams)])
        return corners(self, drawn, h, w).astype(np.int32)

    def image(self, image: Any, row: Any) -> Any:
        """Move the corners of the image to their new places."""
        from torchvision.transforms.v2 import InterpolationMode, functional

        start, end = _ends(row, image.shape[-2:])
        if not end:
            return image
        mode, fill = InterpolationMode(self.interpolation), as_list(self.fill)
        return functional.perspective_image(image, start, end, interpolation=mode, fill=fill)

    def follow_steps(self, n: int) -> list[OnImage]:
        key, fill = effect_key(n), follow.fill_behind(self.fill, self.masks)

        def apply(given: Any, arrays: Arrays, slot: int) -> Any:
            from torchvision.transforms.v2 import functional

            start, end = _ends(arrays[key][slot], functional.get_size(given))
            return functional.perspective(given, start, end, fill=fill) if end else given

        return [apply]


def _ends(row: Any, size: tuple[int, int]) -> tuple[list[list[int]], list[list[int]]]:
    """The corners of an image of that size, and where they go; nowhere where it is left as it is."""
    ends, (height, width) = row.tolist(), size
    start = [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]]
    return start, [] if ends[0] < 0 else [ends[k : k + 2] for k in range(0, 8, 2)]


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
class Rotation(Op):
    """Counter-clockwise about the centre by a random angle in degrees; the canvas keeps its size."""

    degrees: Range
    interpolation: Literal["nearest", "bilinear"] = "nearest"
    fill: Fill = 0.0
    masks: Fill | None = None  # what fills those that follow; None: as the image

    streams: ClassVar[int] = 1
    in_nest: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_range("RandomRotation", "degrees", self.degrees, -float("inf"), float("inf"))

    @classmethod
    def of(cls, transform: Any) -> Rotation:
        t = transform
        if t.expand:
            raise fail(t, "expand must be False: all images of a batch have one size", t.expand)
        if t.center is not None:
            raise fail(t, "center must be None, the middle of the image", t.center)
        low, high = t.degrees
        return cls((float(low), float(high)), turning(t), fill_of(t), mask_fill_of(t))

    @property
    def title(self) -> str:
        return "RandomRotation"

    def host_rows(self, run: SizedDraws, n: int) -> None:
        low, high = self.degrees
        run.arrays[numbered("angle", n)] = (low + (high - low) * run.draw(n * STREAMS_PER_OP)[0]).astype(np.float32)

    def host_steps(self, n: int, *, window: bool = False) -> list[OnImage]:
        key, fill = numbered("angle", n), as_list(self.fill)

        def apply(image: Any, arrays: Arrays, slot: int) -> Any:
            from torchvision.transforms.v2 import InterpolationMode, functional

            angle, mode = float(arrays[key][slot]), InterpolationMode(self.interpolation)
            return functional.rotate_image(image, angle, interpolation=mode, fill=fill)

        return [apply]

    def follow_steps(self, n: int) -> list[OnImage]:
        key, fill = numbered("angle", n), follow.fill_behind(self.fill, self.masks)

        def apply(given: Any, arrays: Arrays, slot: int) -> Any:
            from torchvision.transforms.v2 import functional

            return functional.rotate(given, float(arrays[key][slot]), fill=fill)

        return [apply]

    def in_graph(self, graph: Graph, first: int) -> None:
        low, high = self.degrees

        def angles(run: OpRun) -> NDArray[np.float32]:
            angle = low + (high - low) * run.draw(first)[0]
            turned = np.where(run.mirror["x"] ^ run.mirror["y"], -angle, angle)
            return np.where(run.on, turned, 0).astype(np.float32)

        graph.step(Rotate(graph.k + 1, self.interpolation, one_level(self, self.fill, graph.place)), angles)


@dataclass(frozen=True, slots=True)
class Rotate:
    """By angle{k} (float32, degrees, counter-clockwise) about the centre."""

    k: int
    interpolation: Literal["nearest", "bilinear"]
    fill: float

    name: ClassVar[str] = "angle"

    def on(self, image: Any, given: Given, *, gpu: bool) -> Any:
        """Turn it; the canvas keeps its size."""
        del gpu
        from nvidia.dali import fn, types

        return fn.rotate(
            image,
            angle=given(numbered("angle", self.k), "FLOAT", 0),
            interp_type=getattr(types, INTERPOLATION[self.interpolation]),
            keep_size=True,
            fill_value=self.fill,
        )
