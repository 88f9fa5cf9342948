"""Masks, boxes and points beside torchvision's own functions for them, bit for bit; what masks are filled with."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit.followers import GEOMETRY, boxes, classes, columns, pictured, points
from kit.images import QUICK, encoded
from kit.torchvision_way import applied
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional
from torchvision.transforms.v2.functional._geometry import _get_perspective_coeffs

from dali_feed import DataLoader, Decode
from dali_feed.columns import Boxes, Keypoints, Mask
from dali_feed.columns.column import Faults
from dali_feed.errors import TransformError
from dali_feed.transforms.lower import lower
from dali_feed.transforms.op import Draws, Key
from dali_feed.transforms.program import compile_following, compile_host, outline


def theirs(transform: Any, numbers: list[int], ids: np.ndarray[Any, Any], seed: int) -> list[tuple[Any, Any, Any]]:
    """Mask, boxes and points of each record by torchvision's functions for tv_tensors, on the same draws."""
    recipe = lower(transform)
    sizes = np.array([classes(n).shape for n in numbers], np.int32)
    made = compile_host(recipe).parameters(sizes, ids, seed, 0).arrays
    out = []
    for row, n in enumerate(numbers):
        rows = {name: values[row].tolist() for name, values in made.items()}
        size = classes(n).shape
        kept: list[Any] = [
            tv_tensors.Mask(torch.from_numpy(classes(n).copy())[None]),
            tv_tensors.BoundingBoxes(
                torch.tensor([box[:4] for box in boxes(n)]).reshape(-1, 4), format="XYXY", canvas_size=size
            ),
            tv_tensors.KeyPoints(torch.tensor(points(n)).reshape(-1, 2), canvas_size=size),
        ]
        moving = [(k, op) for k, op in enumerate(recipe.ops) if type(op).__name__ not in STILL]
        for k, op in moving:
            kept = [applied(given, k, op, rows) for given in kept]
        out.append((kept[0][0], kept[1], kept[2]))
    return out


STILL = {"ColorJitter", "RandomGrayscale", "ToFloat", "Normalize", "RandomErasing"}


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        (name, engine)
        for name in GEOMETRY
        for engine in ("host", "dali")
        if name != "nests" and (name, engine) != ("perspective", "dali")  # DALI has no operator for it
    ],
)
def test_what_follows_is_torchvisions_bit_for_bit(tmp_path: Path, name: str, engine: str) -> None:
    """Masks, boxes and points of every geometric transform, by the draws of the image in the slot."""
    transform = GEOMETRY[name]
    source = pictured(tmp_path)
    size = 1 if name in ("pad", "resize to an edge, middle") else 4
    with DataLoader(
        source,
        size,
        shuffle=True,
        columns=columns(transform),
        decode=Decode(engine=engine),
        tuning=QUICK,
        seed=5,
        info=True,
    ) as loader:
        for batch, info in loader:
            numbers = batch["n"].tolist()
            assert info.ok.all()
            for slot, (mask, box, point) in enumerate(theirs(transform, numbers, info.ids.numpy(), 5)):
                assert torch.equal(batch["mask"][slot], mask.as_subclass(torch.Tensor)), (name, numbers[slot])
                assert torch.equal(batch["boxes"][slot][:, :4], box.as_subclass(torch.Tensor))
                assert batch["boxes"][slot][:, 4].tolist() == list(range(numbers[slot] % 4))
                assert torch.equal(batch["points"][slot], point.as_subclass(torch.Tensor))


@pytest.mark.parametrize(
    ("column", "data", "reason"),
    [
        (Mask("m"), encoded(np.zeros((9, 9), np.uint8)), "a mask must have the size of its image, 56x40; found 9x9"),
        (Mask("m"), encoded(np.full((40, 56), -2, np.int32), "TIFF"), "must fit into uint8; found -2"),
        (Mask("m", dtype="int16"), encoded(np.full((40, 56), 1 << 15, np.int32), "TIFF"), "int16; found 32768"),
        (Mask("m"), encoded(np.zeros((40, 56, 3), np.uint8)), "one number for each pixel; found an image of mode RGB"),
        (Boxes("b", more=1), b"[[1, 2, 3]]", r"rows of 5 numbers are needed; found an array of shape \(1, 3\)"),
        (Boxes("b", more=1), b"[[1, 2, 3, 1e999, 0]]", "rows of 5 numbers are needed; json: "),
        (Keypoints("p"), b"[[1, 1e40]]", "found a number that is infinite or NaN"),
        (Keypoints("p"), b"7", "rows of 2 numbers are needed; "),
        (Keypoints("p", most=1), b"[[1, 2], [3, 4]]", r"at most 1 rows \(most=\) are allowed; found 2"),
    ],
)
def test_why_it_cannot_follow(column: Mask | Boxes | Keypoints, data: bytes, reason: str) -> None:
    """Said when it is read, or when it is moved."""
    faults: Faults = {}
    (value,) = column.read([memoryview(data)], faults)
    if isinstance(column, Mask):
        with pytest.raises(ValueError, match=reason):
            column.followed(value, (40, 56), lambda moved: moved)
    else:
        assert re.search(reason, faults[0])


@pytest.mark.parametrize("form", ["xyxy", "xywh", "cxcywh"])
def test_small_boxes_and_those_that_leave_the_image_are_dropped(form: Any) -> None:
    """As torchvision's SanitizeBoundingBoxes drops them, with what stands behind their four numbers."""
    corners = [[2, 3, 9, 8], [-1, 3, 9, 8], [2, -1, 9, 8], [2, 3, 13, 8], [2, 3, 9, 21], [0, 0, 12, 20], [2, 3, 4, 8]]
    corners += [[2, 3, 9, 5], [2, 3, 5, 6], [2, 14, 9, 18]]
    given = tv_tensors.BoundingBoxes(torch.tensor(corners, dtype=torch.float32), format="XYXY", canvas_size=(20, 12))
    boxes = functional.convert_bounding_box_format(given, new_format=form.upper())
    numbers = torch.arange(float(len(corners)))[:, None]
    kept, labels = v2.SanitizeBoundingBoxes(min_size=3)(boxes, numbers)
    column = Boxes("b", format=form, more=1, min_size=3)
    found = column.followed(torch.cat([boxes, numbers], 1).numpy(), (20, 12), lambda moved: moved)
    assert found.tolist() == torch.cat([kept, labels], 1).tolist()
    assert found[:, 4].tolist() == [0, 5, 8, 9]


def test_what_stands_behind_a_point_stays_with_it() -> None:
    """Such as whether it is seen."""
    rows = np.array([[1, 2, 0], [3, 4, 2]], np.float32)
    flipped = v2.RandomHorizontalFlip(1.0)
    assert Keypoints("p", more=1).followed(rows, (10, 12), flipped).tolist() == [[10, 2, 0], [8, 4, 2]]


# Whatever they draw, but for perspective, the mask moves in the same way.
FILLING: dict[str, Any] = {
    "pad": lambda fill: v2.Pad((1, 2, 3, 4), fill=fill),
    "crop": lambda fill: v2.RandomCrop((26, 32), padding=(4, 3), fill=fill),
    "rotation": lambda fill: v2.RandomRotation((30, 30), fill=fill),
    "affine": lambda fill: v2.RandomAffine((30, 30), fill=fill),
    "perspective": lambda fill: v2.RandomPerspective(0.9, 1.0, fill=fill),
}
FILLS: list[Any] = [
    5,
    {tv_tensors.Mask: 255, "others": 0},
    {tv_tensors.Mask: 255, tv_tensors.Image: (1, 2, 3)},
    {tv_tensors.Image: 9},
    {tv_tensors.Image: 3, "others": 7},
]


@pytest.mark.parametrize("fill", FILLS, ids=str)
@pytest.mark.parametrize("name", FILLING)
def test_masks_are_filled_as_torchvision_fills_them(name: str, fill: Any) -> None:
    """With the number for masks, for all others, or for everything; 0 where none of them is told."""
    mask = tv_tensors.Mask(torch.ones(1, 20, 24, dtype=torch.int32))
    transform = FILLING[name](fill)
    recipe = lower(transform)
    followed = compile_following(recipe, boxes=False)
    draws = Draws(outline(recipe).streams, np.array([[20, 24]]), np.array([1]), 0, 0)
    arrays = followed.taken(draws.through(enumerate(recipe.ops)))
    if name == "perspective":  # the one whose draws matter here
        start, ends = [[0, 0], [23, 0], [23, 19], [0, 19]], arrays[Key("effect0")][0].reshape(4, 2).tolist()
        wanted = transform.transform(mask, {"coefficients": _get_perspective_coeffs(start, ends)})
    else:
        wanted = transform(mask)
    found = followed.run(mask, arrays, 0)
    assert torch.equal(found, wanted)
    assert (found != 1).any()


@pytest.mark.parametrize("fill", [(1, 2, 3), {"others": (1, 2, 3)}], ids=str)
@pytest.mark.parametrize("name", FILLING)
def test_no_mask_is_filled_with_three_numbers(name: str, fill: Any) -> None:
    """Torchvision raises where it moves the mask; here it is told when the loader is made. Boxes do not mind."""
    recipe = lower(v2.Compose([v2.Resize((20, 24)), FILLING[name](fill)]))
    with pytest.raises(TransformError, match=r"masks must be filled with one number; found fill=\(1.0, 2.0"):
        compile_following(recipe, boxes=False)
    compile_following(recipe, boxes=True, masks=False)
