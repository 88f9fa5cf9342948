"""What training frameworks read of a loader beside its batches: Accelerate, Lightning, Hugging Face's Trainer.

The law: no framework is imported from here, and none of its private names is needed: where one is missing, a run goes
on as without that framework, with one warning. Private names that are used, all of Accelerate 1.15: `_shared_state`,
`_add_dataloader`, `_remove_dataloader` and `dataloader_references` of GradientState, `_shared_state` of PartialState.

A `loader` here is a `dali_feed.DataLoader`, whose file stands above this one.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from dali_feed.errors import ConfigError
from dali_feed.loader.arguments import warn_once
from dali_feed.plan.batching import has_dealt

_USER = 5  # frames from a warning here up to the training loop
UNKNOWN = -1  # of a remainder: Accelerate then cuts nothing off


class Registration:
    """A pass in Accelerate's list of loaders that are iterated over: so that it sees where an epoch ends.

    It is there from the first batch to the end of the pass, or until the pass is dropped or the loader's next begins.

    end_of_dataloader  whether the batch that was handed over is the last; set before it is
    remainder          samples of all ranks' last batches that are no repeats; 0: there are no repeats; -1: unknown
    """

    def __init__(self, state: Any, remainder: int) -> None:
        self.end_of_dataloader, self.remainder = False, remainder
        self._state = state
        state._add_dataloader(self)

    @classmethod
    def of(cls, loader: Any) -> Registration | None:
        """That of a pass of this loader which begins; None where no run of Accelerate has begun."""
        module: Any = sys.modules.get("accelerate.state")
        if module is None:
            return None
        try:
            if not module.GradientState._shared_state:
                return None
            state = module.GradientState()
            _ = state._add_dataloader, state._remove_dataloader, state.dataloader_references
        except AttributeError:
            why = "this version of Accelerate has no GradientState that we know; versions up to 1.15 were tried"
            warn_once("gradient accumulation", why, _USER, what="does not see where an epoch ends")
            return None
        return cls(state, _remainder(loader, processes()[1]))

    def leave(self) -> None:
        """Take it out of the list, and what others left there: a reference to nothing hides the loop around it."""
        state, self._state = self._state, None
        if state is not None:
            with contextlib.suppress(AttributeError):  # a run that was taken apart meanwhile has no list
                state._remove_dataloader(self)
                there = [each for each in state.dataloader_references if each is not None]
                state.dataloader_references = [None, *there]


def processes() -> tuple[int, int]:
    """Accelerate's rank and number of processes; (0, 1) where no run of it has begun."""
    module: Any = sys.modules.get("accelerate.state")
    if module is None or not getattr(module.PartialState, "_shared_state", None):
        return 0, 1
    state = module.PartialState()
    return int(state.process_index), int(state.num_processes)


def check_ranks(loader: Any) -> None:
    """At the first pass: ConfigError where Accelerate divides among another number of processes; else warnings."""
    rank, world_size = processes()
    if world_size == 1:
        return
    dealt = has_dealt(loader.sampler)
    if loader.world_size not in (1, world_size):
        raise ConfigError(
            f"rank, world_size: must be Accelerate's, {rank} of {world_size}; found {loader.rank} of"
            f" {loader.world_size}. Leave them out; with a device mesh give those of its data-parallel part"
        )
    if loader.world_size == 1 and not dealt:
        cure = f"leave out rank and world_size, or give rank={rank}, world_size={world_size}"
        warn_once("world_size=1", f"each of Accelerate's {world_size} processes gets all samples; {cure}", _USER,
                  what="does not divide the samples")  # fmt: skip
    if "transformers.trainer" not in sys.modules:
        why = (
            f"len() counts this rank's batches, and a scheduler that Accelerate has prepared advances {world_size}"
            f" times a step. If you counted its steps before prepare(), count len(loader) * {world_size}, or make"
            " Accelerator(split_batches=True)"
        )
        warn_once("len(loader)", why, _USER, what="is of one rank")


def _remainder(loader: Any, processes: int) -> int:
    """Of the samples of all ranks' last batches, end to end, how many come before the repeats that pad an epoch."""
    if processes == 1 and loader.world_size == 1:
        return 0
    last = loader._positions.last_step()
    if last is None or loader.world_size != processes:
        return UNKNOWN
    samples, repeats, tail = last
    if not repeats:
        return 0
    if repeats <= tail:
        return int(samples - repeats)
    why = (
        f"the {repeats} repeats that make all ranks' batches equally long are not the tail of the last ones. Give"
        " info=True, gather info.ids too, and keep each once"
    )
    warn_once("gather_for_metrics", why, _USER, what="counts some samples twice")
    return UNKNOWN


class NoBatchSampler:
    """What `loader.batch_sampler` is where none was given: frameworks may look at it and set its epoch, not use it."""

    def __init__(self, loader: Any) -> None:
        self._loader = weakref.ref(loader)  # which has this object: a circle would keep its threads
        self.sampler = weakref.proxy(self)

    def set_epoch(self, epoch: int) -> None:
        """Of the loader's next pass, as Lightning sets it by `batch_sampler.sampler`.

        A state that was loaded decides over a framework's first count, which may be ahead by one where a run stopped
        within an epoch: that only passes over the empty rest of an epoch that had ended. A higher count after it says
        that this epoch is over, however much of it was given: of one that the framework cuts short all that it wants.
        """
        loader = self._loader()
        if loader is not None:
            loader._epoch_of_framework(epoch)

    def _refuse(self, *_: object) -> NoReturn:
        raise ConfigError(
            "batch_sampler: the loader divides, shuffles and batches by itself, so none was given and none can be used;"
            " found a use of it. Give the loader to accelerator.prepare() as it is, and resume by load_state_dict() or"
            " loader.skip(batches) in place of skip_first_batches()"
        )

    __iter__ = __len__ = _refuse
    batch_size = drop_last = property(_refuse)

    def __bool__(self) -> bool:
        return False


class Skipped:
    """The next pass of a loader without its first batches, and every later pass whole: `DataLoader.skip`."""

    def __init__(self, loader: Any, batches: int, begin: Callable[[int], Iterator[Any]]) -> None:
        self.loader, self.batches, self._begin = loader, batches, begin

    def set_epoch(self, epoch: int) -> None:
        """The loader's."""
        self.loader.set_epoch(epoch)

    def __len__(self) -> int:
        """Batches of the next pass."""
        return max(0, int(self.loader._now.left(of_next=True)) - self.batches)

    def __iter__(self) -> Iterator[Any]:
        """The next pass."""
        batches, self.batches = self.batches, 0
        return self._begin(batches)
