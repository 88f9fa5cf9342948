"""Which engine runs a program: the names that users give, and the modules that are imported when one is made."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from dali_feed.columns.column import Follower
from dali_feed.columns.columns import Columnar
from dali_feed.compiler.host import compile_host
from dali_feed.compiler.program import (
    Followed,
    NoImage,
    Picture,
    PicturesProgram,
    Program,
    View,
    ViewsProgram,
    as_views,
    compile_following,
)
from dali_feed.engines.dali.graph import compile_dali
from dali_feed.engines.dali.user_graph import PipelineProgram, compile_function, is_graph_function
from dali_feed.engines.engine import Engine, NoImageEngine
from dali_feed.engines.late import FollowingEngine
from dali_feed.engines.several import SeveralEngine, Side
from dali_feed.errors import ConfigError, TransformError
from dali_feed.options import Decode, Tuning
from dali_feed.packages import needed
from dali_feed.transforms.lower import lower
from dali_feed.transforms.op import Recipe, walk

__all__ = [
    "ENGINES",
    "Compiled",
    "choose_engine",
    "compile_for",
    "compile_pictures",
    "compiled",
    "make_engine",
    "make_ready",
]


ON_CPU = "host"  # where the user did not choose
ENGINES = {
    "dali": ("dali_feed.engines.dali.engine", "DaliEngine"),
    "host": ("dali_feed.engines.host.engine", "HostEngine"),
}
_PIPELINE = ("dali_feed.engines.dali.user_pipeline", "PipelineEngine")  # the dali engine on a user's own pipeline


def choose_engine(name: str | None, device: int | None, *, graph: bool) -> str:
    """The engine of that name, or the default where the user did not choose; `device` is a CUDA device or None.

    `graph`: the transform is a user's own DALI graph. Raises ConfigError for an engine that cannot run it.
    """
    if name is None:
        return "dali" if graph or device is not None else ON_CPU
    if name == "host" and graph:
        msg = "Decode(engine='host'): runs torchvision's transforms; found a DALI graph function. Leave it out"
        raise ConfigError(msg)
    return name


def make_engine(name: str, program: Program, *, batch_size: int, device: int | None, tuning: Tuning) -> Engine:
    """Build an engine; its libraries are imported here and not before."""
    if isinstance(program, NoImage):
        return NoImageEngine(program, batch_size=batch_size, device=device, tuning=tuning)
    module, kind = _PIPELINE if isinstance(program, PipelineProgram) else ENGINES[name]
    with needed():
        made = getattr(importlib.import_module(module), kind)
    engine: Engine = made(program, batch_size=batch_size, device=device, tuning=tuning)
    return engine


# A user's transform compiled to the program that the chosen engine runs.


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
    return compile_dali(recipe, on_gpu=on_gpu, region_decode=not whole)


# What a feed's images need: their transforms compiled, and the engine, or several as one, made of that.
#
# An image alone has one program and one engine. Several image columns have one each, and what follows them is
# moved beside all engines.


@dataclass(frozen=True, slots=True)
class Column:
    """An image column made ready: `picture` is its part of the program, `engine` runs it.

    called     what stands before the reason why one of its images cannot be decoded
    followers  the columns that follow it
    """

    name: str
    engine: str
    called: str
    picture: Picture
    followers: Mapping[str, Follower]


@dataclass(frozen=True, slots=True)
class Compiled:
    """The program of a feed's images; `engine` runs it, or one for each of `columns`, where there are any.

    Without `columns` the program is of one image and nothing follows it, or there is no image.
    """

    engine: str
    program: Program
    columns: tuple[Column, ...] = ()


def compile_pictures(source: object, transform: object, decode: Decode, device: int | None) -> Compiled:
    """Compile `transform`, or those of a source's image columns.

    Raises ConfigError, TransformError where an engine cannot run one; where several images or followers need transforms
    of torchvision's and there is another one; where nothing can follow a transform.
    """

    def one(transform: object, *, images: bool = True) -> tuple[str, Program]:
        return compiled(transform, decode, device, images=images)

    if not isinstance(source, Columnar):
        return Compiled(*one(transform))
    followers = source.followers
    if source.image is None:
        return Compiled(*one(None, images=False))
    if len(source.images) == 1 and not followers[source.image]:
        return Compiled(*one(transform))
    columns = []
    for name, kind in source.images.items():
        try:
            if len(source.images) > 1:
                _check_alone(kind.transform)
            made, program = one(kind.transform)
            followed = _followed(program, followers[name])
        except TransformError as error:
            if len(source.images) == 1:
                raise
            msg = f"columns: {name!r}: {error}"
            raise type(error)(msg) from error
        (view,) = program.views
        drawn = source.drawn_as[name]
        picture = Picture(view, followed, "" if drawn == source.image else drawn)
        columns.append(Column(name, made, source.called(name), picture, followers[name]))
    return Compiled(columns[0].engine, PicturesProgram([each.picture for each in columns]), tuple(columns))


def _check_alone(transform: Any) -> None:
    """Raise TransformError for what a record's only image alone can have."""
    rule = "with several Image columns, each must have torchvision's transforms"
    if isinstance(transform, PipelineProgram) or is_graph_function(transform):
        msg = f"transform: {rule}; found a DALI graph function, which works with a single Image column only"
        raise TransformError(msg)
    if as_views(transform) is not None:
        msg = f"transform: {rule}; found several views. Give each view a column of its own, of the same member"
        raise TransformError(msg)


def _followed(program: Program, followers: Mapping[str, Follower]) -> Followed | None:
    """What moves the columns that follow the program's images; None where none does.

    ConfigError where the images are several views, or made by a graph of the user's; TransformError where nothing can
    follow a transform.
    """
    if not followers:
        return None
    if len(program.views) != 1 or not program.fixed:
        found = f"{len(program.views)} views" if program.fixed else "a DALI graph function"
        names = ", ".join(map(repr, followers))
        msg = (
            f"columns: {names} can be changed together with one image only, by torchvision's transforms; found {found}"
        )
        raise ConfigError(msg)
    boxes = [kind.boxes for kind in followers.values()]
    return compile_following(program.recipe, boxes=any(boxes), masks=not all(boxes))


def make_ready(
    made: Compiled,
    *,
    batch_size: int,
    device: int | None,
    tuning: Tuning,
    before: Callable[[Engine, Program], Engine] | None = None,
) -> Engine:
    """The engine of all images, with what follows them. What was begun is closed where one cannot be made.

    `before` puts a cache before each image column's engine.
    """

    def engine(name: str, program: Program) -> Engine:
        one = make_engine(name, program, batch_size=batch_size, device=device, tuning=tuning)
        return one if before is None else before(one, program)

    if not made.columns:
        return engine(made.engine, made.program)
    with ExitStack() as begun:
        sides = []
        for column in made.columns:
            sides.append(Side(column.name, column.called, engine(column.engine, column.picture.view)))
            begun.callback(sides[-1].engine.close)
        whole: Engine = sides[0].engine if len(sides) == 1 else SeveralEngine(sides)
        if any(column.followers for column in made.columns):
            follows = [(column.picture.followed, column.followers) for column in made.columns]
            whole = FollowingEngine(whole, follows, tuning)
        begun.pop_all()
    return whole
