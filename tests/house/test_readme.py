"""The README's example runs as printed and prints what it says."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from kit.limits import LONG
from kit.warm import Warm

README = Path(__file__).parents[2] / "README.md"


def test_the_example_prints_what_the_readme_shows(warm: Warm) -> None:
    """The first Python block, run by itself on the CPU, prints the block that follows it."""
    found = re.search(r"```python\n(.*?)```\n```\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert found, "README.md must open with an example and its output"
    code, printed = found.groups()
    run = subprocess.run(
        [warm.python, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=LONG,
        check=False,
        env={"CUDA_VISIBLE_DEVICES": "", "PATH": "/usr/bin:/bin"},
        cwd="/",
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == printed
