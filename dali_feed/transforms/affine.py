"""RandomAffine: an image turned, moved, scaled and sheared; and the matrix that says where each pixel comes from.

Turn, scale and shears follow torchvision: output = T C R(angle) S(scale) SHy(y) SHx(x) C^-1 input, with
T the translation, C the centre, angles clockwise as they are seen, SHx(s) = [1, -tan s; 0, 1] and
SHy(s) = [1, 0; -tan s, 1].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from dali_feed.draws.streams import STREAMS_PER_OP
from dali_feed.transforms import follow
from dali_feed.transforms.base import Arrays, Ints, OnImage, Op
from dali_feed.transforms.batch_draws import BatchDraws
from dali_feed.transforms.edges import one_level
from dali_feed.transforms.fields import fill_of, mask_fill_of, turning
from dali_feed.transforms.graph import INTERPOLATION, Given, Graph
from dali_feed.transforms.keys import numbered
from dali_feed.transforms.rules import Fill, Range, as_list, check_range, refuse
from dali_feed.transforms.run import Run, SizedDraws

__all__ = ["RandomAffine", "Warp", "affine_draws", "source_matrices"]

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
        def matrices(run: Run) -> NDArray[np.float32]:
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
