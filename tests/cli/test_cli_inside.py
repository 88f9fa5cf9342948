"""Insides that contract/cli/test_cli.py needs not: they go with what they test."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.command import Cli, cli
from kit.warm import Warm
from PIL import Image

from dali_feed.cli.demo.resume import compare, resumed
from dali_feed.cli.demo.train import Job, Trace
from dali_feed.cli.findings import look, spread
from dali_feed.errors import EngineError
from dali_feed.native.library import used
from dali_feed.records.source import Snapshot
from dali_feed.testing import ScriptedSource
from dali_feed.testing.scripted import Gap
from dali_feed.testing.shards import write_shard

__all__ = ["cli"]  # a fixture


def jpeg(width: int = 40, height: int = 30) -> bytes:
    """A small picture."""
    file = io.BytesIO()
    Image.new("RGB", (width, height), (200, 90, 40)).save(file, "JPEG")
    return file.getvalue()


def test_absent_positions_are_counted() -> None:
    """A hole in the positions is absent, neither good nor bad."""
    source = ScriptedSource([(jpeg(), 1), Gap(), (jpeg(), 2)])
    found = look(source, source.snapshot(), 256)
    assert (found.rows, found.absent, found.bad) == (3, 1, [])


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 60)), min_size=1, max_size=6).filter(
        lambda parts: any(n for _, n in parts)
    ),
    st.integers(1, 120),
    st.booleans(),
)
def test_a_sample_is_spread(parts: list[tuple[int, int]], count: int, random_access: bool) -> None:
    """A sample has as many distinct positions as asked for, all of them in the snapshot, none far from the next."""
    starts, counts = (np.array(column, np.int64) for column in zip(*parts, strict=True))
    names = tuple(map(str, range(len(parts))))
    snapshot = Snapshot("s", names, starts, starts + counts, 8, 1, random_access, False, "")
    extents = spread(snapshot, count)
    ids = extents.ids()
    assert len(set(ids.tolist())) == len(ids) == min(count, len(snapshot))
    assert (extents.lengths > 0).all()
    assert (extents.start >= starts[extents.partition]).all()
    assert (extents.stop <= (starts + counts)[extents.partition]).all()
    run = 1 if random_access else 16
    line = extents.start - starts[extents.partition] + (np.cumsum(counts) - counts)[extents.partition]
    assert np.diff(line).max(initial=0) <= run * -(-len(snapshot) // len(ids))


def test_unknown_options_and_the_version(cli: Cli) -> None:
    """An unknown option is an error of usage; --version says the version, and whether the loops in C are used."""
    assert cli("inspect", "--bogus", "x").code == 2
    assert cli("demo", "--source", "carrier-pigeon").code == 2
    done = cli("--version")
    assert done.code == 0
    assert re.fullmatch(rf"dali-feed \d+\.\d+\.\d+\S*\nloops in C: {used()}\n", done.out)


def test_the_comparison_sees_a_difference() -> None:
    """Other pixels, other ids, or batches too few or too many in the resumed run are named by their batch."""
    whole = Trace([[1, 2], [3, 4], [5, 6]], ["a", "b", "c"], "w")
    same = Trace([[3, 4], [5, 6]], ["b", "c"], "w")
    assert str(compare(whole, same, 1)).startswith("resumed: identical (2 batches, ids and pixels of 4 samples")
    for ids, pixels, batch in (
        ([[3, 4], [5, 6]], ["b", "x"], 2),
        ([[4, 3], [5, 6]], ["b", "c"], 1),
        ([[3, 4]], ["b"], 2),
        ([[3, 4], [5, 6], [7, 8]], ["b", "c", "d"], 3),
    ):
        assert str(compare(whole, Trace(ids, pixels, "w"), 1)) == f"resumed: DIFFERENT at batch {batch}"


def test_a_process_that_fails_is_told(tmp_path: Path, warm: Warm, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resumed process that finds no checkpoint is an error with its last words."""
    monkeypatch.setattr(sys, "executable", str(warm.python))
    write_shard(tmp_path / "digits-0.tar", [(jpeg(), 1)])
    with pytest.raises(EngineError, match=r"one ended with 1: .*digits-1\.tar"):
        resumed(Job("tar", str(tmp_path), "cpu", 1), tmp_path)
