"""Scripts of bench/ whose runs at toy size are left to `make test-long` start at least, so that none of them rots."""

from __future__ import annotations

import pytest
from toy_runs import Run, run

__all__ = ["run"]

NAMES = (
    "adapting",
    "cache",
    "columns",
    "decode",
    "lock",
    "memory",
    "open",
    "remote",
    "resume",
    "scaling",
    "screen",
    "training",
    "watch",
)


@pytest.mark.parametrize("name", NAMES)
def test_it_says_what_it_is_for(run: Run, name: str) -> None:
    """Its imports are there, and `--help` gives the command to type and each option."""
    script = f"bench_{name}.py"
    said = run(script, "--help")
    assert f"usage: {script}" in said
    assert f"bench/{script}" in said
    assert "--help" in said
