"""What a bench's turn tells of our loader: the steps that were counted, and not its warm-up."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peer_turns import BATCH, job_in

from dali_feed.bench.ours import ours
from dali_feed.bench.since import since
from dali_feed.external_sources import FileList
from dali_feed.loader import DataLoader
from dali_feed.options import Tuning


def test_a_turn_tells_of_the_steps_that_are_counted(tmp_path: Path) -> None:
    """The samples of its stages are theirs, and the first batch of the warm-up is none of its waits."""
    data = job_in(tmp_path).data
    make = ours(lambda: FileList.from_folder(data.files), BATCH, Tuning(threads=1), torch.device("cpu"), "host", crop=8)
    with make() as steps:
        next(steps)
        steps.begins()
        for _ in range(2):
            next(steps)
    stages = {stage["name"]: stage for stage in steps.told["stages"]}
    assert stages["handover"]["samples"] == stages["train"]["samples"] == 2 * BATCH
    assert "first batch" not in steps.told["causes"]
    assert "start-bound" not in steps.told["sentence"]


def test_what_was_counted_twice_is_what_came_between(tmp_path: Path) -> None:
    """Between a look and itself there is nothing; between two looks, what the later has more; rates are of that."""
    with DataLoader(FileList.from_folder(job_in(tmp_path).data.files), BATCH, device="cpu", transform=None) as loader:
        batches = iter(loader)
        next(batches)
        early = loader.stats()
        next(batches)
        late = loader.stats()
    nothing, found = since(early, early), since(early, late)
    assert (nothing.samples, nothing.batches, nothing.step_wait, nothing.wait_causes) == (0, 0, 0, ())
    assert all(stage.worked == 0 and stage.rate is None for stage in nothing.stages)
    assert (found.samples, found.batches) == (BATCH, 1)
    assert found.step_wait == pytest.approx(late.step_wait - early.step_wait)
    assert sum(each.seconds for each in found.wait_causes) == pytest.approx(found.step_wait)
    assert found.cpu is not None
    assert early.cpu is not None
    assert late.cpu is not None
    assert found.cpu.seconds == pytest.approx(late.cpu.seconds - early.cpu.seconds)
    train = {stage.name: stage for stage in found.stages}["train"]
    assert train.rate == pytest.approx(BATCH / train.worked)
