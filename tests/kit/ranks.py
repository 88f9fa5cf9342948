"""Ranks of one run: a script in several processes that speak by gloo on the CPU, and what each says at its end."""

from __future__ import annotations

import json
import socket
import textwrap
from pathlib import Path
from typing import Any

from kit.warm import Warm

# They are forked from one process that has imported what takes seconds. Where one fails, the others wait for nobody.
_BEGIN = """
import json, os, signal, sys, warnings
import torch
torch.set_num_threads(1)
from kit.numbered import *
{imports}
ranks = set()
for rank in range({world_size}):
    if child := os.fork():
        ranks.add(child)
        continue
    os.environ.update({{"RANK": str(rank), "LOCAL_RANK": str(rank)}})
    break
else:
    while ranks:
        child, status = os.wait()
        ranks.remove(child)
        if status:
            for each in ranks:
                os.kill(each, signal.SIGKILL)
            sys.exit(f"rank {{child}} ended with {{os.waitstatus_to_exitcode(status)}}")
    sys.exit()
said = {{}}
"""
_END = """
with open(f"said-{rank}.json", "w") as file:
    json.dump(said, file)
if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()
"""


def spread(
    warm: Warm, folder: Path, body: str, world_size: int = 2, *, imports: str = "import accelerate"
) -> list[dict[str, Any]]:
    """What `body` has put into `said`, rank by rank; `imports` are those of all ranks."""
    script = folder / "ranks.py"
    script.write_text(_BEGIN.format(imports=imports, world_size=world_size) + textwrap.dedent(body) + _END)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    size = {"WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(world_size)}
    done = warm.run([script], folder, size | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}, beside=False)
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"said-{rank}.json").read_text()) for rank in range(world_size)]
