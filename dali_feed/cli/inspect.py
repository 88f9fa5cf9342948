"""Looks into sources: what each holds by its snapshot, and what a sample of it says."""

from __future__ import annotations

from collections.abc import Sequence

from dali_feed.cli.findings import look
from dali_feed.cli.inspect_view import show
from dali_feed.cli.targets import options_of, sources

__all__ = ["inspect_all"]


def inspect_all(targets: Sequence[str], *, sample: int, config: Sequence[str], timeout: float) -> tuple[int, int]:
    """Print what each target holds; return how many bad records the samples had, and how many sources no good one.

    Raises:
        ConfigError: a target or an option that is not allowed.
        SourceError: records cannot be read.
    """
    bad = hopeless = 0
    for source in sources(targets, config=options_of(config), timeout=timeout):
        snapshot = source.snapshot()
        findings = look(source, snapshot, sample)
        show(source, snapshot, findings)
        bad += len(findings.bad)
        hopeless += bool(findings.bad) and not findings.good
    return bad, hopeless
