"""An iterable-style dataset that torch's loader runs in this process, and where it stands: by its own word.

The law: what is restored is what was saved. As torchdata has it, a dataset goes on from its state before its iterator
is made, and an iterator, which may be the dataset itself, after that: making it would begin the data again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, cast, runtime_checkable

from torch.utils.data import IterableDataset

from dali_feed.errors import StateError


@runtime_checkable
class Stateful(Protocol):
    """What says where it stands."""

    def state_dict(self) -> dict[str, Any]:
        """Where it stands."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        ...


class OwnState(IterableDataset[Any]):
    """In the dataset's place: it knows the iterator of the pass under way."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._iterator: Any = None
        self._due: Mapping[str, Any] | None = None  # a state that the next iterator goes on from

    def __len__(self) -> int:
        return len(self._dataset)

    def __iter__(self) -> Iterator[Any]:
        due = self._due or {}
        if "dataset" in due:
            self._dataset.load_state_dict(due["dataset"])
        iterator = iter(self._dataset)
        if "iterator" in due:
            if not isinstance(iterator, Stateful):
                kind = type(self._dataset).__qualname__
                raise StateError(f"state: it has that of an iterator; found one of {kind} without load_state_dict()")
            iterator.load_state_dict(due["iterator"])
        self._due, self._iterator = None, iterator  # last: a start that failed is tried again from the same state
        return cast("Iterator[Any]", iterator)

    def saved(self) -> dict[str, Any] | None:
        """Where it stands: its own state, and its iterator's where that is another; None where neither says it."""
        if self._due is not None:
            return dict(self._due)
        parts: dict[str, Any] = {}
        if isinstance(self._dataset, Stateful) and self._iterator is not self._dataset:
            parts["dataset"] = self._dataset.state_dict()
        if isinstance(self._iterator, Stateful):
            parts["iterator"] = self._iterator.state_dict()
        return parts or None

    def go_to(self, state: Mapping[str, Any]) -> None:
        """The next iterator goes on from there."""
        self._iterator, self._due = None, state

    def ended(self) -> None:
        """The pass is over: what comes next is a new one."""
        self._iterator = None
