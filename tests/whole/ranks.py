"""A script on several ranks of this machine, forked from this process: torchrun without its agent.

    python ranks.py RANKS PORT SCRIPT [ARGUMENT...]

Run in a process that has imported torch (support/warm.py), the ranks need not import it again. They find each other by
PORT. Where one ends with an error the others are killed, as torchrun does.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys


def main() -> dict[str, object]:
    """Fork the ranks and wait for all; in a rank, what its script leaves behind."""
    ranks, port, *command = sys.argv[1:]
    running = set()
    for rank in range(int(ranks)):
        child = os.fork()
        if not child:
            place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
            os.environ.update(place | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port})
            sys.argv = command
            return runpy.run_path(command[0], run_name="__main__")
        running.add(child)
    failed = 0
    while running:
        child, status = os.wait()
        running.discard(child)
        if status and not failed:
            failed = 1
            for other in running:
                os.kill(other, signal.SIGKILL)
    sys.exit(failed)


names = main()  # kept until the rank ends
