"""An outcome as pictures: PNG files for slides and pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dali_feed.bench.contract import Outcome
from dali_feed.bench.findings import OURS
from dali_feed.bench.measures import figures, measure_of
from dali_feed.errors import ConfigError

__all__ = ["write"]

OURS_COLOUR, OTHER_COLOUR = "#0b6e4f", "#8fa39a"
WIDE = 8.0  # inches, of which a point has 1/72


def write(outcome: Outcome, folder: Path) -> list[Path]:
    """Draw figures with their spread (KIND.png) and step waits (KIND_waits.png); what there is nothing of is left out.

    Raises:
        ConfigError: matplotlib is not installed.
        OSError: the folder cannot be made or written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        msg = "--plots: matplotlib must be installed; it is not; pip install matplotlib, or use --report"
        raise ConfigError(msg) from error
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for name, draw in ((outcome.kind, _bars), (f"{outcome.kind}_waits", _waits)):
        figure = Figure(figsize=(WIDE, 1.0), dpi=150, layout="constrained")
        if draw(figure, outcome):
            figure.savefig(folder / f"{name}.png")
            drawn.append(folder / f"{name}.png")
    return drawn


def _bars(figure: Any, outcome: Outcome) -> bool:
    measure = measure_of(outcome.rows)
    if measure is None:
        return False
    found = sorted(figures(outcome.rows, measure), key=lambda each: each.value, reverse=not measure.more_is_better)
    figure.set_figheight(1.0 + 0.4 * len(found))
    axes = figure.subplots()
    values = np.array([each.value for each in found])
    spread = np.array([[each.value - each.least, each.most - each.value] for each in found]).T
    names = [f"{each.name}\n{each.detail}" if each.detail else each.name for each in found]
    colours = [OURS_COLOUR if each.name in OURS else OTHER_COLOUR for each in found]
    axes.barh(range(len(found)), values, xerr=spread, color=colours, capsize=3)
    axes.set_yticks(range(len(found)), names, fontsize=8)
    axes.set_xlabel(measure.counts)
    axes.spines[["top", "right"]].set_visible(False)
    return True


def _waits(figure: Any, outcome: Outcome) -> bool:
    waits = {who: its for who, its in outcome.waits.items() if len(its)}
    if not waits:
        return False
    figure.set_figheight(3.5)
    axes = figure.subplots()
    for who, its in waits.items():
        axes.plot(1e3 * np.sort(its), np.linspace(0, 100, len(its)), label=who, lw=2 if who in OURS else 1)
    axes.set_xscale("log")
    axes.set_xlabel("wait of a step, ms")
    axes.set_ylabel("% of steps that wait at most so long")
    axes.legend(fontsize=8, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return True
