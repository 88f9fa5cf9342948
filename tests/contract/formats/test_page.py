"""docs/formats.md says what is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[3] / "docs" / "formats.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_examples_run(number: int) -> None:
    """Each by itself, as printed."""
    exec(compile(BLOCKS[number], f"block {number}", "exec"), {"__name__": "page"})  # noqa: S102 - our own page
