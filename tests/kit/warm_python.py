"""A program in Python's place, whose work a process does that has imported torch: kit/warm.py copies it to a file.

It stands for that process: has its files and its status, passes signals on, and ends it with itself.
"""

import json
import os
import signal
import socket
import struct
import sys

PASSED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def asked(words: list[str]) -> dict[str, object] | None:
    """What is to be run; nothing where Python is given an option that only it can follow."""
    warned: list[str] = []
    found: dict[str, object] = {"options": "", "warnings": warned}
    while words:
        word, *rest = words
        first, last = word[1:-1] if word[-1] in "cmW" else word[1:], word[-1]
        if not word.startswith("-"):
            return found | {"how": "script", "what": word, "words": words}
        if not set(first) <= set("IPu") or word == "-" or (last in "cmW" and not rest):
            return None
        found["options"] = f"{found['options']}{first}"
        if last in "cm":
            return found | {"how": last, "what": rest[0], "words": ["-c", *rest[1:]] if last == "c" else rest}
        if last == "W":
            warned.append(rest.pop(0))
        words = rest
    return None


def main() -> None:
    """Ask, wait, and end as it ended."""
    found = asked(sys.argv[1:])
    if found is None:
        os.execv(sys.executable, [sys.executable, *sys.argv[1:]])  # noqa: S606
    here = os.path.abspath(__file__)
    found |= {"folder": os.getcwd(), "env": dict(os.environ), "python": here}
    told = json.dumps(found).encode()
    with socket.socket(socket.AF_UNIX) as warm:
        warm.connect(os.path.join(os.path.dirname(here), "asking"))
        socket.send_fds(warm, [struct.pack("q", len(told))], [0, 1, 2])
        warm.sendall(told)
        for number in PASSED:
            signal.signal(number, lambda number, _: warm.send(bytes([number])))
        got = warm.recv(8)
    if not got:
        sys.exit("the process that does the work has ended")
    status = struct.unpack("q", got)[0]
    if os.WIFSIGNALED(status):
        by = os.WTERMSIG(status)
        if by != signal.SIGKILL:
            signal.signal(by, signal.SIG_DFL)
        os.kill(os.getpid(), by)
    os._exit(os.WEXITSTATUS(status))


main()
