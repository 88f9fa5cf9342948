"""Insides that contract/cli/test_topic.py needs not: they go with what they test."""

from __future__ import annotations

import pytest
import typer
from kit.command import cli

from dali_feed.cli.options import seconds_of, size_of

__all__ = ["cli"]  # a fixture


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("1.5h", 5400), ("30m", 1800), ("2 min", 120), ("7d", 604_800)]
)
def test_times(text: str, seconds: float) -> None:
    """As people write them."""
    assert seconds_of(text) == seconds
    assert seconds_of("forever") is None


@pytest.mark.parametrize(
    ("text", "count"), [("1500", 1500), ("8MiB", 8 << 20), ("512MB", 512_000_000), ("1.5 GB", 1_500_000_000)]
)
def test_sizes(text: str, count: int) -> None:
    """As people write them: MB of 10^6, MiB of 2^20."""
    assert size_of(text) == count


@pytest.mark.parametrize("text", ["", "0", "0h", "-1", "5 parsecs", "1e9", "MB", "8mb", "5H"])
def test_what_is_no_amount(text: str) -> None:
    """A usage error that shows what was typed."""
    for read in (seconds_of, size_of):
        with pytest.raises(typer.BadParameter, match="^must be a .* found "):
            read(text)
