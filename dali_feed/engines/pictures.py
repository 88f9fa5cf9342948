"""What a feed's images need: their transforms compiled, and the engine, or several as one, made of that.

An image alone has one program and one engine. Several image columns have one each, and what follows them is
moved beside all engines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

from dali_feed.columns.follower import Follower
from dali_feed.columns.source import Columnar
from dali_feed.compiler.drawless import Drawless
from dali_feed.compiler.following import Followed, compile_following
from dali_feed.compiler.pictures import Picture, PicturesProgram
from dali_feed.compiler.program import Program
from dali_feed.compiler.user_graph import is_graph_function
from dali_feed.compiler.user_pipeline import PipelineProgram
from dali_feed.compiler.views import as_views
from dali_feed.engines.choose import make_engine
from dali_feed.engines.compiling import compiled
from dali_feed.engines.engine import Engine
from dali_feed.engines.following import FollowingEngine
from dali_feed.engines.several import SeveralEngine, Side
from dali_feed.errors import ConfigError, TransformError
from dali_feed.options import Decode, Tuning

__all__ = ["Column", "Compiled", "Kept", "compile_pictures", "make_ready"]


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


class Kept(Protocol):
    """A cache of images before the engines of a feed: `parts` in the order of its image columns."""

    parts: Sequence[Drawless]

    def before(self, number: int, engine: Engine, tuning: Tuning) -> Engine:
        """The engine of that part's head, with the cache before it."""
        ...


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
    made: Compiled, *, batch_size: int, device: int | None, tuning: Tuning, kept: Kept | None = None
) -> Engine:
    """The engine of all images, with what follows them. What was begun is closed where one cannot be made.

    `kept`: a cache that stands before each.
    """

    def engine(name: str, program: Program, number: int = 0) -> Engine:
        program = program if kept is None else kept.parts[number].head
        one = make_engine(name, program, batch_size=batch_size, device=device, tuning=tuning)
        return one if kept is None else kept.before(number, one, tuning)

    if not made.columns:
        return engine(made.engine, made.program)
    with ExitStack() as begun:
        sides = []
        for number, column in enumerate(made.columns):
            sides.append(Side(column.name, column.called, engine(column.engine, column.picture.view, number)))
            begun.callback(sides[-1].engine.close)
        whole: Engine = sides[0].engine if len(sides) == 1 else SeveralEngine(sides)
        if any(column.followers for column in made.columns):
            follows = [(column.picture.followed, column.followers) for column in made.columns]
            whole = FollowingEngine(whole, follows, tuning)
        begun.pop_all()
    return whole
