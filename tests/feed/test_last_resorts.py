"""What is left when what was kept, told or measured cannot be used: the run goes on without, or says what is wrong."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from kit.cached_feeds import feed, scripted

from dali_feed.errors import StateError
from dali_feed.feed.commit import reached
from dali_feed.feed.disk_rows import row_of, told
from dali_feed.feed.stats import CpuStats, Running, StageStats, WaitCause, verdict


@pytest.mark.parametrize("odd", [np.array([object()]), np.datetime64("2026-01-01"), object(), {1, 2}])
def test_values_without_a_form_in_files_are_not_kept(odd: Any) -> None:
    """The row is read again in each run instead: nothing is pickled."""
    with pytest.raises(TypeError, match="cannot be kept"):
        told(None, (odd,))


def test_bytes_that_are_no_row_are_none() -> None:
    """Of another shape, of a dtype that holds objects, or with something behind: no code comes from a file."""
    body = told(memoryview(b"image"), (np.arange(3), [1.5, "é", None, True, {"a": 1j}], np.int16(3)))
    payload, values = row_of(memoryview(body))
    assert payload is not None
    assert bytes(payload) == b"image"
    assert values[0].tolist() == [0, 1, 2]
    assert values[1:] == ([1.5, "é", None, True, {"a": 1j}], np.int16(3))
    for wrong in (body + b"N", body[:-1], body.replace(b"<i8", b"|O8"), b"", b"N" + bytes(8)):
        with pytest.raises((ValueError, struct.error, KeyError)):
            row_of(memoryview(wrong))


def test_a_state_of_something_else_has_reached_nothing() -> None:
    """Of another snapshot, of a sampler's order, or with what it was made for left out: each is named."""
    source = scripted()
    with feed(source, None) as made:
        next(iter(made))
        state, snapshot = made.state_dict(), made.snapshot
    assert reached(state, snapshot).sum() >= 0
    changes: tuple[tuple[dict[str, Any], str], ...] = (
        ({"source": "another"}, "state: it must fit its own pin; the fingerprints are 'another'"),
        ({"sampler": "x"}, "state: its order came from a sampler, which a state does not hold"),
        ({"lanes": "many"}, "state: must be the dict that state_dict\\(\\) gave; ValueError"),
    )
    for change, said in changes:
        with pytest.raises(StateError, match=said):
            reached(state | {"made_for": state["made_for"] | change}, snapshot)


def _stage(name: str, threads: int, waited: float, worked: float) -> StageStats:
    return StageStats(name, threads, 1000, waited, worked, 0.0, 1000 * threads / worked)


class _Measured:
    """A run whose loop waits for one stage."""

    batches, slab_peak, step_wait = 100, 0, 9.0

    def __init__(self, cause: str, stage: StageStats, cpu: CpuStats | None, running: Running) -> None:
        self.wait_causes = (WaitCause(cause, 9.0),)
        self.stages = (stage, _stage("train", 1, 0.0, 1.0))
        self.cpu, self.running = cpu, running


HOST = Running("host", on_gpu=False, prefetch=2, memory=1 << 30)
BUSY = _stage("read", 2, 0.0, 10.0)
DECODES = _stage("engine", 4, 0.1, 40.0)


@pytest.mark.parametrize(
    ("cause", "stage", "cpu", "running", "said"),
    [
        (
            "source",
            BUSY,
            CpuStats(16, 4.0, 10.0),
            HOST,
            "Tuning(readers=3): readers are at work all the time",
        ),
        ("source", BUSY, CpuStats(4, 4.0, 10.0), HOST, "fewer decoder threads, or more cores"),
        ("engine", DECODES, CpuStats(4, 4.0, 10.0), replace(HOST, engine="dali", on_gpu=True), "Decode(hardware=...)"),
        ("engine", DECODES, CpuStats(4, 1.0, 10.0), HOST, "freeing the cores"),
    ],
)
def test_advice_follows_from_who_has_the_processors(
    cause: str, stage: StageStats, cpu: CpuStats, running: Running, said: str
) -> None:
    """More readers where a core is free, fewer decoders where none is, the GPU's own decoder where there is one."""
    found: Any = _Measured(cause, stage, cpu, running)
    assert any(said in each for each in verdict(found).advice), verdict(found).advice
