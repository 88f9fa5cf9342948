"""A broker that is far away: forwards connections, each piece later by half of a round trip.

    python bench/_far.py PORT TARGET ROUND_TRIP_SECONDS

A process of its own, so that its threads do not take the interpreter's lock from what is measured.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

__all__ = ["far"]

PIECE = 256 << 10
HELD = 4096  # pieces on their way


@contextlib.contextmanager
def far(port: int, target: int, round_trip: float) -> Iterator[None]:
    """While it lasts, `port` of this machine leads to `target`, `round_trip` seconds away."""
    process = subprocess.Popen([sys.executable, __file__, str(port), str(target), str(round_trip)])
    try:
        until = time.monotonic() + 30
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            if time.monotonic() > until or process.poll() is not None:
                msg = f"nothing listens at port {port}"
                raise RuntimeError(msg)
            time.sleep(0.05)
        yield
    finally:
        process.kill()
        process.wait()


def _pump(from_: socket.socket, to: socket.socket, delay: float) -> None:
    """One direction: what comes goes on `delay` seconds later."""
    pieces: queue.Queue[tuple[float, bytes] | None] = queue.Queue(HELD)

    def send() -> None:
        with contextlib.suppress(OSError):
            while (item := pieces.get()) is not None:
                due, piece = item
                if (left := due - time.monotonic()) > 0:
                    time.sleep(left)
                to.sendall(piece)
        for each in (from_, to):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    threading.Thread(target=send, daemon=True).start()
    with contextlib.suppress(OSError):
        while piece := from_.recv(PIECE):
            pieces.put((time.monotonic() + delay, piece))
    pieces.put(None)


def main() -> None:
    """Forward for ever."""
    port, target, delay = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]) / 2
    with socket.create_server(("127.0.0.1", port)) as listener:
        while True:
            client, _ = listener.accept()
            try:
                broker = socket.create_connection(("127.0.0.1", target))
            except OSError:
                client.close()
                continue
            for from_, to in ((client, broker), (broker, client)):
                from_.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=_pump, args=(from_, to, delay), daemon=True).start()


if __name__ == "__main__":
    main()
