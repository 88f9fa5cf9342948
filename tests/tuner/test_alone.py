"""One of several measures, the others wait, and nobody for ever."""

from __future__ import annotations

import threading
from pathlib import Path

from dali_feed.tuner.alone import alone


def test_who_comes_later_waits_for_the_first(tmp_path: Path) -> None:
    """So what was measured is there when its wait is over."""
    order: list[str] = []

    def later() -> None:
        with alone(tmp_path / "lock", 60) as place:
            order.append(place)

    with alone(tmp_path / "lock", 60) as place:
        order.append(place)
        waiting = threading.Thread(target=later)
        waiting.start()
        order.append("measured")
    waiting.join()
    assert order[:2] == ["first", "measured"]
    assert order[2] in ("first", "later")  # first, where it came to the lock only now


def test_a_wait_has_an_end(tmp_path: Path) -> None:
    """A process that holds the lock for ever stops nobody."""
    with alone(tmp_path / "lock", 0), alone(tmp_path / "lock", 0.1) as place:
        assert place == "later"


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    """There is no lock then."""
    (tmp_path / "file").touch()
    with alone(tmp_path / "file" / "lock", 1) as place:
        assert place == "no lock"
