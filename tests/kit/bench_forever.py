"""A bench of contestants whose batches cost nothing, in more turns than anybody waits for, ended as a command is.

python tests/kit/bench_forever.py KEPT.csv
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import typer

from dali_feed.bench.contract import Data, Job, Outcome, Steps
from dali_feed.bench.loading import SHOWN, measure, told_in_csv
from dali_feed.cli.bench.ending import Ending, ending
from dali_feed.cli.bench.progress import listening


class _Steps(Steps):
    def __next__(self) -> int:
        return 1


@dataclass(frozen=True)
class Idle:
    """Never out of batches."""

    name: str
    version: str = ""

    def missing(self, job: Job) -> str | None:
        """Never."""
        return None

    def ways(self, job: Job) -> Sequence[str]:
        """One."""
        return [""]

    @contextmanager
    def turn(self, job: Job, way: str) -> Iterator[Steps]:
        """At once."""
        yield _Steps()


def main(kept: Path) -> None:
    """Measure until Ctrl-C."""
    here, outcome = Path(), Outcome("loader", {"data": "none"})
    job = Job(Data("none", here, (), 1, 1, 1, 1), 1, "cpu", 1, here)
    with ending(outcome, Ending(SHOWN, told_in_csv, csv=kept)), listening() as listener:
        contestants = [Idle("tar"), Idle("ceiling")]
        measure(contestants, job, outcome, repeats=1_000_000, seconds=0.01, listener=listener)


if __name__ == "__main__":
    typer.run(main)
