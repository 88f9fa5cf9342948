"""Letters, and a place for them whose door tests open."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from dali_feed.bad_records import Letter
from dali_feed.errors import DeadLetterError


def letter(n: int = 0, **other: Any) -> Letter:
    """A letter of position n."""
    known: dict[str, Any] = {
        "source": "s",
        "partition": 0,
        "position": n,
        "sample": n,
        "stage": "screen",
        "reason": "why",
    }
    return Letter(**{"where": f"s[0]@{n}", "payload": b"payload %d" % n} | known | other)


@dataclass(eq=False)
class Held:
    """Keeps letters in memory: `fails` of its writes are refused, and none ends before `open` is set."""

    open: threading.Event = field(default_factory=threading.Event)
    begun: threading.Event = field(default_factory=threading.Event)
    fails: int = 0
    letters: list[Letter] = field(default_factory=list)

    def writer(self) -> Held:
        """Itself."""
        return self

    def write(self, letters: Sequence[Letter]) -> None:
        """Keep them once the door is open."""
        self.begun.set()
        self.open.wait()
        if self.fails:
            self.fails -= 1
            msg = "the shelf is full"
            raise DeadLetterError(msg)
        self.letters += letters

    def close(self) -> None:
        """Nothing."""

    def read(self) -> Iterator[Letter]:
        """All of them."""
        return iter(self.letters)


def opened(fails: int = 0) -> Held:
    """Takes letters at once."""
    held = Held(fails=fails)
    held.open.set()
    return held
