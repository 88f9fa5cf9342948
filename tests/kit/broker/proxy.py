"""A link to a broker that a test can slow down, hold, cut and take down."""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

PIECE = 16 << 10
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close at once, which the other side sees as a reset


class Proxy:
    """Forwards connections from `port` to `target`, both of 127.0.0.1. A context manager.

    Of several processes that have one port one at a time may: the others wait for the file `turn`.
    """

    def __init__(self, port: int, target: int, turn: Path) -> None:
        self._port, self._target, self._turn = port, target, turn.open("w")
        self._listener: socket.socket | None = None
        self._links: set[_Link] = set()
        self._lock = threading.Lock()
        self.rate = 0.0  # bytes a second of each connection towards the client; 0: as many as there are
        self.sent = 0

    def up(self) -> None:
        """Take connections."""
        listener = socket.create_server(("127.0.0.1", self._port))
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def down(self) -> None:
        """Refuse connections, and reset those there are."""
        listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            listener.close()
        self.cut()

    def cut(self) -> None:
        """Reset all connections; new ones are taken."""
        with self._lock:
            links, self._links = self._links, set()
        for link in links:
            link.reset()

    def hold(self) -> None:
        """Nothing more comes through the connections there are, and nobody is told; new ones work."""
        with self._lock:
            for link in self._links:
                link.held.set()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                try:
                    link = _Link(self, client, socket.create_connection(("127.0.0.1", self._target)))
                except OSError:
                    client.close()
                    continue
                with self._lock:
                    self._links.add(link)
                link.start()

    def __enter__(self) -> Self:
        fcntl.flock(self._turn, fcntl.LOCK_EX)
        self.up()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.down()
        self._turn.close()


class _Link:
    """A connection and its two directions."""

    def __init__(self, proxy: Proxy, client: socket.socket, broker: socket.socket) -> None:
        self._proxy, self._client, self._broker = proxy, client, broker
        self.held = threading.Event()
        self._ended = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._forward, args=(self._client, self._broker, False), daemon=True).start()
        threading.Thread(target=self._forward, args=(self._broker, self._client, True), daemon=True).start()

    def reset(self) -> None:
        self._ended.set()
        for each in (self._client, self._broker):
            with contextlib.suppress(OSError):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                each.shutdown(socket.SHUT_RD)  # wakes the thread that receives
            each.close()

    def _forward(self, from_: socket.socket, to: socket.socket, towards_client: bool) -> None:
        with contextlib.suppress(OSError):
            while piece := from_.recv(PIECE):
                if self.held.is_set():
                    self._ended.wait()
                    return
                if towards_client:
                    self._proxy.sent += len(piece)
                    if self._proxy.rate:
                        time.sleep(len(piece) / self._proxy.rate)
                to.sendall(piece)
        self.reset()
