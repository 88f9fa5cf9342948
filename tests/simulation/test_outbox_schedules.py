"""Dead letters on their way, in any schedule: a writer that is slow, hangs, fails, or fails for a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from kit.schedules import Schedule, explore, seeds

from dali_feed import bad_records, sync
from dali_feed.bad_records import Letter, Outbox
from dali_feed.errors import ClosedError, DeadLetterError
from dali_feed.testing.scripted import ScriptedSource

PATIENCE = 2.0  # virtual seconds


class Fake:
    """A place for dead letters, and its writer: `fails` so many writes, and takes `seconds` for each."""

    def __init__(self, seconds: float, fails: int) -> None:
        self.seconds, self.fails = seconds, fails
        self.written = list[int]()
        self.inside = 0

    def writer(self) -> Fake:
        """Itself."""
        return self

    def write(self, letters: Sequence[Letter]) -> None:
        """All of them, or none."""
        self.inside += 1
        assert self.inside == 1, "two threads write"
        sync.sleep(self.seconds)
        self.inside -= 1
        if self.fails:
            self.fails -= 1
            msg = "the disk is full"
            raise DeadLetterError(msg)
        self.written += [letter.sample for letter in letters]

    def read(self) -> Iterator[Letter]:
        """Nothing is read here."""
        raise NotImplementedError

    def close(self) -> None:
        """Nothing is open."""


def letter(n: int) -> Letter:
    """The n-th."""
    return Letter(f"scripted[0]@{n}", "scripted", 0, n, n, "screen", "bad", b"x")


def posts(schedule: Schedule) -> None:
    """A thread that feeds posts, the loop takes states, and closes at any moment."""
    rng = schedule.rng
    to = Fake(
        rng.choice((0.0, 0.0, 0.05, 0.05, 3.0, 3.0, 200.0 if rng.random() < 0.1 else 0.3)), rng.choice((0, 0, 1, 3))
    )
    outbox = Outbox(ScriptedSource([b""]), to)
    posted, ended = list[int](), [False]

    def feeds() -> None:
        try:
            for n in range(rng.choice((1, 4, 70))):
                outbox.post(letter(n), lambda: ended[0])
                posted.append(n)
                if rng.random() < 0.1:
                    outbox.check()
            outbox.drain(lambda: ended[0])
            assert to.written[: len(posted)] == posted
        except (DeadLetterError, ClosedError):
            pass

    thread = sync.Thread(target=feeds, name="feeds")
    try:
        if rng.random() < 0.3:
            schedule.ctrl_c(within=400)
        thread.start()
        for _ in range(rng.choice((0, 1, 3))):
            before = list(posted)
            try:
                outbox.drain()
            except DeadLetterError:
                outbox.retry()
            else:
                assert to.written[: len(before)] == before, "a state counts letters that are not durable"
        if rng.random() < 0.5:
            thread.join()
    except KeyboardInterrupt:
        pass
    schedule.no_ctrl_c()
    ended[0] = True
    if thread.is_alive():
        thread.join()
    try:
        outbox.close()
    except DeadLetterError:
        assert len(to.written) < len(posted)
    outbox.close()
    assert to.written == list(range(len(to.written))), "each is written once, in order"


def test_any_schedule() -> None:
    """Behind a drain all is durable, once and in order; a writer that fails is heard of, and no wait is for ever."""
    explore(posts, seeds(300), modules=[bad_records])


def test_nothing_is_taken_behind_the_end() -> None:
    """A feed thread that is still at work then ends; a state waits for no letter that nobody will write."""
    outbox = Outbox(ScriptedSource([b""]), Fake(0.0, 0))
    outbox.post(letter(0))
    outbox.close()
    with pytest.raises(ClosedError):
        outbox.post(letter(1))
    outbox.drain()


def test_what_the_feed_thread_alone_has_met_is_raised_at_the_end() -> None:
    """The loop may close before it asks for the batch behind which the failure would have come."""
    outbox = Outbox(ScriptedSource([b""]), Fake(0.0, 1))
    outbox.post(letter(0))
    with pytest.raises(DeadLetterError, match="the disk is full"):
        outbox.drain()  # as the feed thread does at an epoch's end
    with pytest.raises(DeadLetterError, match="the disk is full"):
        outbox.close()
