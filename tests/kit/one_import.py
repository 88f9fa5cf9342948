"""An example, several times, each time in a process of its own that is forked from one with the example's imports.

    python one_import.py SCRIPT OUT STEPS...

A process per number of STEPS, one after the other; where one fails, the next ones are not run.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path


def main() -> None:
    """Import, and fork for each."""
    script, out, *steps = sys.argv[1:]
    sys.path.insert(0, str(Path(script).parent))
    runpy.run_path(script)  # under another name than its own it only defines and imports
    for each in steps:
        print("begun:", flush=True)  # noqa: T201  where the output of one ends and the next one's begins
        child = os.fork()
        if not child:
            sys.argv = [script, "--out", out, "--steps", each]
            runpy.run_path(script, run_name="__main__")
            return
        if status := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
            sys.exit(abs(status))


if __name__ == "__main__":
    main()
