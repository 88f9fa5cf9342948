"""What `map=` is called in a manifest and a journal: the same in another process, and another with other settings."""

from __future__ import annotations

import operator
import threading
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit.images import jpeg

from dali_feed.errors import ConfigError, StateError
from dali_feed.external_sources import FileList
from dali_feed.packing import pack
from dali_feed.packing.changes import OnImages


@dataclass
class Padded:
    """Its settings are in a tuple."""

    size: tuple[int, ...]

    def __call__(self, payload: bytes) -> bytes:
        """With so many bytes behind it."""
        return payload + bytes(sum(self.size))


@dataclass(slots=True)
class Slotted:
    """It has no `__dict__`."""

    size: tuple[int, ...]

    def __call__(self, payload: bytes) -> bytes:
        """As it is."""
        return payload


class Holding(Padded):
    """It holds something that another process cannot have."""

    def __init__(self) -> None:
        super().__init__((1,))
        self.lock = threading.Lock()


def cut(payload: bytes, by: Any) -> bytes:
    """A function with an argument."""
    return payload[: len(payload) - len(by)]


MADE = {
    "tuple": lambda n: Padded((n, 2)),
    "nested": lambda n: partial(cut, by={"sizes": [Padded((n,)), operator]}),
    "slots": lambda n: Slotted((n,)),
    "of C": lambda n: operator.itemgetter(slice(n, None)),
    "array": lambda n: partial(cut, by=np.arange(n)),
    "set": lambda n: partial(cut, by={f"{k}" for k in range(20 + n)}),
    "function": lambda n: partial(cut, by=(len, min)[n - 1]),
}


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_an_object_is_named_by_all_that_it_holds(make: Any) -> None:
    """An equal one has its name, one with other settings another."""
    assert OnImages(make(1)).facts == OnImages(make(1)).facts != OnImages(make(2)).facts


def test_a_set_is_not_written_half_by_one_setting_and_half_by_another(tmp_path: Path) -> None:
    """A run that was begun is refused with an object of the same class that does something else."""
    for k in range(3):
        (tmp_path / f"{k}.jpg").write_bytes(jpeg(k, 16, 16))
    source = FileList([str(tmp_path / f"{k}.jpg") for k in range(3)])
    pack(source, tmp_path / "set", map=Padded((1, 2)))
    assert pack(source, tmp_path / "set", map=Padded((1, 2))).begun == 3
    with pytest.raises(StateError, match="changes: "):
        pack(source, tmp_path / "set", map=Padded((1, 3)))


def test_what_an_object_holds_is_not_written_in_clear() -> None:
    """It may be a password."""
    assert "sk-12345" not in OnImages(partial(cut, by="sk-12345")).facts
    one = Padded((1,))
    one.token = "sk-12345"  # type: ignore[attr-defined]
    assert "sk-12345" not in OnImages(one).facts


def test_an_object_that_cannot_be_named_is_asked_for_its_facts() -> None:
    """An address is no name."""
    with pytest.raises(
        ConfigError, match=r"map: .* found a Holding: cannot pickle '_thread.lock' object. Give .* facts"
    ):
        OnImages(Holding())
    one = Holding()
    one.facts = {"padded": 1}  # type: ignore[attr-defined]
    assert OnImages(one).facts == {"padded": 1}
