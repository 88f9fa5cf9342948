"""A user's transform compiled to the program that the chosen engine runs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dali_feed.compiler.host import compile_host
from dali_feed.compiler.no_image import NoImage
from dali_feed.compiler.program import Program, View
from dali_feed.compiler.tail_colour import compile_dali
from dali_feed.compiler.user_graph import compile_function, is_graph_function
from dali_feed.compiler.user_pipeline import PipelineProgram
from dali_feed.compiler.views import ViewsProgram, as_views
from dali_feed.engines.choose import ON_CPU, choose_engine
from dali_feed.errors import ConfigError, TransformError
from dali_feed.options import Tuning
from dali_feed.transforms.lower import lower
from dali_feed.transforms.numbering import walk
from dali_feed.transforms.recipe import Recipe
from dali_feed.transforms.rules import Decoding, Layout

__all__ = ["compile_for", "compiled"]

log = logging.getLogger("dali_feed")


def compiled(  # noqa: PLR0913  what decides pixels, as in Feed
    transform: object,
    layout: Layout,
    decode: Decoding,
    engine: str | None,
    device: int | None,
    tuning: Tuning | None = None,
    hw_decoder_load: float = 0.0,
    *,
    exif: bool = False,
    images: bool = True,
) -> tuple[str, Program]:
    """The engine's name and its program. Raises ConfigError, TransformError where it cannot run the transform.

    `images`: whether there are any; without them nothing is run, and the arguments are checked all the same.
    """
    graph = isinstance(transform, PipelineProgram) or is_graph_function(transform)
    name = choose_engine(engine, device, graph=graph)
    _check(name, layout, decode, exif=exif)
    load = _share(hw_decoder_load)
    if not images:
        if exif:
            msg = "exif: turns images, and no column is an Image; found exif=True. Leave it out"
            raise ConfigError(msg)
        return "none", NoImage()
    if decode == "region" and graph:
        rule = "decodes only the part of an image that torchvision's transforms crop"
        msg = f'decode: "region" {rule}; found a DALI graph. Leave decode out'
        raise ConfigError(msg)
    if graph:
        return name, _graph(transform, layout, load, exif=exif)
    views = as_views(transform)
    if views is None:
        recipe = replace(lower(transform), layout=layout, decode=decode, hw_decoder_load=load, exif=exif)
        return _by_either(
            name,
            engine if device is not None else name,
            [recipe],
            lambda name: compile_for(name, recipe, device, tuning),
        )
    if decode != "exact":
        rule = "is for one view, as each view may need another part or size of the image"
        msg = f'decode: "{decode}" {rule}; found {len(views.transforms)} views. Leave decode out'
        raise ConfigError(msg)
    if any(map(is_graph_function, views.transforms)):
        rule = "a list must hold torchvision's transforms only"
        msg = f"transform: {rule}; found a DALI graph function in it. Give the function alone"
        raise TransformError(msg)
    recipes = [replace(lower(each), layout=layout, hw_decoder_load=load, exif=exif) for each in views.transforms]

    def whole(name: str) -> ViewsProgram[View]:
        return ViewsProgram(tuple(compile_for(name, recipe, device, whole=True) for recipe in recipes))

    return _by_either(name, engine if device is not None else name, recipes, whole)


def _check(engine: str, layout: object, decode: object, *, exif: object) -> None:
    """Raise ConfigError for a value that is none of these, and for what the engine cannot do."""
    if layout not in ("NCHW", "NHWC"):
        msg = f'layout: must be "NCHW" or "NHWC"; found {layout!r}'
        raise ConfigError(msg)
    if decode not in ("exact", "reduced", "region"):
        msg = f'decode: must be "exact", "reduced" or "region"; found {decode!r}'
        raise ConfigError(msg)
    if decode == "reduced" and engine != "host":
        msg = f'decode: "reduced" needs the host engine; found the {engine} engine. Leave decode out'
        raise ConfigError(msg)
    if not isinstance(exif, bool):
        msg = f"exif: must be True or False; found {exif!r}"
        raise ConfigError(msg)


def _graph(transform: Any, layout: Layout, load: float, *, exif: bool) -> Program:
    """The program of a user's own graph."""
    if layout != "NCHW":
        rule = "must be left out with a DALI graph, which decides it itself"
        msg = f"layout: {rule}; found {layout!r}. Transpose in the graph"
        raise ConfigError(msg)
    if not isinstance(transform, PipelineProgram):
        program = compile_function(transform, exif=exif)
        program.recipe = replace(program.recipe, hw_decoder_load=load)
        return program
    if load:
        rule = "must be left out with a pipeline of your own, which has its own decoder"
        msg = f"hw_decoder_load: {rule}; found {load}. Give it to fn.decoders.image of the pipeline"
        raise ConfigError(msg)
    if exif:
        msg = (
            "exif: must be left out with a pipeline of your own, which has its own decoder; found exif=True. Give"
            " fn.decoders.image of the pipeline adjust_orientation=True"
        )
        raise ConfigError(msg)
    return transform


def _share(load: object) -> float:
    """`hw_decoder_load` as a float. Raises ConfigError for a value outside 0..1."""
    if isinstance(load, bool) or not isinstance(load, int | float) or not 0 <= load <= 1:
        msg = f"hw_decoder_load: must lie in 0..1; found {load!r}"
        raise ConfigError(msg)
    return float(load)


def _by_either(
    name: str, engine: str | None, recipes: list[Recipe], compile_by: Callable[[str], Program]
) -> tuple[str, Program]:
    """For the engine of that name; on a GPU, where the user did not choose, for the host engine if DALI cannot do it.

    Pillow's operations and functions of PIL images go to the host engine, too.
    """
    if engine is not None:
        return name, compile_by(name)
    if any(op.of_pil for recipe in recipes for _, op in walk(recipe.ops)):
        return ON_CPU, compile_by(ON_CPU)
    try:
        return name, compile_by(name)
    except TransformError as error:
        made = ON_CPU, compile_by(ON_CPU)
        log.info("engine: the host engine is used; %s", error)
        return made


def compile_for(
    name: str, recipe: Recipe, device: int | None, tuning: Tuning | None = None, *, whole: bool = False
) -> View:
    """The program for that engine; `whole`: images are decoded whole. Raises TransformError where it has none."""
    on_gpu = device is not None
    if name == "host":
        return compile_host(recipe, on_gpu=on_gpu)
    if whole or not on_gpu or recipe.decode != "region":
        return compile_dali(recipe, on_gpu=on_gpu, region_decode=not on_gpu and not whole)
    from dali_feed.engines.dali.regions import compile_regions, trouble

    return compile_regions(recipe, lambda: trouble(device, tuning or Tuning(), recipe.hw_decoder_load))
