"""Insides that contract/cli/test_lag.py needs not: they go with what they test."""

from __future__ import annotations

import pytest
from kit.command import Cli, assert_one_line, cli

from dali_feed.cli.targets import named

__all__ = ["cli"]  # a fixture


@pytest.mark.parametrize("servers", ["h:abc", "h:70000", "h:1,", "h:1, :2"])
def test_addresses_that_cannot_be(cli: Cli, servers: str) -> None:
    """One line at once, where librdkafka would ask another port until the timeout; a last comma says nothing."""
    if servers != "h:1,":
        assert_one_line(cli("lag", f"kafka://{servers}/t", "--group", "g"), "target: servers must be", "host:port")
    else:
        assert named("kafka://h:1,/t") == ("t", "h:1")
