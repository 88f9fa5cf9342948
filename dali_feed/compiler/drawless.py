"""The part of a program that no random number changes: what it gives can be kept for later epochs.

The law: images are kept as they are in front of the steps that a finish step does: flips, floats, the rectangle that is
erased last; on the dali engine colours too. Without a cache the same code does these steps to the same pixels, so its
results are the same bits. Of the host engine's images a RandomCrop may be cut out first: it moves pixels, and a device
moves them as well. What comes before must give the same pixels in every epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.compiler.host import HostProgram, compile_host
from dali_feed.compiler.program import Finish, Program, View
from dali_feed.errors import ConfigError
from dali_feed.transforms.convert import Own, name_of
from dali_feed.transforms.crops import Flip
from dali_feed.transforms.keys import ADJUST, ERASE, FLIPS, Arrays, Key, numbered
from dali_feed.transforms.op import Op, Recipe, walk
from dali_feed.transforms.settings import Fill

__all__ = ["SUBJECT", "Crop", "Drawless", "drawless"]

SUBJECT = "Cache(device=...)"
_FINISH = dict.fromkeys((*FLIPS.values(), ERASE, ADJUST), np.zeros(0))
_PROBES = 64
_AXES = {"x": "Horizontal", "y": "Vertical"}


@dataclass(frozen=True, slots=True)
class Crop:
    """A window that is cut out of each kept image on a GPU: row `key` (y, x, height, width); `fill` outside it."""

    key: Key
    size: tuple[int, int]
    fill: Fill


@dataclass(frozen=True, slots=True)
class Drawless:
    """A program in two parts.

    head    what an engine runs; its images can be kept
    rest    what the CPU does to them then; None: nothing is left, or `finish` is
    crop    what a GPU does to them then
    finish  and what it does behind that
    later   the arrays that only those two take
    """

    head: View
    rest: HostProgram | None = None
    crop: Crop | None = None
    finish: Finish | None = None
    later: frozenset[Key] = frozenset()

    def rows(self, arrays: Arrays, count: int) -> NDArray[np.uint8]:
        """All that decides, with the payload, what `head` gives for each of the samples: uint8 (count, bytes)."""
        own = [np.ascontiguousarray(arrays[key]) for key in sorted(arrays.keys() - self.later)]
        flat = [rows.reshape(count, -1).view(np.uint8) for rows in own if rows.size]
        return np.concatenate(flat, axis=1) if flat else np.zeros((count, 0), np.uint8)


def drawless(engine: str, program: Program, device: int | None) -> Drawless:
    """The two parts of an engine's program.

    Raises ConfigError where the images change from epoch to epoch before the finish step's part begins.
    """
    if len(program.views) != 1:
        found = f"{len(program.views)} views of it" if program.views else "no column that is an Image"
        msg = f"{SUBJECT}: keeps one image of each record; found {found}. Leave device out"
        raise ConfigError(msg)
    (view,) = program.views
    if not program.fixed:
        msg = f"{SUBJECT}: keeps what torchvision's transforms make of an image; found a DALI graph. Leave it out"
        raise ConfigError(msg)
    if engine == "dali" and device is None:
        cure = 'Give Decode(engine="host"), or a GPU'
        msg = f"{SUBJECT}: on the CPU it is for the host engine; found the dali engine. {cure}"
        raise ConfigError(msg)
    if view.recipe.hardware:
        msg = (
            f"{SUBJECT}: keeps pixels that are the same in every batch; with"
            f" Decode(hardware={view.recipe.hardware}) they depend on the batch. Leave one of the two out"
        )
        raise ConfigError(msg)
    made = _of_host(view, device) if isinstance(view, HostProgram) else _of_graph(view)
    _check(made, view, engine)
    return made


def _of_graph(view: Any) -> Drawless:
    return Drawless(view, finish=view.finish, later=frozenset(() if view.finish is None else _FINISH))


def _of_host(view: HostProgram, device: int | None) -> Drawless:
    """On the CPU it is cut where a GPU's finish step would begin, so that both keep the same."""
    recipe = view.recipe
    cut = compile_host(recipe, on_gpu=True).on_cpu
    crop = _cropped(recipe, cut - 1) if cut else None
    if crop is None and device is not None:
        return Drawless(view, finish=view.finish, later=frozenset(() if view.finish is None else _FINISH))
    cut = cut if crop is None else cut - 1
    if cut == len(recipe.ops):
        return Drawless(view)
    head = _head(recipe, cut)
    later = frozenset(_drawn(view, 0).keys() - _drawn(head, 0).keys())
    if device is not None:
        return Drawless(head, crop=crop, finish=view.finish, later=later)
    return Drawless(head, compile_host(recipe, begin=cut), later=later)


def _head(recipe: Recipe, cut: int) -> HostProgram:
    return compile_host(replace(recipe, ops=recipe.ops[:cut], layout="NHWC"))


def _cropped(recipe: Recipe, n: int) -> Crop | None:
    """Op number n as a crop of images that all have one size; None where it is none, or may mirror pixels."""
    cuts, head = recipe.ops[n].cuts(), _head(recipe, n)
    fixed = head.size is not None and head.dtype == "uint8"
    return None if cuts is None or not fixed else Crop(numbered("crop", n), *cuts)


def _drawn(view: View, epoch: int) -> Mapping[Key, NDArray[Any]]:
    """The arrays of some samples."""
    sizes = np.array([(4000, 6000), (6001, 4001)] * (_PROBES // 2), np.int32)
    return view.parameters(sizes, np.arange(_PROBES), 0, epoch).arrays


def _check(made: Drawless, view: View, engine: str) -> None:
    """Raise ConfigError where what `head` gives is another image in each epoch."""
    recipe = view.recipe
    own = next((op for _, op in walk(recipe.ops) if isinstance(op, Own)), None)
    if own is not None:
        msg = (
            f"{SUBJECT}: keeps what is the same in every epoch; found {name_of(own.function)}, a function of your own,"
            " whose result may change. Use Cache(memory, pixels=True) with it"
        )
        raise ConfigError(msg)
    if np.array_equal(made.rows(_drawn(view, 0), _PROBES), made.rows(_drawn(view, 1), _PROBES)):
        return
    msg = (
        f"{SUBJECT}: keeps images as they are before the first random transform; only flips and a RandomErasing at the"
        ' end may be random, and with Decode(engine="host") one RandomCrop after a Resize((height, width)); found'
        f" {_culprit(recipe.ops, engine)}. Put flips after crops and resizes; with other random transforms use"
        " Cache(memory, pixels=True), which keeps decoded images"
    )
    raise ConfigError(msg)


def _culprit(ops: tuple[Op, ...], engine: str) -> str:
    """The first op whose rows differ between epochs; a graph leaves flips to the finish step wherever they stand."""
    known: set[Key] = set()
    for n, op in enumerate(ops):
        first, second = (_drawn(compile_host(Recipe(ops[: n + 1])), epoch) for epoch in (0, 1))
        new = first.keys() - known
        known |= new
        if isinstance(op, Flip) and engine == "dali":
            continue
        if any(not np.array_equal(first[key], second[key]) for key in new):
            return f"Random{_AXES[op.axis]}Flip" if isinstance(op, Flip) else op.title
    return "a random transform"
