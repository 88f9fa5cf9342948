"""Whether a dataset that was taken apart when its loader was made is still what it was.

The law: what would change the data is honoured or refused. Torch asks a dataset for every sample, so a script
may give it another transform between two epochs. Ours has taken the files and the transform with it: it says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dali_feed.errors import ConfigError

__all__ = ["Unchanged"]

_ACTS = ("transform", "target_transform", "transforms")  # what it does to a sample: another object is another one
_HOLDS = ("samples", "imgs", "targets", "indices")  # which samples there are
_NUMBERS = ("_fingerprint",)  # of a Hugging Face dataset, which has another one after set_transform() and its kind


class Unchanged:
    """A dataset as it is now, with those inside it."""

    def __init__(self, dataset: object) -> None:
        self._parts = [(part, _seen(part)) for part in _parts(dataset)]

    def check(self) -> None:
        """Raise a ConfigError where something has been put in another's place since."""
        for part, before in self._parts:
            now = _seen(part)
            for name in before | now:
                if not _same(name, before.get(name), now.get(name)):
                    msg = (
                        f"dataset: the {name} of {type(part).__qualname__} was changed after the loader was "
                        "made, and the loader uses the old one; make a new DataLoader (it can load the state of "
                        "this one)"
                    )
                    raise ConfigError(msg)


def _parts(dataset: object) -> Iterator[object]:
    """A dataset and what it is made of: a Subset's whole, the parts of a ConcatDataset."""
    yield dataset
    inside = getattr(dataset, "dataset", None)
    for part in [inside] if inside is not None else getattr(dataset, "datasets", None) or ():
        yield from _parts(part)


def _seen(part: object) -> dict[str, Any]:
    held = getattr(part, "__dict__", {})
    seen = {name: held[name] for name in (*_ACTS, *_HOLDS, *_NUMBERS) if name in held}
    return seen | {f"number of {name}": len(seen[name]) for name in _HOLDS if name in seen}  # cut in place


def _same(name: str, before: Any, now: Any) -> bool:
    if before is now:
        return True
    if name in _ACTS or before is None or now is None:
        return False
    if name in _HOLDS:
        return len(before) == len(now) and all(one == other for one, other in zip(before, now, strict=True))
    return bool(before == now)
