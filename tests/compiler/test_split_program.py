"""What DALI has no operators for, behind its graph: the host engine's pixels to the bit where images have one size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from dali_way import distance
from kit.images import QUICK, broken_png, labelled
from kit.photographs import photographs
from kit.torchvision_way import ran
from recipes import ANY, FLOAT, MAKERS, SMALL, simclr
from torchvision.transforms import v2

from dali_feed import BadRecords, DataLoader
from dali_feed.compiler.dali import DaliProgram, compile_recipe
from dali_feed.compiler.split import SplitProgram, compile_dali
from dali_feed.engines.choose import make_engine
from dali_feed.engines.compiling import compile_for
from dali_feed.engines.engine import Work
from dali_feed.errors import TransformError
from dali_feed.options import Decode, Tuning
from dali_feed.screen.screen import screen
from dali_feed.testing.scripted import ScriptedSource
from dali_feed.transforms.affine import RandomAffine
from dali_feed.transforms.autocontrast import RandomAutocontrast
from dali_feed.transforms.base import Op
from dali_feed.transforms.center_crop import CenterCrop
from dali_feed.transforms.color_jitter import ColorJitter
from dali_feed.transforms.equalize import RandomEqualize
from dali_feed.transforms.erasing import RandomErasing
from dali_feed.transforms.flip import Flip
from dali_feed.transforms.grayscale import Grayscale
from dali_feed.transforms.invert import RandomInvert
from dali_feed.transforms.keys import of_behind
from dali_feed.transforms.lower import lower
from dali_feed.transforms.nest import RandomApply, RandomOrder
from dali_feed.transforms.normalize import Normalize
from dali_feed.transforms.pad import Pad
from dali_feed.transforms.perspective import RandomPerspective
from dali_feed.transforms.posterize import RandomPosterize
from dali_feed.transforms.random_crop import RandomCrop
from dali_feed.transforms.random_resized_crop import RandomResizedCrop
from dali_feed.transforms.recipe import Recipe
from dali_feed.transforms.resize import Resize
from dali_feed.transforms.rotation import Rotation
from dali_feed.transforms.sharpness import RandomAdjustSharpness
from dali_feed.transforms.solarize import RandomSolarize
from dali_feed.transforms.to_float import ToFloat

pytestmark = pytest.mark.filterwarnings("ignore:The image decoding:DeprecationWarning")


def by_dali(recipe: Recipe, times: int = 1) -> list[torch.Tensor]:
    """The photographs, so many `times`, as one batch."""
    program = compile_for("dali", recipe, None)
    views = [memoryview(payload) for payload in photographs() * times]
    engine = make_engine("dali", program, batch_size=len(views), device=None, tuning=Tuning(threads=2))
    made = program.parameters(screen(views).sizes, np.arange(len(views)), 0, 0)
    engine.submit(Work(engine.prepare(views), made.arrays))
    result = engine.take()
    assert not result.bad
    assert result.images is not None
    out = list(torch.utils.dlpack.from_dlpack(result.images).clone())
    engine.close()
    sizes = [image.shape[1:] if recipe.layout == "NCHW" else image.shape[:2] for image in out]
    assert [tuple(size) for size in sizes] == [tuple(size) for size in made.sizes.tolist()]
    return out


def by_host(recipe: Recipe, times: int = 1) -> list[torch.Tensor]:
    """The same by the host engine, which is torchvision's bit for bit."""
    return ran(recipe, photographs() * times, range(times * len(photographs())))


SPLIT: dict[str, tuple[Op, ...]] = {
    "sharpness": (RandomAdjustSharpness(2.0),),
    "autocontrast behind flips": (Flip("x"), Flip("y"), RandomAutocontrast(), Flip("x")),
    "equalize in a nest": (RandomApply((Flip("x"), RandomEqualize())),),
    "perspective": (RandomPerspective(0.5, 0.8, fill=(9.0, 8.0, 7.0)),),
    "order": (RandomOrder(((Grayscale(),), (Flip("x"),), (RandomInvert(),))), Flip("y")),
    "with floats behind": (Flip("x"), RandomEqualize(), *FLOAT, RandomErasing(1.0, value=9.0)),
    "posterized floats": (Flip("x"), ToFloat(), RandomPosterize(3), Flip("y")),
    "floats in 0..255": (ToFloat(scale=False), RandomInvert(), RandomSolarize(0.5)),
    "half floats": (ToFloat("bfloat16"), RandomEqualize(), Normalize((0.5,), (0.25,))),
    "bytes that stay so": (ToFloat("uint8"), RandomEqualize()),
    "colours around it": (
        Rotation((-9.0, 9.0), fill=(1.0, 2.0, 3.0)),
        ColorJitter((0.5, 1.5)),
        RandomAffine((1.0, 9.0)),
    ),
    "mirrored padding": (RandomCrop((64, 80), (8, 8, 8, 8), mode="reflect"), Flip("x")),
    "other sizes behind": (RandomEqualize(), RandomResizedCrop((30, 40)), Pad((1, 2, 3, 4), 7.0), CenterCrop((20, 50))),
    "any": (RandomEqualize(), *ANY),
}
SPLIT |= {name: (Flip("x"), *lower(make()).ops, Flip("y"), *FLOAT) for name, make in MAKERS.items()}


@pytest.mark.parametrize(("name", "layout"), [*((name, "NCHW") for name in SPLIT), ("order", "NHWC"), ("rand", "NHWC")])
def test_behind_the_graph_pixels_are_the_host_engines(name: str, layout: Any) -> None:
    """To the bit, with the same draws, in every dtype and layout, wherever flips stand."""
    recipe = Recipe((SMALL, *SPLIT[name]), layout)
    assert isinstance(compile_for("dali", recipe, None), SplitProgram)
    for one, other in zip(by_dali(recipe), by_host(recipe), strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


# Bounds on the worst image's mean, in levels; measured ones behind each. Without an operation it is 0.18.
CROPS: dict[str, tuple[tuple[Op, ...], float]] = {
    "equalize": ((RandomEqualize(1.0),), 1.5),  # 1.13
    "autocontrast": ((RandomAutocontrast(1.0),), 1.0),  # 0.77
    "sharpness": ((RandomAdjustSharpness(2.0, 1.0),), 0.45),  # 0.35
    "perspective": ((RandomPerspective(0.5, 1.0),), 0.13),  # 0.096
    "imagenet": (lower(MAKERS["imagenet"]()).ops, 2.3),  # 1.76
    "cifar10": (lower(MAKERS["cifar10"]()).ops, 0.7),  # 0.54
    "svhn": (lower(MAKERS["svhn"]()).ops, 0.8),  # 0.60
    "rand": (lower(MAKERS["rand"]()).ops, 1.5),  # 1.14
    "trivial": (lower(MAKERS["trivial"]()).ops, 1.45),  # 1.11
    "mix": (lower(MAKERS["mix"]()).ops, 0.55),  # 0.42
}


@pytest.mark.parametrize("name", CROPS)
def test_behind_a_resampled_crop(name: str) -> None:
    """By what DALI's resize differs goes through the operations; those that stretch values stretch it too."""
    ops, mean = CROPS[name]
    recipe = Recipe((RandomResizedCrop((96, 96)), Flip("x"), *ops))
    found = distance(by_dali(recipe, 4), by_host(recipe, 4))
    assert found[0] <= mean, found


def test_the_cut_is_in_front_of_what_dali_has_not() -> None:
    """As much as can be is the graph's: all of a recipe that it takes, else what comes before that op or floats."""

    def begin(*ops: Op) -> int | None:
        program = compile_dali(Recipe((SMALL, *ops)), on_gpu=False)
        return program.behind.begin if isinstance(program, SplitProgram) and program.behind else None

    assert begin(*lower(simclr(v2)).ops) is None
    assert begin(Flip("x"), Grayscale(), RandomEqualize()) == 3
    assert begin(Flip("x"), ToFloat(), Grayscale(), RandomPosterize(3)) == 2
    assert begin(ToFloat("uint8"), RandomEqualize()) == 2
    whole = compile_dali(Recipe((SMALL, Grayscale())), on_gpu=False)
    assert type(whole) is DaliProgram


def test_before_a_gpu_the_finish_is_left_to_its_kernel() -> None:
    """Flips and floats that a recipe ends in are not run image by image; the graph's own flips come before."""
    program = compile_dali(Recipe((SMALL, Flip("x"), RandomEqualize(), Flip("y"), *FLOAT)), on_gpu=True)
    assert isinstance(program, SplitProgram)
    assert program.behind is not None
    assert program.finish is not None
    assert program.behind.finish is not None
    assert (program.finish.dtype, program.finish.layout, program.finish.flip_x) == ("uint8", "NHWC", True)
    assert (program.behind.finish.dtype, program.behind.finish.layout) == ("float32", "NCHW")
    assert len(program.behind.steps) == 1
    arrays = program.parameters(np.full((4, 2), 99, np.int32), np.arange(4), 0, 0).arrays
    assert set(of_behind(arrays)) == {"effect2", "flip_y"}
    assert "flip_x" in arrays


@pytest.mark.parametrize(
    "ops",
    [
        (RandomEqualize(),),
        (Resize(60), RandomEqualize(), CenterCrop((9, 9))),
        (RandomApply((RandomAutocontrast(),)), RandomResizedCrop((9, 9))),
        (Pad((1, 1, 1, 1), mode="reflect"),),
        (CenterCrop((9, 9)), RandomEqualize(), Resize(20)),
    ],
)
def test_images_of_several_sizes_are_refused(ops: tuple[Op, ...]) -> None:
    """What comes behind the graph works on a batch of one size; the message names the op and both ways out."""
    told = r"the dali engine .* can run it, and this one can after a transform that gives all images one size$"
    with pytest.raises(TransformError, match=told):
        compile_dali(Recipe(ops), on_gpu=False)
    with pytest.raises(TransformError, match=r"The host engine can run it$"):
        compile_recipe(Recipe(ops), region_decode=True)


def test_an_order_without_meaning_is_told_first() -> None:
    """Of a recipe that no engine takes the message is the same for all."""
    recipe = Recipe((SMALL, RandomEqualize(), Normalize((0.5,), (0.5,))))
    with pytest.raises(TransformError, match="^Normalize: needs float pixels; found uint8"):
        compile_dali(recipe, on_gpu=False)


def test_a_loader_resumes_and_mends() -> None:
    """In the middle of an epoch, bit for bit, with a bad record replaced; the same batches whatever their size."""
    transform = v2.Compose(
        [v2.RandomResizedCrop(12), v2.RandomHorizontalFlip(), v2.RandAugment(), v2.AugMix(), v2.ToDtype(torch.float32)]
    )
    source = ScriptedSource([*labelled(9), (broken_png(), 9), *labelled(6)])
    options: dict[str, Any] = {
        "transform": transform,
        "decode": Decode(engine="dali"),
        "device": "cpu",
        "tuning": QUICK,
        "seed": 3,
    }
    options |= {"bad": BadRecords(limit=None), "shuffle": True, "info": True}
    with DataLoader(source, 4, **options) as one:
        whole: list[Any] = []
        state: dict[str, Any] = {}
        for images, _, info in one:
            whole.append((images.clone(), info))
            state = state or one.state_dict()
    assert sum(int((~info.ok).sum()) for _, info in whole) == 1
    with DataLoader(source, 2, **options) as two:
        two.load_state_dict(state)
        rest = list(two)
    assert torch.equal(torch.cat([images for images, _, _ in rest]), torch.cat([images for images, _ in whole[1:]]))
