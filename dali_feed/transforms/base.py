"""What a transform says of itself, and what it leaves unsaid. The compilers ask this, and know no transform by name.

The law: importing a transform loads NumPy and nothing else. What runs on pixels imports its library when it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from dali_feed.errors import TransformError
from dali_feed.plan.streams import STREAMS_PER_OP
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
    """A transform of a recipe: a frozen dataclass of what it takes.

    Left alone it draws nothing, leaves size, dtype and units of an image as they are, and stands in front of Normalize.
    """

    __slots__ = ()
    streams: ClassVar[int] = 0  # blocks of four uniforms that every sample draws
    normalized: ClassVar[bool] = False  # whether it may stand behind Normalize
    normalizes: ClassVar[bool] = False  # whether what resamples and recolours must stand in front of it
    in_nest: ClassVar[bool] = False  # whether it may be left out of some images of a batch
    of_finish: ClassVar[bool] = False  # whether the finish step can do it
    of_pil: ClassVar[bool] = False  # made of PIL's images, so where nobody chose an engine, the host engine runs it
    inner_words: ClassVar[tuple[str, str]] = ("transforms", "others of its kind")  # what its parts, what is around it

    @classmethod
    def of(cls, transform: Any) -> Op:
        """From torchvision's transform of the same name. TransformError for a setting that cannot be kept."""
        raise NotImplementedError

    @property
    def title(self) -> str:
        """What users call it."""
        return type(self).__name__

    # What can be said before any sample is seen.

    def drawn(self) -> Iterable[int]:
        """Which of its streams every sample draws from."""
        return range(self.streams)

    def inner(self) -> int:
        """How many parts it has that draw from streams of their own; see `numbering.inner_numbers`."""
        return 0

    @property
    def has_parts(self) -> bool:
        """Whether there may be such."""
        return bool(self.inner())

    def within(self, n: int) -> list[list[tuple[int, Op]]]:
        """The runs of ops that stand in it, which is op number n, each with its own number."""
        del n
        return []

    def check(self, dtype: str) -> None:
        """Raise TransformError for what has no meaning for pixels of this dtype."""

    def channels_behind(self) -> int | None:
        """1 or 3 where it says how many channels an image has; None leaves them."""
        return None

    def place_behind(self, place: Place) -> Place:
        """What pixels are called behind it."""
        return place

    def size_behind(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        """(height, width) of every image behind it, where all are of `size`; None where they differ."""
        return size

    def sizes_behind(self, h: Ints, w: Ints) -> tuple[Ints, Ints]:
        """Heights and widths behind it, as far as no sample draws them."""
        fixed = self.size_behind(None)
        return (h, w) if fixed is None else (np.full_like(h, fixed[0]), np.full_like(w, fixed[1]))

    def unfit(self, h: Ints, w: Ints) -> list[tuple[int, str]]:
        """Rows whose images it cannot take, each with the reason."""
        return []

    def erases(self) -> Fill | None:
        """The value that it writes into one rectangle (its row: y, x, height, width) and changes nothing else; or None.

        The last of these is done by the finish step.
        """
        return None

    # What the host engine does.

    def begins_with_window(self) -> bool:
        """Whether what it does first is to cut out a window of the image, which a decoder can decode alone."""
        return False

    def smooths(self) -> bool:
        """Whether it resizes so smoothly that it may be given an image decoded smaller."""
        return False

    def host_rows(self, run: SizedDraws, n: int) -> None:
        """Put what the steps of op number n take into `run.arrays`, a row per sample; bring `run.h`, `run.w` on."""

    def host_steps(self, n: int, *, window: bool = False) -> list[OnImage]:
        """What op number n does to an image, in turn; `window`: without its first window, which the decoder took."""
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
        msg = f"{self.title}: masks, boxes and points cannot follow it; torchvision does not say how. Leave it out"
        raise TransformError(msg)

    @property
    def moves(self) -> bool:
        """Whether what follows an image is to be moved with it."""
        return bool(self.follow_steps(0))

    def into_batch(self) -> Callable[[Any, Any], None] | None:
        """What writes an image into memory of the dtype that it makes; None: it is no conversion to floats."""
        return None

    def on_planes(self, key: Key) -> OnPlanes | None:
        """The step in the memory of the batch itself, behind floats and Normalize; None: it makes a new image."""
        del key
        return None

    # What the dali engine does.

    def in_graph(self, graph: Graph, first: int) -> None:
        """Add it to a DALI graph; its draws begin at stream `first`. TransformError where DALI cannot do it."""
        raise NotImplementedError

    def refuse(self, rule: str, found: object) -> NoReturn:
        """Say what the dali engine lacks."""
        msg = f"{self.title}: the dali engine {rule}; found {found}. The host engine takes it"
        raise TransformError(msg)


class Effect(Op):
    """A transform that leaves an image's size, dtype and units as they are.

    Left alone, it is applied with probability `p` where it has one, and DALI has nothing for it.
    """

    __slots__ = ()
    streams: ClassVar[int] = 1
    in_nest: ClassVar[bool] = True

    @classmethod
    def of(cls, transform: Any) -> Self:
        """From torchvision's transform of the same name. TransformError for a setting that cannot be kept."""
        raise NotImplementedError

    def on(self, draws: BatchDraws, first: int) -> NDArray[np.bool_]:
        """Which samples it is for; its draws begin at stream `first`."""
        p = getattr(self, "p", None)
        return np.ones(len(draws.ids), bool) if p is None else draws.draw(first)[0] < p

    def rows(self, draws: BatchDraws, first: int, h: Ints, w: Ints) -> NDArray[Any]:
        """What `image` takes, a row per sample of the batch; h and w are the images' sizes there."""
        return self.on(draws, first)

    def more(self, draws: BatchDraws, first: int) -> dict[str, NDArray[Any]]:
        """Further arrays, a row per sample, by what their name has behind that of `rows`: "_weights", ..."""
        return {}

    def image(self, image: Any, row: Any) -> Any:
        """One image (3, height, width) of the host engine, by torchvision's own function."""
        raise NotImplementedError

    def on_image(self, key: Key) -> OnImage:
        """The step of the host engine, which takes its rows by `key`."""

        def apply(image: Any, arrays: Arrays, slot: int) -> Any:
            return self.image(image, arrays[key][slot])

        return apply

    def graph(self, place: Place, k: int, first: int) -> InGraph:
        """The same as step number k of a DALI graph. TransformError where DALI has no operator."""
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
