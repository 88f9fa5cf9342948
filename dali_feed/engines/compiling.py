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
from dali_feed.options import Decode
from dali_feed.transforms.lower import lower
from dali_feed.transforms.numbering import walk
from dali_feed.transforms.recipe import Recipe

__all__ = ["compile_for", "compiled"]

log = logging.getLogger("dali_feed")


def compiled(transform: object, decode: Decode, device: int | None, *, images: bool = True) -> tuple[str, Program]:
    """The engine's name and its program. Raises ConfigError, TransformError where it cannot run the transform.

    `images`: whether there are any; without them nothing is run, and the arguments are checked all the same.
    """
    graph = isinstance(transform, PipelineProgram) or is_graph_function(transform)
    name = choose_engine(decode.engine, device, graph=graph)
    if not images:
        if decode.exif:
            msg = "Decode(exif=...): turns images, and no column is an Image; found True. Leave it out"
            raise ConfigError(msg)
        return "none", NoImage()
    if graph:
        return name, _graph(transform, decode)
    fixed = name if device is None else decode.engine
    views = as_views(transform)
    if views is None:
        recipe = _recipe(transform, decode)
        return _by_either(name, fixed, [recipe], lambda name: compile_for(name, recipe, device))
    if any(map(is_graph_function, views.transforms)):
        rule = "a list must hold torchvision's transforms only"
        msg = f"transform: {rule}; found a DALI graph function in it. Give the function alone"
        raise TransformError(msg)
    recipes = [_recipe(each, decode) for each in views.transforms]

    def whole(name: str) -> ViewsProgram[View]:
        return ViewsProgram(tuple(compile_for(name, recipe, device, whole=True) for recipe in recipes))

    return _by_either(name, fixed, recipes, whole)


def _recipe(transform: object, decode: Decode) -> Recipe:
    """A transform's operations, with what decides how images are decoded."""
    made = lower(transform)
    return replace(made, layout=decode.layout, hardware=float(decode.hardware), exif=bool(decode.exif))


def _graph(transform: Any, decode: Decode) -> Program:
    """The program of a user's own graph."""
    if decode.layout != "NCHW":
        rule = "must be left out with a DALI graph, which decides it itself"
        msg = f"Decode(memory_format=...): {rule}; found {decode.memory_format}. Transpose in the graph"
        raise ConfigError(msg)
    if not isinstance(transform, PipelineProgram):
        program = compile_function(transform, exif=bool(decode.exif))
        program.recipe = replace(program.recipe, hardware=float(decode.hardware))
        return program
    rule = "must be left out with a pipeline of your own, which has its own decoder"
    if decode.hardware:
        msg = f"Decode(hardware=...): {rule}; found {decode.hardware}. Give fn.decoders.image its hw_decoder_load"
        raise ConfigError(msg)
    if decode.exif:
        msg = f"Decode(exif=...): {rule}; found True. Give fn.decoders.image of the pipeline adjust_orientation=True"
        raise ConfigError(msg)
    return transform


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


def compile_for(name: str, recipe: Recipe, device: int | None, *, whole: bool = False) -> View:
    """The program for that engine; `whole`: images are decoded whole. Raises TransformError where it has none.

    On the CPU only the part of an image that a first crop keeps is decoded, which gives the same pixels.
    """
    on_gpu = device is not None
    if name == "host":
        return compile_host(recipe, on_gpu=on_gpu)
    return compile_dali(recipe, on_gpu=on_gpu, region_decode=not on_gpu and not whole)
