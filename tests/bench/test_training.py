"""What `dali-feed bench train` says of a loop: its waits, and what is left beside a replay. No time is asserted."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from dali_feed.bench.contract import Data, Job, Outcome, Steps
from dali_feed.bench.training import REPLAY, Trainer, findings, measure, own_share, small_resnet, trained
from dali_feed.cli.app import app

STAGES = [{"name": "handover", "worked": 0.5}, {"name": "train", "waited": 1.0, "worked": 2.5}]


class _Numbered(Steps):
    def __init__(self, fails_at: int | None) -> None:
        self._at, self._fails_at = 0, fails_at

    def __next__(self) -> int:
        self._at += 1
        if self._at == self._fails_at:
            msg = "no more of them"
            raise OSError(msg)
        return self.kept(torch.full((2, 3, 8, 8), float(self._at)))


@dataclass
class Some:
    """A contestant whose batches hold their number."""

    name: str
    fails_at: int | None = None
    version: str = "1"
    lacks: str | None = None

    def missing(self, job: Job) -> str | None:
        """What it was told."""
        return self.lacks

    def ways(self, job: Job) -> Sequence[str]:
        """One."""
        return ("",)

    @contextmanager
    def turn(self, job: Job, way: str) -> Iterator[Steps]:
        """Batches from 1 on."""
        yield _Numbered(self.fails_at)


class Seen(nn.Module):
    """A network that remembers what it was given."""

    def __init__(self, seen: list[float]) -> None:
        super().__init__()
        self.weight, self._seen = nn.Parameter(torch.zeros(5)), seen

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Five logits for each."""
        self._seen.append(float(images.mean()))
        return self.weight.expand(len(images), 5) + images.mean()


def job(folder: Path) -> Job:
    """One that nobody looks at."""
    return Job(Data("none", folder, (), 0, 0, 0, 0), 2, "cpu", 1, folder)


def test_the_network_gets_every_batch_and_the_replay_the_first_few(tmp_path: Path) -> None:
    """In their order for a contestant; the same four again and again for the replay. Every step has its wait."""
    seen: list[float] = []
    outcome = Outcome("train", {})
    measure([Some("ours")], job(tmp_path), outcome, make=lambda: Seen(seen), repeats=1, seconds=0.01)
    replayed = next(n for n in range(1, len(seen)) if seen[n] != seen[n - 1] + 1)
    assert seen[:replayed] == [float(n + 1) for n in range(replayed)]
    assert set(seen[replayed:]) == {1.0, 2.0, 3.0, 4.0}
    assert [row["who"] for row in outcome.rows] == ["ours", REPLAY]
    assert all(0 <= row["waited"] <= 1 for row in outcome.rows)
    assert len(outcome.waits["ours"]) < replayed  # the warm-up's are not among them
    assert outcome.rows[1]["of replay"] == 1
    assert set(outcome.stages["ours"]) == {"source", "trainer"}


def test_who_cannot_or_fails_is_named(tmp_path: Path) -> None:
    """The others go on."""
    outcome, seen = Outcome("train", {}), list[float]()
    others = [Some("ours"), Some("gone", lacks="not installed"), Some("broken", fails_at=3)]
    measure(others, job(tmp_path), outcome, make=lambda: Seen(seen), repeats=1, seconds=0.01)
    assert [row["who"] for row in outcome.rows] == ["ours", REPLAY]
    assert outcome.missing == {"gone": "not installed", "broken": "failed: OSError: no more of them"}


def test_a_step_changes_the_network() -> None:
    """It learns: the loss of the same batch falls; any multiple of 32 pixels is taken."""
    torch.manual_seed(0)
    trainer = Trainer(lambda: small_resnet(8, 10), torch.device("cpu"))
    images = torch.randn(4, 3, 32, 64)
    losses = [float(trainer.step(images)) for _ in range(4)]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("waited", "ratio", "words"),
    [
        (0.3, 0.7, "ours: the loop waits for 30% of its time and gets 0.70 of what the network can take."),
        (0.01, 0.99, "for 1% of its time and gets 0.99 of what the network can take: the network is the limit."),
        (0.01, 0.6, "the rest is CPU time that decoding takes from the network."),
        (0.3, None, "ours: the loop waits for 30% of its time."),
    ],
)
def test_what_limits_is_said(waited: float, ratio: float | None, words: str) -> None:
    """Waiting, the network, or the CPUs that both share."""
    (said,) = findings([{"who": "ours", "waited": waited, "of replay": ratio}, {"who": REPLAY}], {})
    assert said.endswith(words)


def test_two_clocks_that_differ_are_explained() -> None:
    """The bench's wait ends with next(), our loader's with the hand-over; our verdict stands below either way."""
    row = {"who": "ours", "waited": 0.1, "own waited": 0.01, "of replay": None}
    _, apart, verdict = findings([row], {"ours": {"sentence": "training-bound"}})
    assert apart.startswith("Of the 10% that the loop waits ours's own clock saw 1%: in the rest it had")
    assert verdict == "ours's own verdict, of the same steps: training-bound."
    assert len(findings([row | {"own waited": 0.09}], {"ours": {"sentence": "training-bound"}})) == 2


def test_our_own_share_is_of_the_loops_time() -> None:
    """Waits over waits, hand-over and the loop's work; unknown where the stages are."""
    assert own_share({"stages": STAGES}) == 0.25
    assert own_share({"stages": STAGES[:1]}) is None


class _Freed(_Numbered):
    """Each step says whether the batch before it was still held, as a loop holds it."""

    def __init__(self, held: list[bool]) -> None:
        super().__init__(None)
        self._held, self._last = held, weakref.ref(self)

    def __next__(self) -> int:
        self.images = None  # from here on only the loop holds the last one
        self._held.append(self._last() is not None)
        count = super().__next__()
        self._last = weakref.ref(self.images)
        return count


def test_a_batch_is_let_go_behind_the_wait_for_the_next() -> None:
    """As `for images in loader` does it: freeing a batch is no wait for the loader."""
    held: list[bool] = []
    feeds = contextmanager(lambda: iter([_Freed(held)]))
    with trained(feeds, lambda: Trainer(lambda: Seen([]), torch.device("cpu")), [])() as steps:
        assert [next(steps) for _ in range(3)] == [2, 2, 2]
    assert held == [True] * 3


@pytest.mark.long
@pytest.mark.slow
def test_the_command_tells_ours_torch_and_the_replay(tmp_path: Path) -> None:
    """Rows of all three, the width of the network, and a sentence for each loader."""
    asked = ["bench", "train", "--images", "16", "--batch", "2", "--seconds", "0.05", "--repeats", "1", "--json"]
    done = CliRunner().invoke(
        app, [*asked, "--width", "8", "--threads", "1", "--device", "cpu", "--data", str(tmp_path)]
    )
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert [row["who"] for row in found["rows"]] == ["tar", REPLAY, "torch"]
    assert found["about"]["width"] == 8
    begun = [said.partition(":")[0] for said in found["findings"] if not said.startswith("Of the ")]
    assert begun == ["tar", "tar's own verdict, of the same steps", "torch"]
