"""`dali-feed bench kernels`: our CUDA kernels beside a copy of as many bytes."""

from __future__ import annotations

from typing import Annotated

import typer

from dali_feed.cli.bench.options import Batch, Csv, Json, Plots, Quick, Report
from dali_feed.cli.options import Names

__all__ = ["kernels"]


def kernels(
    names: Annotated[Names, typer.Argument(help="finish, jitter, unpack.", show_default="all")] = None,
    batch: Batch = 256,
    runs: Annotated[int, typer.Option(min=1, help="Number of launches that are counted.")] = 50,
    quick: Quick = False,
    csv: Csv = None,
    json: Json = False,
    report: Report = None,
    plots: Plots = None,
) -> None:
    """Measure GB/s of each kernel on the first GPU, beside a device copy of as many bytes.

    Without a GPU it says so, measures nothing, and compiles every variant for sm_80, sm_90 and sm_100. Ctrl-C ends with
    a table of what was done. Exits with 1 if a variant does not compile or run.
    """
    from dali_feed.bench.contract import Outcome
    from dali_feed.bench.facts import facts
    from dali_feed.bench.kernel_cases import CASES
    from dali_feed.bench.kernels import SHOWN, every, gpu
    from dali_feed.cli.bench.ending import Ending, ending
    from dali_feed.errors import ConfigError, EngineError

    wrong = [name for name in names or () if name not in CASES]
    if wrong:
        msg = f"bench kernels: must be some of {', '.join(CASES)}; found {', '.join(wrong)}; leave them out for all"
        raise ConfigError(msg)
    outcome, chosen = Outcome("kernels", dict(facts())), tuple(names or CASES)
    try:
        outcome.about |= {"device": gpu(), "batch": batch, "runs": runs}
    except EngineError as error:
        outcome.missing["GPU"] = str(error)
    with ending(outcome, Ending(SHOWN, csv=csv, report=report, plots=plots, json=json)):
        every(chosen, outcome, batch=batch, runs=5 if quick else runs)
    if any(name != "GPU" for name in outcome.missing):
        raise typer.Exit(1)
