"""The bare loops that ours is measured by: what they decode, and where its bytes come from. No time is looked at."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from peer_turns import BATCH, COUNT, job_in

from dali_feed.bench.contract import Job
from dali_feed.bench.held import payloads_of
from dali_feed.bench.loop import Loop, LoopRead
from dali_feed.bench.tar_reads import TarReads
from dali_feed.errors import DataLostError


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """The images as files and in two shards."""
    return job_in(tmp_path, threads=2)


def test_what_is_read_from_shards_are_the_images(job: Job) -> None:
    """Rows of a batch, in any order and twice too, are each the bytes of an image's file, all there at one time."""
    rows = np.random.default_rng(0).permutation(np.repeat(np.arange(COUNT), 2))
    files = sorted(job.data.files.glob("*/*"), key=lambda path: path.name)
    with closing(TarReads(job.data.shards)) as reads:
        assert len(reads) == COUNT
        found = [image.tobytes() for image in reads(rows)]
    assert found == [files[k].read_bytes() for k in rows]


def test_a_cut_shard_is_said_and_not_decoded(job: Job) -> None:
    """A read that comes short has bytes of the batch before in it, so it names the shard."""
    with closing(TarReads(job.data.shards)) as reads:
        os.truncate(job.data.shards[1], 1024)
        with pytest.raises(DataLostError, match=job.data.shards[1].name):
            reads(np.array([COUNT - 1]))


@pytest.mark.parametrize("contestant", [Loop(), LoopRead()])
def test_a_bare_loop_gives_batch_after_batch(job: Job, contestant: Loop) -> None:
    """Both take the job on a CPU, and none on a GPU."""
    assert contestant.missing(job) is None
    with contestant.turn(job, "") as steps:
        assert [next(steps) for _ in range(3 * COUNT // BATCH)] == [BATCH] * (3 * COUNT // BATCH)


def test_only_the_loop_that_reads_has_the_shards_open(job: Job) -> None:
    """During its turn alone: `loop` stands for decoding without reads."""

    def opened() -> set[str]:
        return {os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")}

    shards = {os.path.realpath(path) for path in job.data.shards}
    assert payloads_of(job.data)
    with Loop().turn(job, "") as steps:
        next(steps)
        assert not shards & opened()
    with LoopRead().turn(job, "") as steps:
        next(steps)
        assert shards <= opened()
    assert not shards & opened()
