"""Which engine runs a program: the names that users give, and the modules that are imported when one is made."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dali_feed.columns.column import Bytes
from dali_feed.columns.columns import Columns
from dali_feed.columns.follow import Follower
from dali_feed.engines.dali.graph import compile_dali
from dali_feed.engines.dali.user_graph import PipelineProgram, compile_function
from dali_feed.engines.engine import Engine, ImageMaker
from dali_feed.engines.workers import Workers
from dali_feed.errors import ConfigError, TransformError
from dali_feed.options import Decode, Tuning
from dali_feed.packages import needed
from dali_feed.transforms.lower import is_graph_function, lower
from dali_feed.transforms.op import Recipe, no_boxes
from dali_feed.transforms.program import (
    Followed,
    ImageProgram,
    Output,
    Program,
    as_views,
    compile_following,
    compile_host,
)

if TYPE_CHECKING:
    from dali_feed.engines.device.cuda import Device


ON_CPU = "host"  # where the user did not choose
ENGINES = {
    "dali": ("dali_feed.engines.dali.images", "DaliImages"),
    "host": ("dali_feed.engines.host.images", "HostImages"),
}
_PIPELINE = ("dali_feed.engines.dali.user_pipeline", "PipelineImages")  # the dali engine on a user's own pipeline

log = logging.getLogger("dali_feed")


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


def make_engine(
    program: Program,
    *,
    late: Mapping[str, Bytes] | None = None,
    batch_size: int,
    device: int | None,
    tuning: Tuning,
    before: Callable[[ImageMaker, Output, Device], ImageMaker] | None = None,
) -> Engine:
    """The engine of a program; its libraries are imported here and not before.

    What was begun is closed where not all can be made. `before` puts a cache before what makes the images of a column.
    """
    workers, gpu = Workers(tuning.cpu_threads), None
    if device is not None:
        from dali_feed.engines.device import cuda  # and torch with it

        gpu = cuda.Device(device)
    images: dict[str, ImageMaker] = {}
    with ExitStack() as begun:
        for column, outputs in program.columns.items():
            alone = isinstance(outputs[0].program, PipelineProgram)
            module, kind = _PIPELINE if alone else ENGINES[outputs[0].engine]
            with needed():
                maker = getattr(importlib.import_module(module), kind)
            images[column] = maker(outputs, workers, batch_size=batch_size, device=gpu, tuning=tuning)
            begun.callback(images[column].close)
            if before is not None and gpu is not None:
                images[column] = before(images[column], outputs[0], gpu)
        begun.pop_all()
    return Engine(program, images, late or {}, workers, depth=tuning.prefetch, device=gpu)


# A user's transforms compiled to the program that the chosen engines run.


def compiled(transform: object, decode: Decode, device: int | None) -> Program:
    """The program of one image, by the engine that the user chose.

    On a GPU, where nobody chose, by the host engine if DALI cannot do it. Raises ConfigError, TransformError where no
    engine can run the transform.
    """
    graph = isinstance(transform, PipelineProgram) or is_graph_function(transform)
    name = choose_engine(decode.engine, device, graph=graph)
    if graph:
        return Program((Output(name, _graph(transform, decode)),))
    views = as_views(transform)
    if any(map(is_graph_function, views or ())):
        rule = "a list must hold torchvision's transforms only"
        raise TransformError(f"transform: {rule}; found a DALI graph function in it. Give the function alone")
    how: dict[str, Any] = {"layout": decode.layout, "hardware": float(decode.hardware), "exif": bool(decode.exif)}
    recipes = [replace(lower(each), **how) for each in views or [transform]]

    def compile_by(name: str) -> Program:
        programs = [compile_for(name, recipe, device, whole=views is not None) for recipe in recipes]
        numbers = [None] if views is None else range(len(programs))
        return Program(tuple(Output(name, one, view=view) for one, view in zip(programs, numbers, strict=True)))

    try:
        return compile_by(name)
    except TransformError as error:
        if device is None or decode.engine is not None:
            raise
        program = compile_by(ON_CPU)
        log.info("engine: the host engine is used; %s", error)
        return program


def _graph(transform: Any, decode: Decode) -> ImageProgram:
    if decode.layout != "NCHW":
        rule = "must be left out with a DALI graph, which decides it itself"
        raise ConfigError(f"Decode(memory_format=...): {rule}; found {decode.memory_format}. Transpose in the graph")
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


def compile_for(name: str, recipe: Recipe, device: int | None, *, whole: bool = False) -> ImageProgram:
    """The program for that engine; `whole`: images are decoded whole. Raises TransformError where it has none.

    On the CPU only the part of an image that a first crop keeps is decoded, which gives the same pixels.
    """
    on_gpu = device is not None
    if name == "host":
        return compile_host(recipe, on_gpu=on_gpu)
    return compile_dali(recipe, on_gpu=on_gpu, region_decode=not whole)


def compile_images(columns: Columns, decode: Decode, device: int | None) -> Program:
    """The program of a feed's images: of the transforms of its image columns.

    Raises ConfigError, TransformError where an engine cannot run one; where several images or followers need transforms
    of torchvision's and there is another one; where nothing can follow a transform.
    """
    followers = columns.followers
    if columns.image is None:
        choose_engine(decode.engine, device, graph=False)
        if decode.exif:
            raise ConfigError("Decode(exif=...): turns images, and no column is an Image; found True. Leave it out")
        return Program()
    alone = len(columns.images) == 1
    outputs: list[Output] = []
    for name, image in columns.images.items():
        try:
            if not alone:
                _check_alone(image.transform)
            program = compiled(image.transform, decode, device)
            followed = _followed(program, followers[name])
        except TransformError as error:
            if alone:
                raise
            msg = f"columns: {name!r}: {error}"
            raise type(error)(msg) from error
        drawn = columns.drawn_as[name]
        draws, called = "" if drawn == columns.image else drawn, columns.title(name)
        outputs += [
            replace(each, column=name, draws=draws, called=called, followed=followed, followers=followers[name])
            for each in program.outputs
        ]
    return Program(tuple(outputs))


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
    for op in (op for output in program.outputs for op in output.recipe.ops):
        if op.by_boxes and not any(kind.has_boxes for kind in followers.values()):
            raise no_boxes(op.title)
    if not followers:
        return None
    if len(program.outputs) != 1 or not program.fixed:
        shown = f"{len(program.outputs)} views" if program.fixed else "a DALI graph function"
        names = ", ".join(map(repr, followers))
        raise ConfigError(
            f"columns: {names} can be changed together with one image only, by torchvision's transforms; found {shown}"
        )
    boxes = [kind.boxes for kind in followers.values()]
    return compile_following(program.recipe, boxes=any(boxes), masks=not all(boxes))
