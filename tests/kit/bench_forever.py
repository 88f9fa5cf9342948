"""A bench of contestants whose batches cost nothing, in more turns than anybody waits for, ended as a command is.

python tests/kit/bench_forever.py KEPT.csv
"""

from __future__ import annotations

from pathlib import Path

import typer

from dali_feed.bench.runner import Called, Contestant, Race, opened, race
from dali_feed.cli.bench import finish, listening


def main(kept: Path) -> None:
    """Measure until Ctrl-C."""
    result = Race("loader", "images", ["who", "images/s"])
    idle = [Contestant(name, opened(lambda: Called(lambda: 1))) for name in ("tar", "ceiling")]
    with finish(result, [kept]), listening() as heard:
        race(result, idle, rounds=20_000, seconds=0.01, heard=heard)


if __name__ == "__main__":
    typer.run(main)
