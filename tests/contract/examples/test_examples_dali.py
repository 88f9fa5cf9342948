"""examples/dali_resnet50.py runs both ways, from every source, and goes on in the middle of an epoch."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from kit.broker.handle import Kafka
from kit.images import jpeg
from kit.inside import write_shard
from kit.warm import Warm

from dali_feed.testing import Message

pytestmark = [pytest.mark.slow, pytest.mark.whole_machine]

SCRIPT = Path(__file__).resolve().parents[3] / "examples" / "dali_resnet50.py"
COUNT = 24
QUICK = ("--tiny", "--size", "32", "--batch-size", "5", "--threads", "2", "--epochs", "2", "--lr", "0.01")


Ran = Callable[..., str]


@pytest.fixture
def ran(warm: Warm) -> Ran:
    """Runs the script; what it prints."""

    def printed(*arguments: str) -> str:
        done = warm.run([SCRIPT, *QUICK, *arguments])
        assert done.returncode == 0, done.stderr
        return done.stdout

    return printed


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder per class, of JPEGs of several sizes."""
    root = tmp_path_factory.mktemp("images")
    for n in range(COUNT):
        (root / f"class{n % 3}").mkdir(exist_ok=True)
        (root / f"class{n % 3}" / f"{n}.jpg").write_bytes(jpeg(n, 40 + n, 60 - n))
    return root


def test_both_ways_see_all_samples(ran: Ran, folder: Path) -> None:
    """DALI's iterator and ours in the same script: two epochs of all samples each."""
    for way in ((), ("--dalis-own",)):
        assert re.findall(r"epoch (\d): (\d+) samples", ran("--data", str(folder), *way)) == [("0", "24"), ("1", "24")]


def test_shards_train_as_well(ran: Ran, tmp_path: Path) -> None:
    """The same script on tar shards."""
    write_shard(tmp_path / "a-0.tar", [(jpeg(n, 40, 40), n % 3) for n in range(12)])
    told = ran("--data", str(tmp_path / "a-*.tar"), "--classes", "3")
    assert re.findall(r"epoch (\d): (\d+) samples", told) == [("0", "12"), ("1", "12")]


def test_a_topic_trains_as_well(ran: Ran, embedded: Kafka) -> None:
    """The same script on a Kafka topic."""
    topic = embedded.create(embedded.topic, 2)
    embedded.publish(topic, [Message(jpeg(n, 40, 40), headers=(("label", b"%d" % (n % 3)),)) for n in range(12)])
    told = ran("--data", f"kafka://{embedded.servers}/{topic}", "--classes", "3")
    assert re.findall(r"epoch (\d): (\d+) samples", told) == [("0", "12"), ("1", "12")]


def test_a_stopped_run_goes_on_in_its_epoch(ran: Ran, folder: Path, tmp_path: Path) -> None:
    """What is left of the epoch comes, and the loss of the epoch after is that of a run that was not stopped."""
    checkpoint = ("--checkpoint", str(tmp_path / "run.pt"))
    assert "stopped at step 3, 15 samples into epoch 0" in ran("--data", str(folder), *checkpoint, "--stop-after", "3")
    told = ran("--data", str(folder), *checkpoint)
    assert re.findall(r"epoch (\d): (\d+) samples", told) == [("0", "9"), ("1", "24")]
    whole = ran("--data", str(folder))
    assert _last_loss(told) == _last_loss(whole)


def _last_loss(told: str) -> str:
    found = re.search(r"epoch 1: .* (loss [\d.]+, \d+% right)", told)
    assert found is not None
    return found[1]
