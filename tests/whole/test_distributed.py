"""Several ranks for real: processes under torchrun, stopped in the middle, resumed at other world sizes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kit.images import jpeg, text
from kit.warm import Warm

from dali_feed.external_sources import ShardSet
from dali_feed.packing.sinks import write_shard
from dali_feed.plan.order import EpochPlan, resolve

pytestmark = [pytest.mark.slow, pytest.mark.whole_machine]

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_distributed.py"
LENGTHS = (33, 5, 21)  # 59 records: one slot of the 60 is filled up with the epoch's first record
LANES, BATCH, STEPS, STOP = 4, 8, 8, 5
Line = dict[str, Any]
# Several runs by torchrun in one process: of each its ranks, the folder for what they write, and whence it goes on.
TORCHRUN = """
import json, shutil, sys
from torch.distributed.run import main
runs, example = map(json.loads, sys.argv[1:])
for ranks, out, begun, more in runs:
    if begun:
        shutil.copytree(begun, out)
    main(["--standalone", "--nproc-per-node", str(ranks), *example, "--out", out, *more])
"""
HOW = ("--trace", "--bad-limit", "1/2", "--epochs", "2", "--global-batch", str(BATCH), "--lanes", str(LANES))


@dataclass(frozen=True)
class Runs:
    """The trace of each run, a list of lines per rank; and which records are bad."""

    whole: list[list[Line]]
    begun: list[list[Line]]
    resumed: dict[int, list[list[Line]]]
    bad: set[int]


ENV = {"GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}


def written(ranks: int, out: str) -> list[list[Line]]:
    """What each of so many ranks wrote down."""
    traces = [Path(out, f"trace-of-{ranks}-rank-{rank}.jsonl") for rank in range(ranks)]
    return [[json.loads(line) for line in trace.read_text().splitlines()] for trace in traces]


@pytest.fixture(scope="module")
def runs(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Two ranks without a stop; two up to a stop, then one and four. Lane 1 has all the bad records."""
    home = tmp_path_factory.mktemp("distributed")
    data = str(home / "s-*.tar")
    records = [[(jpeg(40 * s + n, 24 + n % 3, 24), n % 4) for n in range(length)] for s, length in enumerate(LENGTHS)]

    def write() -> None:
        for s, shard in enumerate(records):
            write_shard(home / f"s-{s}.tar", shard)

    write()
    snapshot = ShardSet(data).snapshot()
    plan = EpochPlan(snapshot, resolve(True, snapshot), seed=0, epoch=0, lanes=LANES)
    bad = {int(sample) for sample in plan.ids(1, 0, plan.lane_length)[1::3]}
    for sample in bad:
        shard, row = sample >> 40, sample & ((1 << 40) - 1)
        records[shard][row] = (text(), 0)
    write()
    stopped = str(home / "stopped")
    launched = [(2, str(home / "whole"), "", []), (2, stopped, "", ["--stop-after", str(STOP)])]
    launched += [(ranks, str(home / f"on-{ranks}"), stopped, []) for ranks in (1, 4)]
    example = json.dumps([str(EXAMPLE), "--data", data, *HOW])
    done = warm.run(["-c", TORCHRUN, json.dumps(launched), example], env=ENV, beside=False)
    assert done.returncode == 0, done.stdout + done.stderr
    whole, begun, *resumed = [written(ranks, out) for ranks, out, *_ in launched]
    return Runs(whole, begun, dict(zip((1, 4), resumed, strict=True)), bad)


def global_batches(ranks: list[list[Line]]) -> list[list[tuple[Any, ...]]]:
    """Per step its slots, lane by lane: rank r of R holds the lanes l with l % R == r."""
    batches = []
    for lines in zip(*ranks, strict=True):
        each = len(lines[0]["ids"]) * len(ranks) // LANES
        slots = [list(zip(*(line[k] for k in ("ids", "ok", "labels", "pixels")), strict=True)) for line in lines]
        turns = [(lane % len(ranks), lane // len(ranks) * each) for lane in range(LANES)]
        batches.append([slot for rank, at in turns for slot in slots[rank][at : at + each]])
    return batches


def test_all_ranks_take_equal_steps(runs: Runs) -> None:
    """Uneven shards, bad records on one rank alone: as many batches on every rank, and as many slots in each."""
    for ranks in (runs.whole, runs.begun, *runs.resumed.values()):
        steps = [[(line["step"], len(line["ids"])) for line in lines] for lines in ranks]
        assert all(one == steps[0] for one in steps)
    assert [line["step"] for line in runs.whole[0]] == list(range(2 * STEPS))
    replaced = [sum(not ok for line in lines[:STEPS] for ok in line["ok"]) for lines in runs.whole]
    assert replaced == [0, len(runs.bad)]


@pytest.mark.parametrize("ranks", [1, 4])
def test_resumed_at_another_world_size_the_batches_are_the_same(runs: Runs, ranks: int) -> None:
    """Two ranks stop in the middle; one, or four, go on: ids, labels and pixels of every global batch are equal."""
    whole = global_batches(runs.whole)
    assert global_batches(runs.begun) == whole[:STOP]
    assert [line["step"] for line in runs.resumed[ranks][0]] == list(range(STOP, 2 * STEPS))
    assert global_batches(runs.resumed[ranks]) == whole[STOP:]
