"""One recipe by the host engine, by torchvision's v2 functions on the same draws, and by the DALI engine on the CPU."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from kit.photographs import decoded, photographs
from kit.torchvision_auto import applied_auto
from PIL import Image
from torchvision.transforms.v2 import functional

from dali_feed.compiler.dali import compile_dali
from dali_feed.compiler.host import compile_host
from dali_feed.compiler.program import Program
from dali_feed.engines.choose import make_engine
from dali_feed.engines.engine import Work
from dali_feed.options import Tuning
from dali_feed.screen.screen import screen
from dali_feed.transforms.auto_augment import Auto
from dali_feed.transforms.colour import ColorJitter, Grayscale, RandomGrayscale
from dali_feed.transforms.convert import Normalize, ToFloat
from dali_feed.transforms.crops import CenterCrop, Flip, Pad, RandomCrop
from dali_feed.transforms.erasing import RandomErasing
from dali_feed.transforms.filters import GaussianBlur
from dali_feed.transforms.nest import Nest
from dali_feed.transforms.op import Effect, Op, Recipe
from dali_feed.transforms.pointwise import (
    RandomAdjustSharpness,
    RandomAutocontrast,
    RandomEqualize,
    RandomInvert,
    RandomPosterize,
    RandomSolarize,
)
from dali_feed.transforms.resize import RandomResizedCrop, Resize
from dali_feed.transforms.warps import RandomAffine, RandomPerspective, Rotation


def ran(recipe: Recipe, payloads: Sequence[bytes], ids: Sequence[int], threads: int = 2) -> list[torch.Tensor]:
    """The images of all payloads, each a batch of its own, since they may come out in several sizes."""
    program = compile_host(recipe)
    views = [memoryview(payload) for payload in payloads]
    made = program.parameters(screen(views).sizes, np.array(ids, np.int64), 0, 0)
    engine = make_engine("host", program, batch_size=1, device=None, tuning=Tuning(threads=threads))
    out = []
    for n, view in enumerate(views):
        arrays = {name: rows[n : n + 1] for name, rows in made.arrays.items()}
        result = engine.redo(Work(engine.prepare([view]), arrays))
        assert not result.bad
        assert result.images is not None
        out.append(result.images[0])
    engine.close()
    return out


def together(recipe: Recipe, payloads: Sequence[bytes]) -> torch.Tensor:
    """The images of all payloads in one batch, with ids from 0 on."""
    program, n = compile_host(recipe), len(payloads)
    views = [memoryview(payload) for payload in payloads]
    arrays = program.parameters(screen(views).sizes, np.arange(n), 0, 0).arrays
    engine = make_engine("host", program, batch_size=n, device=None, tuning=Tuning(threads=2))
    whole: torch.Tensor | None = engine.redo(Work(engine.prepare(views), arrays)).images
    engine.close()
    assert whole is not None
    return whole


def theirs(recipe: Recipe, payloads: Sequence[bytes], ids: Sequence[int]) -> list[torch.Tensor]:
    """The same by torchvision's v2 functions, from its own decoder, op by op on the whole image."""
    made = compile_host(recipe).parameters(
        screen([memoryview(p) for p in payloads]).sizes, np.array(ids, np.int64), 0, 0
    )
    out = []
    for n, payload in enumerate(payloads):
        rows = {name: values[n].tolist() for name, values in made.arrays.items()}
        image: Any = decoded(payload)
        for k, op in enumerate(recipe.ops):
            image = applied(image, k, op, rows)
        out.append(image)
    return out


def assert_equal(recipe: Recipe, payloads: Sequence[bytes] | None = None) -> None:
    """Every image of the two ways has the same bits."""
    payloads = photographs() if payloads is None else payloads
    ids = range(len(payloads))
    for n, (one, other) in enumerate(zip(ran(recipe, payloads, ids), theirs(recipe, payloads, ids), strict=True)):
        assert one.dtype == other.dtype
        assert torch.equal(one, other), (n, recipe)


def applied(image: torch.Tensor, n: int, op: Op, rows: Any) -> Any:
    """Op n of a recipe, with an image's rows of the parameters."""
    match op:
        case Flip():
            flip = functional.horizontal_flip if op.axis == "x" else functional.vertical_flip
            return flip(image) if rows[f"flip{n}"] else image
        case ColorJitter():
            names = [name for name in ("brightness", "contrast", "saturation", "hue") if getattr(op, name)]
            for k in rows[f"jitter{n}_order"]:
                image = getattr(functional, f"adjust_{names[k]}")(image, rows[f"jitter{n}"][k])
            return image
        case ToFloat():
            return functional.to_dtype(image, getattr(torch, op.dtype), scale=op.scale)
        case Normalize():
            return functional.normalize(image, list(op.mean), list(op.std))
        case Rotation() | RandomAffine():
            return _turned(image, n, op, rows)
        case _ if isinstance(op, Effect):
            return _changed(image, op, rows[f"effect{n}"], rows.get(f"effect{n}_weights"))
        case _ if isinstance(op, Nest):
            for branch in rows[f"pick{n}"]:
                for number, inner in op.within(n)[branch] if branch >= 0 else ():
                    image = applied(image, number, inner, rows)
            return image
        case _:
            return _cut(image, n, op, rows)


def _changed(image: torch.Tensor, op: Effect, row: Any, weights: Any) -> Any:
    """`row`: the sigma, the rectangle, the choices, or whether at all."""
    match op:
        case _ if isinstance(op, Auto):
            return applied_auto(image, op, row, weights)
        case GaussianBlur():
            return functional.gaussian_blur(image, list(op.kernel), [row, row])
        case RandomErasing():
            value = torch.tensor([op.value] if isinstance(op.value, float) else op.value)[:, None, None]
            return functional.erase(image, *row, value) if row[2] and row[3] else image
        case RandomPerspective() if row[0] < 0:
            return image
        case RandomPerspective():
            h, w = functional.get_size(image)
            start, end = [[0, 0], [w - 1, 0], [w - 1, h - 1], [0, h - 1]], np.reshape(row, (4, 2)).tolist()
            return functional.perspective(image, start, end, op.interpolation, op.fill)
        case _:
            return _CHANGES[type(op)](image, op) if row else image


_CHANGES: dict[type[Effect], Any] = {
    Grayscale: lambda image, _: functional.rgb_to_grayscale(image, 3),
    RandomGrayscale: lambda image, _: functional.rgb_to_grayscale(image, 3),
    RandomInvert: lambda image, _: functional.invert(image),
    RandomPosterize: lambda image, op: functional.posterize(image, op.bits),
    RandomSolarize: lambda image, op: functional.solarize(image, op.threshold),
    RandomAdjustSharpness: lambda image, op: functional.adjust_sharpness(image, op.factor),
    RandomAutocontrast: lambda image, _: functional.autocontrast(image),
    RandomEqualize: lambda image, _: functional.equalize(image),
}


def _turned(image: torch.Tensor, n: int, op: Rotation | RandomAffine, rows: Any) -> Any:
    mode = functional.InterpolationMode(op.interpolation)
    if isinstance(op, Rotation):
        return functional.rotate(image, rows[f"angle{n}"], mode, fill=op.fill)
    angle, tx, ty, scale, *shear = rows[f"move{n}"]
    return functional.affine(image, angle, [tx, ty], scale, shear, mode, op.fill, op.center and list(op.center))


def _cut(image: torch.Tensor, n: int, op: Op, rows: Any) -> Any:
    window = rows.get("window" if "window" in rows and n == 0 else f"crop{n}", ())
    match op:
        case RandomResizedCrop():
            mode = functional.InterpolationMode(op.interpolation)
            return functional.resized_crop(image, *window, list(op.size), mode, op.antialias)
        case Resize():
            size = [op.size] if isinstance(op.size, int) else list(op.size)
            mode = functional.InterpolationMode(op.interpolation)
            return functional.resize(image, size, mode, max_size=op.max_size, antialias=op.antialias)
        case CenterCrop():
            return functional.center_crop(image, list(op.size))
        case RandomCrop():
            edges = padding_of(op, *image.shape[-2:])
            y, x, h, w = window
            if op.mode == "constant":  # our window begins in the image, torchvision's in the padded one
                y, x = y + edges[1], x + edges[0]
            return functional.crop(functional.pad(image, edges, op.fill, op.mode), y, x, h, w)
        case Pad():
            return functional.pad(image, list(op.padding), op.fill, op.mode)


def padding_of(op: RandomCrop, height: int, width: int) -> list[int]:
    """Left, top, right, bottom as torchvision's RandomCrop chooses them."""
    left, top, right, bottom = op.padding
    if op.pad_if_needed:
        high = max(0, op.size[0] - (height + top + bottom))
        wide = max(0, op.size[1] - (width + left + right))
        left, top, right, bottom = left + wide, top + high, right + wide, bottom + high
    return [left, top, right, bottom]


def run(program: Program, payloads: Sequence[bytes], ids: Sequence[int]) -> list[torch.Tensor]:
    """The images of all payloads, one after the other through one engine."""
    sizes = np.array([Image.open(io.BytesIO(p)).size[::-1] for p in payloads])
    engine = make_engine("dali", program, batch_size=1, device=None, tuning=Tuning(threads=2))
    made = program.parameters(sizes, np.array(ids, np.int64), seed=0, epoch=0)
    out: list[torch.Tensor] = []
    for n, payload in enumerate(payloads):
        view = engine.prepare([memoryview(payload)])
        engine.submit(Work(view, {name: values[n : n + 1] for name, values in made.arrays.items()}))
        result = engine.take()
        assert not result.bad
        out += list(torch.utils.dlpack.from_dlpack(result.images).clone())
    engine.close()
    return out


def both(recipe: Recipe, *, region_decode: bool = True) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The photographs by DALI and by the host engine."""
    ids = range(len(photographs()))
    return run(compile_dali(recipe, region_decode=region_decode), photographs(), ids), ran(recipe, photographs(), ids)


def distance(ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor], edge: int = 0) -> tuple[float, float]:
    """Largest mean absolute difference of an image, and largest of a value, `edge` pixels along the border left out."""
    worst_mean = worst = 0.0
    for one, other in zip(ours, theirs, strict=True):
        assert one.shape == other.shape
        d = (one.double() - other.double()).abs()
        d = d[:, edge : d.shape[1] - edge, edge : d.shape[2] - edge]
        worst_mean, worst = max(worst_mean, float(d.mean())), max(worst, float(d.max()))
    return worst_mean, worst
