"""A run that keeps dead letters and its state, for a test that kills it: `killed_feed.py FOLDER STATE`."""

from __future__ import annotations

import json
import sys
from fractions import Fraction
from pathlib import Path

from kit.images import QUICK, jpeg

from dali_feed.external_sources import DeadLetterFolder
from dali_feed.feed import Feed
from dali_feed.options import BadRecords, Decode
from dali_feed.testing.scripted import Corrupt, Item, ScriptedSource

EVERY = 3  # each third record is bad


def feed_into(folder: Path) -> Feed:
    """300 records in their own order, in batches of 6."""
    items: list[Item] = [Corrupt() if n % EVERY == 1 else (jpeg(n % 16), n) for n in range(300)]
    bad = BadRecords(limit=Fraction(1), dead_letter=DeadLetterFolder(folder))
    return Feed(ScriptedSource(items, extent=12), 6, decode=Decode(engine="host"), tuning=QUICK, bad=bad)


if __name__ == "__main__":
    with feed_into(Path(sys.argv[1])) as feed:
        for _ in feed:
            state, fresh = Path(sys.argv[2]), Path(sys.argv[2] + ".tmp")
            fresh.write_text(json.dumps(feed.state_dict()))
            fresh.replace(state)
            sys.stdout.write("a batch\n")
            sys.stdout.flush()
