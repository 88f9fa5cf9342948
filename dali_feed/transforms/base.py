"""The methods of a transform, with defaults. The compilers call these, and know no transform by name.

The law: importing a transform loads NumPy and nothing else. What runs on pixels imports its library when it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from dali_feed.draws.streams import STREAMS_PER_OP
from dali_feed.errors import TransformError
from dali_feed.transforms.batch_draws import BatchDraws
from dali_feed.transforms.graph import Apply, Graph, InGraph
from dali_feed.transforms.keys import Arrays, Key, further, numbered
from dali_feed.transforms.rules import Fill
from dali_feed.transforms.run import SizedDraws
from dali_feed.transforms.units import Place

__all__ = [
    "Apply",
    "Arrays",
    "Effect",
    "InGraph",
    "Ints",
    "OnImage",
    "OnPlanes",
    "Op",
    "effect_key",
]

Ints = NDArray[np.int64]
OnImage = Callable[[Any, Arrays, int], Any]  # an image (3, height, width) of torch, the batch's arrays, the slot
OnPlanes = Callable[[Any, Arrays, int], None]  # the same in the image's own memory, of any strides


def effect_key(n: int) -> Key:
    """The array of op number n, where it takes one alone."""
    return numbered("effect", n)


class Op:
    """A transform of a recipe: a frozen dataclass of its settings.

    Unless a method says otherwise it draws no random numbers, keeps size, dtype and units, and comes before Normalize.
    """

    __slots__ = ()
    streams: ClassVar[int] = 0  # how many blocks of four random numbers every sample draws
    normalized: ClassVar[bool] = False  # whether it may come after Normalize
    normalizes: ClassVar[bool] = False  # whether ops that resample or change colours must come before it
    in_nest: ClassVar[bool] = False  # whether it may be skipped for some images of a batch
    of_finish: ClassVar[bool] = False  # whether the finish step can do it
    by_level: ClassVar[bool] = False  # whether a value becomes what itself and its channel alone say, in every image
    of_pil: ClassVar[bool] = False  # works on PIL images, so the host engine runs it unless the user chose an engine
    inner_words: ClassVar[tuple[str, str]] = ("transforms", "others of its kind")  # its parts, its nest, in messages

    @classmethod
    def of(cls, transform: Any) -> Op:
        """From torchvision's transform of the same name. TransformError for a setting that cannot be kept."""
        raise NotImplementedError

    @property
    def title(self) -> str:
        """What users call it."""
        return type(self).__name__

    # What is known before any sample is seen.

    def drawn(self) -> Iterable[int]:
        """The streams that every sample draws from."""
        return range(self.streams)

    def inner(self) -> int:
        """How many parts it has with streams of their own; see `numbering.inner_numbers`."""
        return 0

    @property
    def has_parts(self) -> bool:
        """Whether it may have parts with streams of their own."""
        return bool(self.inner())

    def within(self, n: int) -> list[list[tuple[int, Op]]]:
        """The lists of ops inside it, each op with its own number; it is itself op number n."""
        del n
        return []

    def check(self, dtype: str) -> None:
        """Raise TransformError where it has no meaning for pixels of this dtype."""

    def channels_behind(self) -> int | None:
        """How many channels an image has after it, 1 or 3; None: as many as before."""
        return None

    def place_behind(self, place: Place) -> Place:
        """Dtype and units of the pixels after it."""
        return place

    def size_behind(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        """(height, width) of every image after it, where all are of `size`; None where they differ."""
        return size

    def sizes_behind(self, h: Ints, w: Ints) -> tuple[Ints, Ints]:
        """Heights and widths after it, as far as they do not depend on random numbers."""
        fixed = self.size_behind(None)
        return (h, w) if fixed is None else (np.full_like(h, fixed[0]), np.full_like(w, fixed[1]))

    def unfit(self, h: Ints, w: Ints) -> list[tuple[int, str]]:
        """Rows whose images it cannot take, each with the reason."""
        return []

    def erases(self) -> Fill | None:
        """The value that it writes into one rectangle (its row: y, x, height, width), if it does just that; or None.

        The last such op of a recipe is done by the finish step.
        """
        return None

    def cuts(self) -> tuple[tuple[int, int], Fill] | None:
        """The size of the window that it cuts out of each image, and what fills it outside, if it does just that.

        Its rows are `crop` and its number: y, x, height, width. So it can be done after images were kept.
        """
        return None

    # What the host engine does.

    def begins_with_window(self) -> bool:
        """Whether it begins by cutting out a part of the image, so that a decoder can decode that part alone."""
        return False

    def host_rows(self, run: SizedDraws, n: int) -> None:
        """Put the parameters of op number n's steps into `run.arrays`, a row per sample; update `run.h` and `run.w`."""

    def host_steps(self, n: int, *, window: bool = False) -> list[OnImage]:
        """The steps of op number n on an image, in order; `window`: without the first crop, done by the decoder."""
        del n, window
        return []

    def follow_steps(self, n: int) -> list[OnImage]:
        """What op number n does, in turn, to torchvision's tv_tensors that follow the image, with `host_rows`' arrays.

        TransformError where nothing can follow it.
        """
        del n
        return []

    def no_follower(self) -> NoReturn:
        """Say that nothing can follow it."""
        rule = "masks, boxes and points cannot be changed together with it, as torchvision does not say how"
        msg = f"{self.title}: {rule}. Leave it out"
        raise TransformError(msg)

    def into_batch(self) -> Callable[[Any, Any], None] | None:
        """A function that writes an image into memory of the new dtype; None: this is no conversion to floats."""
        return None

    def on_planes(self, key: Key) -> OnPlanes | None:
        """The step in the memory of the batch itself, after floats and Normalize; None: it makes a new image."""
        del key
        return None

    # What the dali engine does.

    def in_graph(self, graph: Graph, first: int) -> None:
        """Add it to a DALI graph; its random numbers begin at stream `first`. TransformError where DALI can't."""
        raise NotImplementedError

    def refuse(self, rule: str, found: object) -> NoReturn:
        """Raise the TransformError that says what the dali engine lacks."""
        msg = f"{self.title}: the dali engine {rule}; found {found}. The host engine can run it"
        raise TransformError(msg)


class Effect(Op):
    """A transform that leaves an image's size, dtype and units as they are.

    Unless a method says otherwise it is applied with probability `p`, if it has one, and DALI has no operator for it.
    """

    __slots__ = ()
    streams: ClassVar[int] = 1
    in_nest: ClassVar[bool] = True

    @classmethod
    def of(cls, transform: Any) -> Self:
        """From torchvision's transform of the same name. TransformError for a setting that cannot be kept."""
        raise NotImplementedError

    def on(self, draws: BatchDraws, first: int) -> NDArray[np.bool_]:
        """The samples that it is applied to; its random numbers begin at stream `first`."""
        p = getattr(self, "p", None)
        return np.ones(len(draws.ids), bool) if p is None else draws.draw(first)[0] < p

    def rows(self, draws: BatchDraws, first: int, h: Ints, w: Ints) -> NDArray[Any]:
        """The parameters of `image`, a row per sample of the batch; h and w are the images' sizes at this point."""
        return self.on(draws, first)

    def more(self, draws: BatchDraws, first: int) -> dict[str, NDArray[Any]]:
        """Further arrays, a row per sample, by what is added to the name of `rows`: "_weights", ..."""
        return {}

    def image(self, image: Any, row: Any) -> Any:
        """One image (3, height, width) of the host engine, by torchvision's own function."""
        raise NotImplementedError

    def on_image(self, key: Key) -> OnImage:
        """The step of the host engine, which finds its rows by `key`."""

        def apply(image: Any, arrays: Arrays, slot: int) -> Any:
            return self.image(image, arrays[key][slot])

        return apply

    def graph(self, place: Place, k: int, first: int) -> InGraph:
        """The step number k of a DALI graph that does the same. TransformError where DALI has no operator."""
        self.refuse("has no operator for it", self.title)

    def host_rows(self, run: SizedDraws, n: int) -> None:
        """By `rows` and `more`."""
        key, first = effect_key(n), n * STREAMS_PER_OP
        run.arrays[key] = self.rows(run, first, run.h, run.w)
        run.arrays.update({further(key, name): rows for name, rows in self.more(run, first).items()})

    def host_steps(self, n: int, *, window: bool = False) -> list[OnImage]:
        """By `on_image`."""
        del window
        return [self.on_image(effect_key(n))]

    def in_graph(self, graph: Graph, first: int) -> None:
        """By `graph`."""
        graph.step(*self.graph(graph.place, graph.k + 1, first))
