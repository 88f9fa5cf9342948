"""The number of lanes that a run has where nobody gives one, and the one that it takes from a state."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from kit.images import QUICK, labelled

from dali_feed.errors import StateError
from dali_feed.feed import Feed
from dali_feed.plan.batching import Shares
from dali_feed.plan.order import Shuffle, resolve
from dali_feed.records.source import Mixture, Snapshot
from dali_feed.testing import ScriptedSource


def snapshot(samples: int, *, extent: int = 1, record_bytes: int = 1000) -> Snapshot:
    """One partition of so many records; single ones are cheap to read where extents are of one."""
    one, single = np.array([0, samples], np.int64), extent == 1
    return Snapshot("s", ("p",), one[:1], one[1:], extent, record_bytes, single, interleaved=False, fingerprint="f")


def mixture(samples: int | None, *counts: int) -> Snapshot:
    """Parts of so many records in equal shares."""
    parts = tuple(map(snapshot, counts))
    mix = Mixture(((0, (1.0,) * len(parts)),), samples=samples)
    starts, stops = (np.concatenate([getattr(part, name) for part in parts]) for name in ("starts", "stops"))
    return replace(parts[0], names=("p",) * len(parts), parts=parts, mix=mix, starts=starts, stops=stops)


def lanes(snap: Snapshot, batch_size: int, ranks: int = 1, shuffle: bool | Shuffle = True, **options: Any) -> int:
    """By the rule; drop_last unless said."""
    most = {"most_lanes": options.pop("most_lanes")} if "most_lanes" in options else {}
    shares = Shares.of(batch_size, 0, ranks, None, **most)
    return shares.widened(snap, resolve(shuffle, snap), **({"drop_last": True} | options)).lanes


MANY = snapshot(100_000)
IMAGES = snapshot(100_000, record_bytes=110_000)  # a window of 1,024 of them takes 113 MB


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (lanes(MANY, 256), 16),  # 16 samples of a batch in each
        (lanes(MANY, 2048), 64),  # 64 at most
        (lanes(MANY, 240), 15),  # they divide the batch
        (lanes(MANY, 100), 5),
        (lanes(MANY, 31), 1),
        (lanes(MANY, 64, 8), 32),  # of the global batch, and a multiple of the ranks
        (lanes(MANY, 24, 6), 6),
        (lanes(MANY, 8, 64), 64),  # ranks with fewer samples than 16 have a lane each
        (lanes(MANY, 100, 100), 100),
        (lanes(IMAGES, 256), 2),  # windows of 256 MB on a rank
        (lanes(IMAGES, 256, 4), 8),
        (lanes(IMAGES, 256, shuffle=Shuffle(window=100)), 16),
        (lanes(snapshot(100_000, extent=300, record_bytes=110_000), 256), 1),  # a topic's windows take that already
        (lanes(snapshot(2000, extent=500), 256), 4),  # no extent is cut
        (lanes(snapshot(100, extent=500), 64), 1),
        (lanes(MANY, 256, shuffle=False), 1),
        (lanes(MANY, 64, 4, shuffle=False), 4),
        (lanes(MANY, 256, most_lanes=1), 1),  # a column that joins the records of a lane
        (lanes(MANY, 64, 4, most_lanes=4), 4),
        (lanes(snapshot(100), 2048), 4),  # of an epoch, too, each has 16 samples: few of them are repeats
        (lanes(snapshot(0), 256), 1),
        (lanes(snapshot(96), 64, drop_last=False), 4),  # on one rank each record comes once
        (lanes(snapshot(98), 64, drop_last=False), 2),
        (lanes(snapshot(97), 64, drop_last=False), 1),
        (lanes(snapshot(97), 32, 2, drop_last=False), 4),  # on several an epoch has repeats anyway
        (lanes(mixture(None, 96, 98), 64, drop_last=False), 2),
        (lanes(mixture(99, 96, 96), 64, drop_last=False), 1),
        (lanes(mixture(96, 96, 96), 64, drop_last=False), 4),
    ],
)
def test_the_rule(found: int, expected: int) -> None:
    """The most lanes that the batch, the ranks, the memory and the records allow."""
    assert found == expected


def test_lanes_that_are_given_stay() -> None:
    """Whatever the records are, and whatever a state says."""
    given = Shares.of(256, 0, 1, 4)
    assert given.widened(MANY, resolve(shuffle=True, snapshot=MANY), drop_last=True) is given
    assert given.of_state({"lanes": 8}) is None


@pytest.mark.parametrize(
    ("made_for", "expected"),
    [({"lanes": 128}, 128), ({"lanes": 6}, None), ({"lanes": 3}, None), ({"lanes": "4"}, None), ({}, None)],
)
def test_a_states_lanes_are_taken_where_they_fit(made_for: dict[str, Any], expected: int | None) -> None:
    """They divide the global batch, and the ranks divide them; what does not fit is for the comparison to refuse."""
    found = Shares.of(128, 0, 2, None).of_state(made_for)
    assert (found and found.lanes) == expected


def test_the_log_names_the_world_sizes(caplog: pytest.LogCaptureFixture) -> None:
    """All divisors of the lanes, and what else must stay."""
    with caplog.at_level(logging.INFO, "dali_feed"):
        Shares.of(48, 0, 2, 12).log_world_sizes()
    (said,) = caplog.messages
    assert said.startswith("state: can be loaded at world size 1, 2, 3, 4, 6, 12, with the same 96 samples in each")


@pytest.mark.parametrize(("count", "batch_size", "ranks", "said"), [(1, 4, 2, "1"), (6, 12, 4, "1, 2, 3, 6")])
def test_a_state_of_other_lanes_says_where_it_can_go(count: int, batch_size: int, ranks: int, said: str) -> None:
    """Two ranks cannot be made with the one lane that a state has: the cure is a world size, or lanes= of a new run."""
    source = ScriptedSource(labelled(24), extent=4)
    with Feed(source, batch_size, lanes=count, tuning=QUICK) as feed:
        state = feed.state_dict()
    with Feed(source, batch_size // ranks, rank=0, world_size=ranks, tuning=QUICK) as feed:
        rule = f"lanes may not: one of lanes={count} goes to world size {said}, with .* For others give lanes="
        with pytest.raises(StateError, match=rule):
            feed.load_state_dict(state)
