"""The queue between the feed thread and the training loop: bounded, in order, ended by either side for both."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from dali_feed.errors import ClosedError
from dali_feed.feed.channel import Channel


def in_thread(call: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """A thread that makes that call, and what comes of it: a value, or the type of an error."""
    found: list[object] = []

    def run() -> None:
        try:
            found.append(call())
        except Exception as error:  # noqa: BLE001  that is what is looked at
            found.append(type(error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, found


def test_items_come_in_order_and_no_more_than_there_is_room_for() -> None:
    """A third of two is refused until one has been taken; a last one needs no room."""
    channel: Channel[int] = Channel(2)
    channel.put(1)
    channel.put(2)
    assert not channel.offer(3, 0.0)
    assert (channel.get(), channel.offer(3, 0.0), channel.offer(4, 0.0)) == (1, True, False)
    channel.end(5)
    assert [len(channel), channel.get(), channel.get(), channel.get(), len(channel)] == [3, 2, 3, 5, 0]


def test_many_pass_between_two_threads() -> None:
    """All of them, in order, though each side waits for the other all the time."""
    channel: Channel[int] = Channel(2)

    def give() -> None:
        for n in range(2000):
            channel.put(n)

    thread, _ = in_thread(give)
    assert [channel.get(60) for _ in range(2000)] == list(range(2000))
    thread.join()


def test_an_empty_one_is_waited_for_in_vain() -> None:
    """TimeoutError, and it goes on."""
    channel: Channel[int] = Channel(1)
    for seconds in (0.0, 0.01):
        with pytest.raises(TimeoutError):
            channel.get(seconds)
    channel.put(1)
    assert channel.get(0.0) == 1


@pytest.mark.parametrize("full", [False, True], ids=["for an item", "for room"])
def test_its_end_wakes_whoever_waits(full: bool) -> None:
    """Several threads at once, and for good; what was in it is given back, and nothing comes in any more."""
    channel: Channel[int] = Channel(1)
    if full:
        channel.put(1)
    threads = [in_thread(lambda: channel.put(2) if full else channel.get()) for _ in range(3)]
    assert channel.close() == [1] * full
    for thread, found in threads:
        thread.join(60)
        assert found == [ClosedError]
    calls = (channel.put, channel.end, lambda item: channel.offer(item, 0.0), lambda _: channel.get(0.0))
    for call in (*calls, calls[-1]):
        with pytest.raises(ClosedError):
            call(3)
    assert (channel.close(), len(channel)) == ([], 0)
