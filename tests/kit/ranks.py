"""Ranks of one run: a script in several processes that speak by gloo on the CPU, and what each says at its end."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import textwrap
from pathlib import Path
from typing import Any

from kit.limits import LONG
from kit.warm import Warm

_BEGIN = """
import json, os, sys, warnings
import torch
torch.set_num_threads(1)
from kit.numbered import *
said = {}
"""
_END = """
print(json.dumps(said))
if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()
"""


def spread(warm: Warm, folder: Path, body: str, world_size: int = 2) -> list[dict[str, Any]]:
    """What `body` has put into `said`, rank by rank. The last line that a process prints is its `said` as JSON."""
    script = folder / "ranks.py"
    script.write_text(_BEGIN + textwrap.dedent(body) + _END)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    running = []
    for rank in range(world_size):
        env = {
            **os.environ,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "LOCAL_WORLD_SIZE": str(world_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        running.append(subprocess.Popen([str(warm.python), "-P", str(script)], cwd=folder, env=env, **pipes))
    try:
        ends = [process.communicate(timeout=LONG) for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    for process, (_, errors) in zip(running, ends, strict=True):
        assert process.returncode == 0, errors
    return [json.loads(out.splitlines()[-1]) for out, _ in ends]
