"""What a transform says of itself, and what it leaves unsaid. The compilers ask this, and know no transform by name.

The law: importing a transform loads NumPy and nothing else. What runs on pixels imports its library when it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from dali_feed.errors import TransformError
from dali_feed.transforms.batch_draws import BatchDraws
from dali_feed.transforms.run import Run
from dali_feed.transforms.units import Place

__all__ = ["Apply", "Arrays", "Effect", "InGraph", "Ints", "OnImage", "OnPlanes"]

Ints = NDArray[np.int64]
Arrays = Mapping[str, NDArray[Any]]
OnImage = Callable[[Any, Arrays, int], Any]  # an image (3, height, width) of torch, the batch's arrays, the slot
OnPlanes = Callable[[Any, Arrays, int], None]  # the same in the image's own memory, of any strides


@dataclass(frozen=True, slots=True)
class Apply:
    """Step k of a DALI graph: `build` is given the image's node, and that of array {name}{k}, `ndim` axes of `dtype`.

    `dtype` is a name of `nvidia.dali.types`.
    """

    k: int
    name: str
    dtype: str
    ndim: int
    build: Callable[[Any, Any], Any]


InGraph = tuple[Apply, Callable[[Run], NDArray[Any]]]  # the step, and what fills its array


class Effect:
    """A transform that leaves an image's size, dtype and units as they are.

    Left alone, it is applied with probability `p` where it has one, and DALI has nothing for it.
    """

    __slots__ = ()
    streams: ClassVar[int] = 1  # blocks of four uniforms that every sample draws
    normalized: ClassVar[bool] = False  # whether it may stand behind Normalize
    of_pil: ClassVar[bool] = False  # made of PIL's images, so where nobody chose an engine, the host engine runs it
    inner_words: ClassVar[tuple[str, str]] = ("transforms", "others of its kind")  # what its parts, what is around it

    @classmethod
    def of(cls, transform: Any) -> Self:
        """From torchvision's transform of the same name. TransformError for a setting that cannot be kept."""
        raise NotImplementedError

    def drawn(self) -> range:
        """Which of its streams every sample draws from."""
        return range(self.streams)

    def inner(self) -> int:
        """How many parts it has that draw from streams of their own; see `nest.inner_numbers`."""
        return 0

    def check(self, dtype: str) -> None:
        """Raise TransformError for values that have no meaning for pixels of this dtype."""

    def unfit(self, h: Ints, w: Ints) -> list[tuple[int, str]]:
        """Rows whose images it cannot take, each with the reason."""
        return []

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

    def on_image(self, key: str) -> OnImage:
        """The step of the host engine, which takes its rows by `key`."""

        def apply(image: Any, arrays: Arrays, slot: int) -> Any:
            return self.image(image, arrays[key][slot])

        return apply

    def on_planes(self, key: str) -> OnPlanes | None:
        """The step in the memory of the batch itself, behind floats and Normalize; None: it makes a new image."""
        return None

    def graph(self, place: Place, k: int, first: int) -> InGraph:
        """The same as step number k of a DALI graph. TransformError where DALI has no operator."""
        self.refuse("has no operator for it", type(self).__name__)

    def refuse(self, rule: str, found: object) -> NoReturn:
        """Say what the dali engine lacks."""
        msg = f"{type(self).__name__}: the dali engine {rule}; found {found}. The host engine takes it"
        raise TransformError(msg)
